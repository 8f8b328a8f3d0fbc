"""GGUF files of every architecture against folders of the same weights, which other tests hold to transformers."""

import numpy as np
import pytest
import torch
from gguf import GGUFWriter

from kernels.reference import ReferenceOps
from tests.unit.models import tiny
from tests.unit.models.folder import HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYERS, VOCAB, WIDE, Folder
from tests.unit.models.stepper import Stepper
from worker.models.card import read_card
from worker.models.checkpoint_source import DIALECT as THEIRS
from worker.models.errors import ModelFileError
from worker.models.gguf_source import DIALECT as OURS
from worker.models.load import load_model
from worker.models.rope import LinearScaling, Rope, YarnScaling, yarn_attention

IDS = np.random.default_rng(1).integers(2, VOCAB, 30).tolist()
TOKENS = [*tiny.TOKENS[: VOCAB - 1], "he"]
QWEN3_NORMS = {f"model.layers.{n}.self_attn.{x}_norm.weight": (HEAD_DIM,) for n in range(LAYERS) for x in "qk"}
BIASES = {
    f"model.layers.{n}.self_attn.{x}_proj.bias": (heads * HEAD_DIM,)
    for n in range(LAYERS)
    for x, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
}
OUTPUT_BIASES = {f"model.layers.{n}.self_attn.o_proj.bias": (HIDDEN,) for n in range(LAYERS)}


def folder(model_type: str, more: dict[str, tuple[int, ...]], **config: object) -> Folder:
    made = Folder()
    made.config |= {"model_type": model_type, "architectures": None, "head_dim": HEAD_DIM, **config}
    rng = np.random.default_rng(8)
    made.tensors |= {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in more.items()}
    return made


def paired(rows: np.ndarray, heads: int) -> np.ndarray:
    """Halves of each head -> neighbouring pairs, as the converter of llama files writes them."""
    halves = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def own_name(name: str) -> str:
    whole = {theirs: OURS.whole[ours] for ours, theirs in THEIRS.whole.items()}
    if name in whole:
        return whole[name]
    _, _, layer, part = name.split(".", 3)
    return f"blk.{layer}." + next(OURS.parts[ours] for ours, theirs in THEIRS.parts.items() if theirs == part)


def write_gguf(path, architecture: str, tensors: dict[str, np.ndarray], **metadata: object):
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(TOKENS)
    writer.add_token_merges(["h e"])
    writer.add_eos_token_id(1)
    for key, value in metadata.items():
        writer.add_key_value(f"{architecture}.{key}".replace("__", "."), value, tiny._kind_of(value))
    for name, values in tensors.items():
        heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2], 0)
        writer.add_tensor(own_name(name), paired(values, heads) if heads and architecture == "llama" else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits(path) -> torch.Tensor:
    return Stepper(load_model(path, "fp32"), ReferenceOps()).step(a=IDS)["a"]


@pytest.mark.parametrize(
    ("made", "architecture", "metadata"),
    [
        (folder("llama", {}), "llama", {}),
        (folder("llama", BIASES | OUTPUT_BIASES, attention_bias=True), "llama", {}),
        (folder("mistral", {}, sliding_window=8), "llama", {"attention__sliding_window": 8}),
        (folder("qwen2", BIASES), "qwen2", {}),
        (folder("qwen3", QWEN3_NORMS), "qwen3", {}),
        (
            folder("llama", {}, rope_scaling={"type": "linear", "factor": 3.0}),
            "llama",
            {"rope__scaling__type": "linear", "rope__scaling__factor": 3.0},
        ),
        (
            folder(
                "qwen2", BIASES, rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
            ),
            "qwen2",
            {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 16},
        ),
    ],
    ids=["llama", "llama with biases", "mistral", "qwen2", "qwen3", "linear", "yarn"],
)
def test_a_gguf_file_computes_what_the_folder_computes(tmp_path, made, architecture, metadata):
    path = write_gguf(tmp_path / "m.gguf", architecture, made.tensors, **metadata)
    torch.testing.assert_close(logits(path), logits(made.write(tmp_path / "folder")), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("metadata", "rope", "context"),
    [
        ({}, Rope(10_000.0), 64),
        ({"rope__freq_base": 500.0, "rope__scaling__type": "none", "rope__scaling__factor": 4.0}, Rope(500.0), 64),
        ({"rope__scaling__factor": 4.0}, Rope(10_000.0, LinearScaling(4.0)), 64),
        ({"rope__scale_linear": 2.0}, Rope(10_000.0, LinearScaling(2.0)), 64),
        (
            {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__attn_factor": 0.5},
            Rope(10_000.0, YarnScaling(4.0, 64, 0.5 * yarn_attention(4.0))),
            256,
        ),
        (
            {
                "rope__scaling__type": "yarn",
                "rope__scaling__factor": 2.0,
                "rope__scaling__original_context_length": 16,
                "rope__scaling__yarn_beta_fast": 8.0,
                "rope__scaling__yarn_beta_slow": 2.0,
            },
            Rope(10_000.0, YarnScaling(2.0, 16, yarn_attention(2.0), 8.0, 2.0)),
            64,
        ),
    ],
)
def test_rope_metadata(tmp_path, metadata, rope, context):
    config = read_card(write_gguf(tmp_path / "m.gguf", "llama", Folder().tensors, **metadata)).config
    assert config.rope == rope
    assert config.context_length == context


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ({"rope__scaling__factor": 0.0}, "llama.rope.scaling.factor is 0.0"),
        ({"rope__scaling__yarn_log_multiplier": 0.1}, "yarn_log_multiplier"),
        ({"attention__value_length": 4}, "value heads"),
        ({"rope__dimension_count": 4}, "partial rotary"),
        ({"expert_count": 8}, "mixture of experts"),
    ],
)
def test_metadata_that_is_refused(tmp_path, metadata, complaint):
    path = write_gguf(tmp_path / "m.gguf", "llama", Folder().tensors, **metadata)
    with pytest.raises(ModelFileError, match=r"m\.gguf") as caught:
        read_card(path)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("architecture", "tensor"), [("qwen3", "blk.0.attn_q_norm.weight"), ("qwen2", "blk.0.attn_q.bias")]
)
def test_qwen_without_what_makes_it_qwen_is_refused(tmp_path, architecture, tensor):
    with pytest.raises(ModelFileError, match=f"tensor {tensor} is missing"):
        load_model(write_gguf(tmp_path / "m.gguf", architecture, Folder().tensors))
