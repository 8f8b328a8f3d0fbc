"""The drawing of tokens against the plain reference, and against the engine's sampler: the same tokens."""

import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import reference_sampling
from kernels.logit_edits import edit_logits
from kernels.noise import key_of, noise_of
from kernels.sampling import ALL_BANNED, NOT_FINITE, OUTSIDE, Drawn
from kernels.token_draw import KEPT, draw_tokens
from kernels.vocabulary_scan import TILE
from tests.unit.kernels.interpreted.near import sparse
from tests.unit.kernels.interpreted.rows import draw_params, logit_edits, row
from worker.engine.batch import LogitBias, SampleParams
from worker.engine.device_sampler import DeviceSampler
from worker.engine.noise import exponential, noise_keys
from worker.engine.sampler import sample
from worker.engine.staging import Staging
from worker.engine.token_counts import TokenCounts

RANDOM = np.random.default_rng(11)


def some(values):
    return values[int(RANDOM.integers(len(values)))]


def random_row(**changes) -> SampleParams:
    counters = {"seed": int(RANDOM.integers(2**64, dtype=np.uint64)), "choice": some([0, 1, 127])}
    return row(**{**counters, "position": int(RANDOM.integers(1_000_000)), **changes})


def random_limits(vocab: int, **changes) -> SampleParams:
    limits = {
        "temperature": some([0.3, 1.0, 1.7]),
        "top_p": some([0.0, 0.1, 0.9, 0.9995, 1.0]),
        "top_k": some([0, 1, 5, 50, vocab - 1, vocab]),
        "min_p": some([0.0, 0.0, 0.02, 1.0]),
    }
    return random_row(**{**limits, **changes})


def assert_same(logits: Tensor, rows: list[SampleParams]) -> Drawn:
    """Kernel, reference and the engine's sampler agree on every row."""
    params, edited = draw_params(rows), any(each.bias or each.seen or each.banned for each in rows)
    expected = sample(logits, rows)
    exact, got = (
        draw(logits.clone(), params, logit_edits(rows) if edited else None)
        for draw in (reference_sampling.draw_tokens, draw_tokens)
    )
    good = [index for index in range(len(rows)) if index not in expected.errors]
    assert [index for index, fault in enumerate(got.faults.tolist()) if not fault] == good
    assert torch.equal(got.faults, exact.faults)
    assert got.ids[good].tolist() == [expected.ids[index] for index in good]
    assert torch.equal(got.ids[good], exact.ids[good])
    for name in ("logprobs", "floors", "totals"):
        torch.testing.assert_close(getattr(got, name)[good], getattr(exact, name)[good], rtol=2e-6, atol=2e-6)
    logprobs = [found.logprob for index in good if (found := expected.logprobs[index])]
    torch.testing.assert_close(got.logprobs[good], torch.tensor(logprobs), rtol=1e-5, atol=1e-4)
    return got


def test_rows_without_limits() -> None:
    rows = [random_row(temperature=some([0.0, 9e-4, 1e-3, 0.5, 1.0, 2.0])) for _ in range(48)]
    assert_same(3 * torch.randn(48, 300), rows)


def test_rows_with_limits() -> None:
    assert_same(some([0.5, 3.0]) * torch.randn(28, 300), [random_limits(300) for _ in range(28)])


def test_vocabularies_of_several_tiles() -> None:
    """So even that more tokens may be drawn than a search holds."""
    rows = [random_row(top_p=0.9), random_row(top_k=KEPT + 1, top_p=0.7), random_row(min_p=0.4, top_p=0.5)]
    assert_same(0.2 * torch.randn(3, TILE + 7), rows)


def test_a_tile_of_which_every_token_is_banned() -> None:
    banned = frozenset(range(TILE, TILE + 7))
    assert_same(torch.randn(2, TILE + 7), [random_row(banned=banned), random_row(banned=banned, temperature=0.0)])


def test_flat_logits() -> None:
    vocab = KEPT + 80
    rows = [random_row(top_k=KEPT + 1), random_row(), random_row(temperature=0.0)]
    got = assert_same(torch.zeros(3, vocab), rows)
    assert (got.ids > 0).tolist() == [True, True, False]
    torch.testing.assert_close(got.logprobs, torch.full((3,), -math.log(vocab)))


@pytest.mark.parametrize("vocab", [1, 2, 16, 17])
def test_small_vocabularies(vocab: int) -> None:
    assert_same(torch.randn(6, vocab), [random_limits(vocab) for _ in range(6)])


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({"top_p": 0.0}, 2),
        ({"top_p": 1e-9}, 2),
        ({"top_k": 1}, 2),
        ({"min_p": 1.0}, 2),
        ({"top_k": 2}, 2),
        ({"top_k": 3}, 4),
        ({"top_k": 5}, 5),
        ({"top_k": 6}, 6),
        ({"top_k": 7}, 6),
        ({"top_k": 2**31 - 1}, 6),
        ({"top_p": 1.0}, 6),
        ({"min_p": 1e-9}, 6),
        ({"min_p": 0.3, "top_k": 5, "top_p": 0.99}, 4),
    ],
    ids=str,
)
def test_what_may_be_drawn(limits: dict[str, float], count: int) -> None:
    """Equals of the last one kept stay; +0 and -0 are equal."""
    logits = torch.tensor([[0.0, -0.0, 1.0, 1.0, -9.0, -8.0]])
    got = assert_same(logits, [row(**limits)])
    assert int((logits >= got.floors[0]).sum()) == count


def test_the_floor_is_a_logit_of_the_row_exactly() -> None:
    """More equals than a search holds, so that passes over the row find it; one token lies a unit below them."""
    logits = torch.ones(1, KEPT + 8)
    logits[0, 5] = torch.nextafter(torch.tensor(1.0), torch.tensor(0.0))
    assert assert_same(logits, [row(top_k=KEPT + 7)]).floors.tolist() == [1.0]


def test_the_first_of_equal_scores_is_drawn() -> None:
    """Beside so large a logit no noise is seen. The two lie at the same place of two tiles."""
    logits = torch.zeros(1, 2 * TILE)
    logits[0, [7, 7 + TILE]] = 1e20
    assert draw_tokens(logits, draw_params([row(top_k=2)])).ids.tolist() == [7]


def test_presence_is_of_what_was_generated() -> None:
    seen = TokenCounts([3, 4])
    seen.add([4])
    logits = torch.zeros(1, 8)
    edit_logits(logits, logit_edits([row(seen=seen, presence_penalty=2.0)]))
    assert logits.tolist() == [[0, 0, 0, 0, -2, 0, 0, 0]]


def test_edits_of_logits() -> None:
    vocab = 70
    rows = []
    for _ in range(16):
        seen = TokenCounts(RANDOM.integers(vocab, size=9).tolist())
        seen.add(RANDOM.integers(vocab, size=6).tolist())
        biased = RANDOM.permutation(vocab)[:5].tolist()
        rows.append(
            random_limits(
                vocab,
                bias=some([None, LogitBias.of((token, float(RANDOM.normal() * 4)) for token in biased)]),
                seen=some([None, seen]),
                banned=frozenset(some([[], RANDOM.integers(vocab, size=3).tolist()])),
                repetition_penalty=some([1.0, 0.6, 1.3]),
                presence_penalty=some([0.0, -1.5]),
                frequency_penalty=some([0.0, 0.7]),
            )
        )
    # One token in all three lists: each edit sees what the one before it left.
    everything = {"bias": LogitBias.of([(3, 50.0)]), "seen": TokenCounts([3]), "repetition_penalty": 100.0}
    rows += [random_row(**everything), random_row(**everything, banned=frozenset([3])), random_row()]
    rows.append(random_row(**everything | {"repetition_penalty": 0.0}))  # the logit ends at the greatest there is
    assert_same(3 * torch.randn(len(rows), vocab), rows)


def test_more_edits_than_one_block_of_them() -> None:
    vocab = 1500
    one = random_row(bias=LogitBias.of((token, 5.0 if token == 1400 else -5.0) for token in range(vocab - 3)))
    assert assert_same(torch.zeros(1, vocab), [one]).floors[0] == -math.inf


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, about infinities
def test_rows_that_cannot_be_drawn_are_reported_alone() -> None:
    logits = torch.randn(9, 20)
    logits[1, 19], logits[2, 0], logits[3, 4], logits[4] = math.nan, math.inf, -math.inf, math.nan
    logits[8, 6] = math.inf
    rows = [row(top_k=3), row(top_k=3), row(top_p=0.5), row(), row(temperature=0.0)]
    rows += [
        row(banned=frozenset(range(20))),
        row(bias=LogitBias.of([(20, 1.0)])),
        row(banned=frozenset([-1, 2])),
        row(seen=TokenCounts([6]), banned=frozenset([6])),  # what is overwritten was broken before
    ]
    before = logits[0].clone()
    got = draw_tokens(logits, draw_params(rows), logit_edits(rows))
    assert got.faults.tolist() == [0, *[NOT_FINITE] * 4, ALL_BANNED, OUTSIDE, OUTSIDE, NOT_FINITE]
    assert ((got.ids >= 0) & (got.ids < 20)).all()
    assert torch.equal(logits[0], before)
    assert_same(logits[:1], rows[:1])


def test_a_bias_is_no_ban() -> None:
    away = row(bias=LogitBias.of((token, -100.0) for token in range(12)), top_p=0.5)
    assert assert_same(torch.randn(1, 12), [away]).faults.tolist() == [0]


def test_alternatives_are_the_engine_s() -> None:
    rows = [row(logprobs=None), row(logprobs=3, top_k=2, banned=frozenset([4])), row(logprobs=1, temperature=0.0)]
    rows.append(row(logprobs=3, temperature=0.4, top_p=0.6))
    logits = torch.randn(4, 30)
    expected = sample(logits, rows).logprobs
    sampler = DeviceSampler(Staging(torch.device("cpu")), draw_tokens)
    found = sampler.landing(logits, sampler.draw(logits, rows), rows).result().logprobs
    assert (found[0], len(found)) == (None, 4)
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert one is not None
        assert other is not None
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]
        assert [value for _, value in one.top] == pytest.approx([value for _, value in other.top], abs=1e-5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, about the noise
def test_a_loud_neighbour_changes_nothing() -> None:
    logits, rows = torch.randn(3, 400), [random_row(top_k=20), random_row(top_p=0.8, top_k=90), random_row(min_p=0.1)]
    alone = draw_tokens(logits[1:2], draw_params(rows[1:2]))
    logits[0], logits[2] = 1e30, math.nan
    company = draw_tokens(logits, draw_params(rows))
    for name in ("ids", "logprobs", "floors", "totals", "faults"):
        assert torch.equal(getattr(company, name)[1:2], getattr(alone, name))


def test_no_rows() -> None:
    assert draw_tokens(torch.empty(0, 8), draw_params([]), logit_edits([])).ids.shape == (0,)


def test_logits_beyond_two_to_the_31_elements() -> None:
    stride = 2**30 + 64  # fits in 32 bits, as two of it do not
    logits = sparse(2 * stride + 64).as_strided((3, 64), (stride, 1))
    logits.copy_(torch.randn(3, 64))
    rows = [random_row(top_k=5), random_row(), random_row(top_k=5)]
    near, far = (draw_tokens(each, draw_params(rows)) for each in (logits.float(), logits))
    assert torch.equal(near.ids, far.ids)
    assert torch.equal(near.logprobs, far.logprobs)


@triton.jit
def _noise_kernel(out_ptr, keys_ptr, seed_ptr, choice_ptr, position_ptr, N: tl.constexpr) -> None:
    low, high = key_of(tl.load(seed_ptr), tl.load(choice_ptr), tl.load(position_ptr))
    tl.store(keys_ptr, low.to(tl.int32, bitcast=True))
    tl.store(keys_ptr + 1, high.to(tl.int32, bitcast=True))
    tokens = tl.arange(0, N)
    tl.store(out_ptr + tokens, noise_of(low, high, tokens))


def noise_and_keys(one: SampleParams, count: int) -> tuple[Tensor, Tensor]:
    params = draw_params([one])
    out, keys = torch.empty(count), torch.empty(2, dtype=torch.int32)
    _noise_kernel[(1,)](out, keys, params.seed, params.choice, params.position, N=count)
    return out, keys


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_the_noise_is_the_engine_s(seed: int) -> None:
    count = 1 << 17
    one = row(seed=seed, choice=5, position=2**40)
    out, keys = noise_and_keys(one, count)
    expected = noise_keys([one], torch.device("cpu"))
    assert torch.equal(keys, expected[0])
    noise = exponential(expected, torch.arange(count, dtype=torch.int32).unsqueeze(0)).log_()
    torch.testing.assert_close(out, noise[0], rtol=1e-6, atol=3e-7)
    key = int(np.array(expected[0].numpy()).view(np.uint64)[0])
    torch.testing.assert_close(out.double(), reference_sampling.noise(key, count), rtol=1e-6, atol=3e-7)


def test_the_greatest_hash_gives_noise_too() -> None:
    """Token 943 of these counters has the hash 2^31 - 1, which is 1 as a float32, and the noise of 1 is infinite."""
    one = row(seed=0, choice=0, position=37218)
    out, _ = noise_and_keys(one, 1024)
    keys = noise_keys([one], torch.device("cpu"))
    expected = exponential(keys, torch.tensor([[943]], dtype=torch.int32)).log_()
    assert out[943].item() == pytest.approx(math.log(24 * math.log(2)))
    assert out[943].item() == pytest.approx(expected.item())
