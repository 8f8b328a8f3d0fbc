import struct

import numpy as np
import pytest
from gguf import GGUFReader

from tests.unit.models.tiny import Recipe
from worker.models.card import demo_model_path
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


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "the file is empty"),
        (b"{}", "not a GGUF file"),
        (b"PK\x03\x04" * 100, "not a GGUF file"),
        (b"GGUF", "damaged or truncated"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 60), "damaged or truncated"),
        (b"GGUF" + struct.pack("<IQQQ1sII", 3, 0, 1, 1, b"k", 9, 4) + struct.pack("<Q", 1 << 50), "damaged"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 77), "damaged"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 1, 0, 1, b"t", 2_000_000_000), "dimensions"),
    ],
)
def test_refuses_what_is_no_whole_gguf_file(tmp_path, content, complaint):
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=complaint) as caught:
        GgufFile.open(path)
    assert str(path) in str(caught.value)


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
