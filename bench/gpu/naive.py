"""Part d: the same shape in the transformers library, whose `generate` pads a batch and records no graph.

Knows nothing of ours but the shape. Invariant: what is timed are new tokens of a batch that starts together.
"""

import time

import torch
import transformers

from bench.gpu.machine import Machine
from bench.gpu.part import Found, Level, Row, logged
from bench.gpu.random_model import llama_8b, tiny


def run(machine: Machine) -> Found:
    config = tiny() if machine.dry else llama_8b()
    shape = transformers.LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden,
        intermediate_size=config.intermediate,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.context_length,
        rms_norm_eps=config.rms_eps,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    torch.set_default_dtype(torch.float32 if machine.dry else torch.bfloat16)
    with torch.device(machine.device):
        model = transformers.LlamaForCausalLM(shape).eval()
    levels = [Level(1, 5, 3)] if machine.dry else [Level(1, 128, 64), Level(64, 1_000, 32)]
    rows = [_generate(machine, model, config.vocab_size, level) for level in levels]
    columns = ["sequences", "prompt", "output", "tokens/s"]
    return Found(rows, [], columns, [list(row.values()) for row in rows])


@torch.inference_mode()
def _generate(machine: Machine, model: torch.nn.Module, vocab: int, level: Level) -> Row:
    ids = torch.randint(1, vocab, (level.sequences, level.prompt), device=machine.device)

    def generate(tokens: int) -> float:
        start = time.perf_counter()
        made = model.generate(  # pyright: ignore[reportCallIssue] (a mixin's)
            ids,
            attention_mask=torch.ones_like(ids),
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            do_sample=False,
        )
        assert made.shape == (level.sequences, level.prompt + tokens)
        return time.perf_counter() - start

    generate(2)
    row: Row = {
        "sequences": level.sequences,
        "prompt": level.prompt,
        "output": level.output,
        "tokens_per_s": level.sequences * level.output / generate(level.output),
    }
    return logged(row)
