"""A damaged or unfit model folder is refused with one sentence that names the file, and the tensor or field."""

import json
import os
import struct

import numpy as np
import pytest
import torch

from kernels.reference import ReferenceOps
from tests.unit.models.folder import HIDDEN, SHARDS, VOCAB, Folder, write_json
from tests.unit.models.stepper import Stepper
from worker.models.card import read_card
from worker.models.errors import ModelFileError
from worker.models.load import load_model

INDEX = "model.safetensors.index.json"
UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def folder(tmp_path):
    return Folder().write(tmp_path / "tiny")


def refusal(path) -> str:
    with pytest.raises(ModelFileError) as caught:
        load_model(path, "fp32")
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def logits(path) -> torch.Tensor:
    return Stepper(load_model(path, "fp32"), ReferenceOps()).step(a=[5, 6, 7])["a"]


def test_the_index_decides_which_file_holds_a_tensor(folder):
    expected = logits(folder)
    (folder / "model-00003-of-00003.safetensors").write_bytes(b"not of the index, and no safetensors file")
    assert torch.equal(logits(folder), expected)


def test_without_an_index_all_shards_count(folder):
    expected = logits(folder)
    (folder / INDEX).unlink()
    assert torch.equal(logits(folder), expected)


def test_a_single_file(tmp_path):
    recipe = Folder()
    expected = logits(recipe.write(tmp_path / "sharded"))
    from safetensors.numpy import save_file

    single = recipe.write(tmp_path / "single")
    for name in (INDEX, *SHARDS):
        (single / name).unlink()
    save_file(recipe.tensors, single / "model.safetensors")
    assert torch.equal(logits(single), expected)


@pytest.mark.parametrize("indexed", [True, False])
def test_a_missing_shard_is_named(folder, indexed):
    (folder / SHARDS[1]).unlink()
    if indexed:
        assert SHARDS[1] in refusal(folder)
    else:
        (folder / INDEX).unlink()
        assert "1 of the 2 shards" in refusal(folder)


def test_a_truncated_shard_names_a_tensor_that_is_cut(folder):
    shard = folder / SHARDS[1]
    shard.write_bytes(shard.read_bytes()[:-1000])
    message = refusal(folder)
    assert f"{SHARDS[1]}: truncated: tensor model.layers.1." in message


def test_a_shard_cut_anywhere_is_refused(folder):
    shard = folder / SHARDS[0]
    whole = shard.read_bytes()
    for length in [*range(0, 1200, 60), *np.linspace(1200, len(whole) - 1, 40).astype(int).tolist()]:
        shard.write_bytes(whole[:length])
        assert SHARDS[0] in refusal(folder)


@pytest.mark.parametrize("name", sorted(Folder().tensors))
def test_a_dropped_tensor_is_named(tmp_path, name):
    recipe = Folder()
    del recipe.tensors[name]
    assert refusal(recipe.write(tmp_path / "tiny")).endswith(f"tensor {name} is missing")


def test_a_tensor_that_the_index_promises_and_the_shard_lacks_is_named(folder):
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = SHARDS[1]
    write_json(folder / INDEX, index)
    assert f"{SHARDS[1]}: tensor model.norm.weight is missing" in refusal(folder)


@pytest.mark.parametrize("name", [name for name, t in Folder().tensors.items() if t.shape[0] != t.shape[-1]])
def test_a_transposed_tensor_is_named(tmp_path, name):
    recipe = Folder()
    recipe.tensors[name] = recipe.tensors[name].T
    assert f"tensor {name} has shape" in refusal(recipe.write(tmp_path / "tiny"))


def test_a_tensor_of_whole_numbers_is_named(tmp_path):
    recipe = Folder()
    recipe.tensors[UP] = recipe.tensors[UP].astype(np.int8)
    assert f"{SHARDS[1]}: tensor {UP} has type I8" in refusal(recipe.write(tmp_path / "tiny"))


def test_a_value_that_is_not_finite_is_refused(tmp_path):
    recipe = Folder()
    recipe.tensors[UP][3, 5] = np.nan
    assert f"tensor {UP} holds values" in refusal(recipe.write(tmp_path / "tiny"))


def test_a_tensor_that_nobody_asked_for_is_a_warning(tmp_path):
    recipe = Folder()
    recipe.tensors["model.layers.7.extra.weight"] = np.zeros(4, np.float32)
    path = recipe.write(tmp_path / "tiny")
    with pytest.warns(UserWarning, match=r"ignored tensors: model\.layers\.7\.extra\.weight \(1 in all\)"):
        load_model(path, "fp32")


def test_what_the_config_already_says_is_ignored_in_silence(tmp_path):
    recipe = Folder()
    recipe.config["tie_word_embeddings"] = True
    recipe.tensors["lm_head.weight"] = recipe.tensors["model.embed_tokens.weight"]
    recipe.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(4, np.float32)
    assert load_model(recipe.write(tmp_path / "tiny"), "fp32").config.tied


def test_a_head_that_is_no_copy_of_the_embedding_is_used_whatever_the_config_says(tmp_path):
    recipe = Folder()
    untied = logits(recipe.write(tmp_path / "untied"))
    recipe.config["tie_word_embeddings"] = True
    with pytest.warns(UserWarning, match="tie_word_embeddings is true, but the head is another"):
        assert torch.equal(logits(recipe.write(tmp_path / "tied")), untied)


@pytest.mark.parametrize("missing", ["lm_head.weight", "model.embed_tokens.weight"])
def test_a_tied_model_needs_its_embedding_alone(tmp_path, missing):
    recipe = Folder()
    recipe.config["tie_word_embeddings"] = True
    del recipe.tensors[missing]
    path = recipe.write(tmp_path / "tiny")
    if missing == "lm_head.weight":
        assert load_model(path, "fp32").config.tied
    else:
        assert "tensor model.embed_tokens.weight is missing" in refusal(path)


@pytest.mark.parametrize(
    ("file", "hint"),
    [
        (None, ""),
        ("m.gguf", " (of GGUF files, name one)"),
        ("adapter_config.json", " (an adapter is no model; merge it into its own)"),
        ("snapshots/0a1b/config.json", " (of a cache of models, name a folder in snapshots)"),
    ],
)
def test_a_folder_of_something_else(tmp_path, file, hint):
    if file is not None:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert refusal(tmp_path) == f"{tmp_path / 'config.json'}: missing{hint}"


def test_a_folder_without_weights(folder):
    for name in (INDEX, *SHARDS):
        (folder / name).unlink()
    assert refusal(folder).endswith("no safetensors file")
    (folder / "pytorch_model.bin").write_bytes(b"PK")
    assert "*.bin are not read" in refusal(folder)


def test_a_folder_named_like_a_shard(folder):
    (folder / SHARDS[1]).unlink()
    (folder / SHARDS[1]).mkdir()
    assert f"{SHARDS[1]}: cannot be read: Is a directory" in refusal(folder)


@pytest.mark.parametrize("home", ["../model.safetensors", 7, ""])
def test_an_index_that_points_outside_the_folder(folder, home):
    write_json(folder / INDEX, {"weight_map": {"model.norm.weight": home}})
    assert "no file of this folder" in refusal(folder)


@pytest.mark.parametrize("content", ["", "[]", "{", "{}", '{"weight_map": []}'])
def test_a_damaged_index(folder, content):
    (folder / INDEX).write_text(content)
    assert INDEX in refusal(folder)


@pytest.mark.parametrize(
    "entry",
    [
        7,
        {},
        {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 60]},
        {"dtype": "F32", "shape": [-4], "data_offsets": [0, -16]},
        {"dtype": "F32", "shape": ["x"], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]},
    ],
)
def test_a_damaged_entry_of_a_shard(folder, entry):
    header = json.dumps({"model.norm.weight": entry}).encode()
    (folder / SHARDS[0]).write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))
    assert f"{SHARDS[0]}: tensor model.norm.weight: " in refusal(folder)


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ('{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "a": {}}', "tensor or field a is there twice"),
        ('{"a": {"dtype": "F32", "dtype": "F16"}}', "tensor or field dtype is there twice"),
        ("[" * 200_000, "no safetensors index"),
        ('{"\\ud800": {}}', "no safetensors index"),
    ],
)
def test_a_damaged_index_of_a_shard(folder, header, complaint):
    (folder / SHARDS[0]).write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(64))
    assert complaint in refusal(folder)


@pytest.mark.parametrize("offset", [0, 4, 12])
def test_tensors_that_share_bytes(folder, offset):
    header = json.dumps(
        {
            "empty": {"dtype": "F32", "shape": [0], "data_offsets": [16, 16]},
            "b": {"dtype": "F32", "shape": [4], "data_offsets": [offset, offset + 16]},
            "a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
        }
    )
    (folder / SHARDS[0]).write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(64))
    assert f"{SHARDS[0]}: damaged: tensor " in refusal(folder)


@pytest.mark.parametrize("kind", [np.float16, "bfloat16"])
def test_other_types_of_numbers_compute_what_their_values_say(tmp_path, kind):
    from safetensors.torch import save_file

    recipe = Folder()
    rounded = {
        name: torch.from_numpy(t).to(torch.bfloat16 if kind == "bfloat16" else torch.float16)
        for name, t in recipe.tensors.items()
    }
    path = recipe.write(tmp_path / "half")
    for shard in SHARDS:
        save_file({n: t for n, t in rounded.items() if ("layers.1." in n) == (shard == SHARDS[1])}, path / shard)
    recipe.tensors = {name: t.float().numpy() for name, t in rounded.items()}
    assert torch.equal(logits(path), logits(recipe.write(tmp_path / "same")))


def test_bfloat16_on_a_cpu_works(folder):
    model = load_model(folder, "bf16")
    got = Stepper(model, ReferenceOps()).step(a=[5, 6, 7])["a"]
    torch.testing.assert_close(got, logits(folder), rtol=0.1, atol=0.1)


def test_rows_past_the_tokens_are_kept_and_have_no_text(folder):
    from tests.unit.models.folder import write_tokenizer

    write_tokenizer(folder, vocab=100)
    card = read_card(folder)
    assert card.vocab_size == card.vocabulary.vocab_size == VOCAB
    assert [card.vocabulary.token_bytes(token) for token in range(100, VOCAB)] == [b""] * 28
    assert logits(folder).shape == (3, VOCAB)


def test_more_tokens_than_rows_are_refused(tmp_path):
    recipe = Folder()
    recipe.config["vocab_size"] = 100
    assert f"{VOCAB} tokens but the embedding has 100 rows" in refusal(recipe.write(tmp_path / "tiny"))


def test_the_name_is_the_folders(folder):
    assert read_card(folder).name == "tiny"
    assert read_card(folder).config.hidden == HIDDEN


def test_a_model_in_hugging_faces_cache_has_its_own_name(folder, tmp_path):
    """There a folder is named by a revision, and its files are links."""
    revision = tmp_path / "models--org--Tiny-1.0" / "snapshots" / "0a1b2c"
    revision.mkdir(parents=True)
    for file in folder.iterdir():
        (revision / file.name).symlink_to(file)
    assert load_model(revision, "fp32").card.name == "Tiny-1.0"
    (tmp_path / "link").symlink_to(revision)
    assert read_card(tmp_path / "link").name == "Tiny-1.0"


def test_progress_ends_at_one(folder):
    seen: list[float] = []
    load_model(folder, "fp32", seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)


@pytest.mark.parametrize("inside", ["", "rope_scaling"])
def test_a_field_that_is_there_twice_is_named(folder, inside):
    """Readers differ in which of the two they believe."""
    twice = '"rope_theta": 1.0, "rope_theta": 2.0'
    text = (folder / "config.json").read_text().rstrip("}")
    (folder / "config.json").write_text(f'{text}, "{inside}": {{{twice}}}}}' if inside else f"{text}, {twice}}}")
    assert refusal(folder).endswith("config.json: field rope_theta is there twice")


@pytest.mark.parametrize("name", [SHARDS[1], "config.json", "tokenizer.json", INDEX])
def test_a_pipe_is_refused_unread(folder, name):
    """Opening one waits for somebody to write into it."""
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert refusal(folder).endswith(f"{name}: neither a file nor a folder")


@pytest.mark.parametrize("name", [SHARDS[1], "config.json", "tokenizer.json", INDEX])
def test_what_a_clone_without_lfs_leaves_is_named(folder, name):
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    assert f"{name}: a pointer of Git LFS" in refusal(folder)


def test_a_pipe_instead_of_a_gguf_file(tmp_path):
    os.mkfifo(tmp_path / "m.gguf")
    assert refusal(tmp_path / "m.gguf").endswith("m.gguf: neither a file nor a folder")
