import struct

import numpy as np
import pytest
from gguf import GGUFReader

from tests.unit.models.tiny import TOKENS, Recipe
from worker.models.card import demo_model_path, read_card
from worker.models.errors import ModelFileError
from worker.models.gguf_file import GgufFile


def test_reads_what_the_gguf_package_reads(tmp_path):
    path = Recipe(extra={"a.bool": True, "a.text": "Grüße", "a.float": 0.5, "a.int": 7}).write(tmp_path / "m.gguf")
    ours, theirs = GgufFile.open(path), GGUFReader(path)
    expected = {key: value.contents() for key, value in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == expected
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.shape == tuple(reversed(tensor.shape.tolist()))
        np.testing.assert_array_equal(ours.bytes_of(mine), tensor.data.reshape(-1).view(np.uint8))


def test_reads_the_demo_model():
    file = GgufFile.open(demo_model_path())
    assert len(file.tensors) == 272
    assert file.metadata["llama.context_length"] == 8192


def refused(tmp_path, content: bytes, complaint: str) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=complaint) as caught:
        GgufFile.open(path)
    assert str(path) in str(caught.value)


def entry(key: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + value


def header(*entries: bytes, tensors: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, len(entries)) + b"".join(entries)


def tensor(name: str, offset: int) -> bytes:
    """Of eight float32."""
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<IQIQ", 1, 8, 0, offset)


def alignment(value: int) -> bytes:
    return entry("general.alignment", 5, struct.pack("<i", value))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (header(entry("k", 4, bytes(4)), entry("k", 4, bytes(4))), "metadata field k is there twice"),
        (header(alignment(0)), "general.alignment is 0, no multiple of 8"),
        (header(alignment(-8)), "general.alignment is -8"),
        (header(alignment(12)), "general.alignment is 12"),
        (header(entry("general.alignment", 8, struct.pack("<Q", 1) + b"x")), "general.alignment is a str"),
        (header(entry("general.alignment", 7, b"\1")), "general.alignment is a bool"),
        (header(entry("k", 9, struct.pack("<IQ", 9, 1) * 5_000)), "damaged or truncated GGUF header"),
        (header(tensors=1) + tensor("a", 8) + bytes(200), "tensor a lies at 8, no multiple of 32"),
        (header(tensors=2) + tensor("a", 0) + tensor("b", 0) + bytes(200), "tensor b lies in the bytes of another"),
        (header(tensors=2) + tensor("a", 0) + tensor("a", 32) + bytes(200), "tensor a appears twice"),
    ],
)
def test_refuses_a_header_that_readers_could_take_in_two_ways(tmp_path, content, complaint):
    refused(tmp_path, content, complaint)


@pytest.mark.parametrize(
    ("recipe", "complaint"),
    [
        (Recipe(types=["x"]), "tokenizer.ggml.token_type holds values of another type"),
        (Recipe(merges=[1, 2]), "tokenizer.ggml.merges holds values of another type"),
        (Recipe(tokens=[1, 2]), "tokenizer.ggml.tokens holds values of another type"),
        (Recipe(model="llama", scores=["x"]), "tokenizer.ggml.scores holds values of another type"),
        (
            Recipe(model="llama", scores=[0.0] * len(TOKENS), extra={"tokenizer.ggml.unknown_token_id": "x"}),
            "unknown_token_id is a str",
        ),
        (Recipe(extra={"tokenizer.ggml.add_bos_token": "false"}), "add_bos_token is a str"),
        (Recipe(extra={"llama.attention.key_length": True}), "key_length is a bool"),
    ],
)
def test_a_value_of_another_type_is_named(tmp_path, recipe, complaint):
    with pytest.raises(ModelFileError, match=complaint):
        read_card(recipe.write(tmp_path / "m.gguf"))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "the file is empty"),
        (b"{}", "not a GGUF file"),
        (b"PK\x03\x04" * 100, "not a GGUF file"),
        (b"GGUF", "damaged or truncated"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header(entry("split.count", 2, struct.pack("<H", 3))), "one of 3 parts of a model; merge them"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 60), "damaged or truncated"),
        (b"GGUF" + struct.pack("<IQQQ1sII", 3, 0, 1, 1, b"k", 9, 4) + struct.pack("<Q", 1 << 50), "damaged"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 77), "damaged"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 1, 0, 1, b"t", 2_000_000_000), "dimensions"),
    ],
)
def test_refuses_what_is_no_whole_gguf_file(tmp_path, content, complaint):
    refused(tmp_path, content, complaint)


def test_refuses_a_missing_file_and_a_folder(tmp_path):
    for path in (tmp_path / "absent.gguf", tmp_path):
        with pytest.raises(ModelFileError, match=str(path)):
            GgufFile.open(path)


def test_a_file_cut_anywhere_is_refused(tmp_path):
    whole = Recipe().write(tmp_path / "whole.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in [*range(0, 600, 7), *np.linspace(600, len(whole) - 100, 150).astype(int).tolist()]:
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelFileError, match=r"cut\.gguf"):
            GgufFile.open(cut)


def test_a_file_cut_in_its_last_tensor_names_it(tmp_path):
    path = Recipe().write(tmp_path / "m.gguf")
    last = list(GgufFile.open(path).tensors.values())[-1]
    path.write_bytes(path.read_bytes()[: last.offset + last.nbytes - 1])
    with pytest.raises(ModelFileError, match=f"truncated: tensor {last.name}"):
        GgufFile.open(path)
