"""The kernels, compiled for GPUs that need not be there, from the very arguments that the launchers pass."""

import io
from pathlib import Path

import pytest
import torch

from kernels.attention_call import AttentionCall
from kernels.attention_launches import launches_of
from kernels.attention_scratch import AttentionScratch
from kernels.attention_table import ARCHITECTURES, BLOCK_SIZES, HEAD_DIMS, KV_TYPES, Tile, rows, tiles
from kernels.capture import capture
from kernels.compile import compile_launch, launches, main, report
from kernels.launch import Launch
from kernels.paged_attention import paged_attention
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope_cache import rope_and_cache
from kernels.silu_and_mul import silu_and_mul
from kernels.split_attention import split_attention
from kernels.usage import Usage
from kernels.usage_document import BEGIN, END, launches_in, write_table

BLOCK_SIZE = 16
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _nothing_compiled_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def norms(tokens: int, hidden: int, dtype: torch.dtype) -> None:
    x, weight = torch.zeros(tokens, hidden, dtype=dtype), torch.zeros(hidden, dtype=dtype)
    rms_norm(x, weight, 1e-5)
    add_rms_norm(x, x.clone(), weight, 1e-5)


def activation(tokens: int, intermediate: int, dtype: torch.dtype) -> None:
    silu_and_mul(torch.zeros(tokens, 2 * intermediate, dtype=dtype))


def rope(tokens: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    qkv = torch.zeros(tokens, heads + 2 * kv_heads, head_dim, dtype=dtype)
    q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=1)
    cache = torch.zeros(2, BLOCK_SIZE, kv_heads, head_dim, dtype=dtype)
    angles = torch.zeros(8, head_dim // 2)
    index = torch.zeros(tokens, dtype=torch.int64)
    rope_and_cache(q, k, v, cos=angles, sin=angles, positions=index, k_cache=cache, v_cache=cache, slots=index)


def attention(tokens: int, sequences: int, blocks: int, window: int | None, scratch: AttentionScratch | None) -> None:
    cache = torch.zeros(2, BLOCK_SIZE, 3, 64, dtype=torch.bfloat16)
    paged_attention(
        torch.zeros(tokens, 9, 64, dtype=torch.bfloat16),
        cache,
        cache,
        block_tables=torch.zeros(sequences, blocks, dtype=torch.int32),
        query_start=torch.zeros(sequences + 1, dtype=torch.int32),
        context_lens=torch.zeros(sequences, dtype=torch.int32),
        scale=0.125,
        window=window,
        scratch=scratch,
    )


def step(tokens: int, sequences: int, blocks: int, scratch: AttentionScratch | None, window: int | None) -> None:
    norms(tokens, 576, torch.bfloat16)
    activation(tokens, 1536, torch.bfloat16)
    rope(tokens, 9, 3, 64, torch.bfloat16)
    attention(tokens, sequences, blocks, window, scratch)


def test_no_size_of_batch_compiles_anew() -> None:
    """A compilation takes seconds, in which all streams of a worker stand still."""
    with capture("sm_90") as caught:
        step(64, 8, 64, None, None)
        step(64, 8, 64, None, 4096)
        warm = set(caught.variants)
        for tokens in (1, 2, 15, 16, 17, 256):
            for sequences, blocks in [(1, 1), (1, 2), (16, 16), (17, 33), (256, 512)]:
                for splits_max in (None, 1, 16, 33):
                    scratch = None
                    if splits_max is not None and splits_max * 512 >= blocks * BLOCK_SIZE:
                        scratch = AttentionScratch.of(sequences, splits_max * 512, 9, 64, torch.device("cpu"))
                    step(tokens, sequences, blocks, scratch, None)
                    attention(tokens, sequences, blocks, 16 * tokens + 1, scratch)
    assert {variant.kernel for variant in caught.variants.values()} == {
        "_add_rms_norm_kernel",
        "_chunk_attention_kernel",
        "_reduce_splits_kernel",
        "_rms_norm_kernel",
        "_rope_and_cache_kernel",
        "_silu_and_mul_kernel",
        "_split_attention_kernel",
    }
    assert set(caught.variants) == warm


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_architecture_has_one_table_of_every_choice(architecture) -> None:
    table = rows(architecture)
    choices = {(row.head_dim, row.block_size, row.kv) for row in table}
    assert len(choices) == len(table) <= 60
    assert choices == {(d, b, kv) for d in HEAD_DIMS for b in BLOCK_SIZES for kv in KV_TYPES}
    for row in table:
        assert tiles(int(architecture[3:]), row.head_dim, row.kv) == (row.decode, row.chunk)
    named = [launch.name for launch in launches(architecture)]
    assert len(set(named)) == len(named)
    assert {f"decode {d} x {b} {kv}" for d, b, kv in choices} <= set(named)
    assert {f"chunk {d} x {b} {kv}" for d, b, kv in choices} <= set(named)


def test_a_newer_chip_takes_the_newest_table_that_it_knows() -> None:
    assert tiles(120, 64, "16-bit") == tiles(90, 64, "16-bit")
    assert tiles(87, 64, "16-bit") == tiles(86, 64, "16-bit")


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_a_launch_compiles_without_a_device(architecture) -> None:
    launch = next(launch for launch in launches(architecture) if launch.name == "decode 80 x 16 16-bit")
    usages = list(compile_launch(architecture, launch))
    assert [usage.kernel for usage in usages] == ["_split_attention_kernel", "_reduce_splits_kernel"]
    assert report(usages, io.StringIO()) == usages
    assert [usage.fault() for usage in usages] == [None, None]
    assert all(0 < usage.registers <= 255 for usage in usages)


def decode(tile: Tile, head_dim: int) -> Launch:
    """As of the table, with another tile."""

    def launch(call: AttentionCall, _: Tile) -> None:
        split_attention(call, tile, None, 1)

    named = {each.name: each for each in launches_of("sm_80", "decode", lambda row: row.decode, launch)}
    return named[f"decode {head_dim} x 16 16-bit"]


def test_a_kernel_of_decodes_that_spills_is_a_fault() -> None:
    usages = list(compile_launch("sm_80", decode(Tile(rows=16, keys=64, warps=1, stages=2), 128)))
    written = io.StringIO()
    assert [usage.fault() for usage in report(usages, written)].count("spills") == 1
    assert "| spills |" in written.getvalue()


def test_a_kernel_that_does_not_fit_into_shared_memory_is_a_fault() -> None:
    usages = list(compile_launch("sm_80", decode(Tile(rows=16, keys=64, warps=8, stages=7), 256)))
    assert usages[0].spilled_bytes == 0
    written = io.StringIO()
    assert [usage.fault() for usage in report(usages, written)].count("does not fit into shared memory") == 1
    assert "shared memory |" in written.getvalue().splitlines()[2]


def test_only_some_may_spill_and_none_may_be_too_large() -> None:
    usage = {"architecture": "sm_86", "launch": "chunk", "kernel": "k", "registers": 255}
    assert Usage(**usage, spilled_bytes=8, shared_bytes=0, may_spill=True).fault() is None
    assert Usage(**usage, spilled_bytes=8, shared_bytes=0, may_spill=False).fault() == "spills"
    assert Usage(**usage, spilled_bytes=0, shared_bytes=99 * 1024, may_spill=True).fault() is None
    assert Usage(**usage, spilled_bytes=0, shared_bytes=99 * 1024 + 1, may_spill=True).fault() is not None


def test_the_document_s_table_is_of_what_the_code_launches() -> None:
    named = launches_in(ROOT / "docs/kernels.md")
    assert list(dict.fromkeys(named)) == [launch.name for launch in launches("sm_90")]
    assert set(named) == {launch.name for launch in launches("sm_80")}


def test_a_table_is_written_between_its_marks_alone(tmp_path) -> None:
    document = tmp_path / "kernels.md"
    document.write_text(f"before\n{BEGIN}\n| old |\n{END}\nafter\n")
    usage = {"launch": "decode", "may_spill": False, "spilled_bytes": 0}
    usages = [
        Usage("sm_90", kernel="_k", registers=90, shared_bytes=2048, **usage),
        Usage("sm_90", kernel="_reduce", registers=30, shared_bytes=0, **usage),
        Usage("sm_80", kernel="_k", registers=80, shared_bytes=1536, **usage),
    ]
    for _ in range(2):
        write_table(document, usages)
        lines = document.read_text().splitlines()
        assert (lines[0], lines[-1]) == ("before", "after")
        assert lines[-5:-3] == [
            "| decode | `k` | 80 | 0 | 1.5 | 90 | 0 | 2.0 |",
            "| decode | `reduce` |  |  |  | 30 | 0 | 0.0 |",
        ]
        assert launches_in(document) == ["decode", "decode"]


@pytest.mark.parametrize("text", [None, "no marks"])
def test_a_document_without_a_table_is_refused_before_anything_is_compiled(text, tmp_path, capsys) -> None:
    document = tmp_path / "kernels.md"
    if text is not None:
        document.write_text(text)
    with pytest.raises(SystemExit):
        main(["--arch", "sm_90", "--only", "decode 80 x 16 16-bit", "--document", str(document)])
    printed = capsys.readouterr()
    assert str(document) in printed.err.splitlines()[-1]
    assert printed.out == ""


def test_the_command_says_no_where_it_compiled_nothing(capsys) -> None:
    assert main(["--arch", "sm_90", "--only", "no such launch"]) == 1
    assert "0 launches" in capsys.readouterr().err
