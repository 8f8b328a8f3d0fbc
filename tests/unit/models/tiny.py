"""A Llama small enough to write, damage and run in milliseconds, and a second implementation of what it computes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter
from gguf.quants import dequantize, quantize

LAYERS, HIDDEN, WIDE, HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 2, 64, 96, 4, 2, 16, 64
EPS, BASE = 1e-5, 10_000.0
BYTES = [chr(b) for b in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))]
TOKENS = ["<|begin|>", "<|end|>", *BYTES, *(chr(0x100 + n) for n in range(68)), "he", "ll", "<tool>"]
CONTROL, NORMAL, USER_DEFINED = 3, 1, 4
TYPES = [CONTROL, CONTROL, *[NORMAL] * (len(TOKENS) - 3), USER_DEFINED]
VOCAB = len(TOKENS)


def tensors(seed: int = 0, vocab: int = VOCAB) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return rng.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)

    def norm() -> np.ndarray:
        return rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32)

    found = {"token_embd.weight": matrix(vocab, HIDDEN) * 8, "output_norm.weight": norm()}
    for layer in range(LAYERS):
        found |= {
            f"blk.{layer}.attn_norm.weight": norm(),
            f"blk.{layer}.attn_q.weight": matrix(HEADS * HEAD_DIM, HIDDEN) * 2,
            f"blk.{layer}.attn_k.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN) * 2,
            f"blk.{layer}.attn_v.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_output.weight": matrix(HIDDEN, HEADS * HEAD_DIM),
            f"blk.{layer}.ffn_norm.weight": norm(),
            f"blk.{layer}.ffn_gate.weight": matrix(WIDE, HIDDEN),
            f"blk.{layer}.ffn_up.weight": matrix(WIDE, HIDDEN),
            f"blk.{layer}.ffn_down.weight": matrix(HIDDEN, WIDE),
        }
    return found


def untied(seed: int = 1) -> dict[str, np.ndarray]:
    """With a head of its own: a tied one says the last token again, whatever stands before it."""
    head = np.random.default_rng(seed).normal(0, 3 * HIDDEN**-0.5, (VOCAB, HIDDEN))
    return tensors() | {"output.weight": head.astype(np.float32)}


@dataclass
class Recipe:
    """What goes into a file. Tests change one thing and write it."""

    tensors: dict[str, np.ndarray] = field(default_factory=tensors)
    kind: Kind = Kind.F32
    kinds: Mapping[str, Kind] = field(default_factory=dict)  # of matrices that are of another
    label: Kind | None = None  # what the file says instead of `kind`; of the same size
    architecture: str = "llama"
    extra: Mapping[str, object] = field(default_factory=dict)  # metadata
    tokens: list[str] = field(default_factory=lambda: list(TOKENS))
    types: list[int] = field(default_factory=lambda: list(TYPES))
    merges: list[str] = field(default_factory=lambda: ["h e", "l l"])
    model: str = "gpt2"
    pre: str = "smollm"
    scores: list[float] | None = None

    def write(self, path: Path) -> Path:
        writer = GGUFWriter(path, self.architecture)
        writer.add_block_count(LAYERS)
        writer.add_context_length(CONTEXT)
        writer.add_embedding_length(HIDDEN)
        writer.add_feed_forward_length(WIDE)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_layer_norm_rms_eps(EPS)
        writer.add_rope_freq_base(BASE)
        writer.add_tokenizer_model(self.model)
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        writer.add_token_merges(self.merges)
        if self.scores is not None:
            writer.add_token_scores(self.scores)
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)
        for key, value in self.extra.items():
            writer.add_key_value(key, value, _kind_of(value))
        for name, values in self.tensors.items():
            kind = self.kinds.get(name, self.kind) if values.ndim == 2 else Kind.F32
            label = self.label if self.label is not None and values.ndim == 2 else kind
            writer.add_tensor(name, quantize(values, kind), raw_dtype=label)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def _kind_of(value: object):
    from gguf import GGUFValueType

    return {bool: GGUFValueType.BOOL, int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32}.get(
        type(value), GGUFValueType.STRING
    )


def logits(weights: Mapping[str, np.ndarray], ids: list[int], kind: Kind = Kind.F32) -> torch.Tensor:
    """Logits [tokens, vocab] of one sequence computed at once, in float64, straight from the file's own layout: pairs
    of neighbouring rows of Q and K are rotated together. No cache, no batch.
    """
    w = {
        name: torch.from_numpy(dequantize(quantize(v, kind), kind) if v.ndim == 2 else v).double()
        for name, v in weights.items()
    }
    x = w["token_embd.weight"][ids]
    for layer in range(LAYERS):
        blk = f"blk.{layer}"
        normed = _norm(x, w[f"{blk}.attn_norm.weight"])
        q = _rope((normed @ w[f"{blk}.attn_q.weight"].T).view(len(ids), HEADS, HEAD_DIM), w.get("rope_freqs.weight"))
        k = _rope((normed @ w[f"{blk}.attn_k.weight"].T).view(len(ids), KV_HEADS, HEAD_DIM), w.get("rope_freqs.weight"))
        v = (normed @ w[f"{blk}.attn_v.weight"].T).view(len(ids), KV_HEADS, HEAD_DIM)
        heads = []
        for head in range(HEADS):
            kv = head * KV_HEADS // HEADS
            scores = q[:, head] @ k[:, kv].T / HEAD_DIM**0.5
            hidden = torch.ones_like(scores).triu(1).bool()
            heads.append(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v[:, kv])
        x = x + torch.cat(heads, -1) @ w[f"{blk}.attn_output.weight"].T
        normed = _norm(x, w[f"{blk}.ffn_norm.weight"])
        gate = normed @ w[f"{blk}.ffn_gate.weight"].T
        x = x + (gate * gate.sigmoid() * (normed @ w[f"{blk}.ffn_up.weight"].T)) @ w[f"{blk}.ffn_down.weight"].T
    return _norm(x, w["output_norm.weight"]) @ w.get("output.weight", w["token_embd.weight"]).T


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * weight


def _rope(x: torch.Tensor, factors: torch.Tensor | None) -> torch.Tensor:
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    frequencies = BASE ** (-torch.arange(0, HEAD_DIM, 2).double() / HEAD_DIM)
    angle = torch.outer(torch.arange(len(x)).double(), frequencies if factors is None else frequencies / factors)
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)[:, None]).flatten(-2)
