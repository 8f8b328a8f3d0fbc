"""Rows of logits -> one token each. Stateless: a draw depends on its own row and on (seed, choice, position) alone.

The random draw is Gumbel-max with counter-based noise (a hash of seed, choice, position and token), so a request
gives the same tokens in any batch, after preemption and on another worker, as far as its logits are the same, and
a small change of the logits rarely changes the token. Works on whatever device the logits are on.

Order: logit bias, temperature, top_p, draw. Log-probabilities are of the logits as they came. Temperatures below
TEMPERATURE_MIN mean arg max: dividing by them would overflow, and the most likely token wins anyway.
"""

import math

import numpy as np
import torch
from torch import Tensor

from worker.engine.batch import Sampled, SampleParams, TokenLogprobs

TEMPERATURE_MIN = 1e-3
NUCLEUS_CANDIDATES = 1024  # sorting these suffices nearly always; otherwise the whole row is sorted
NOT_FINITE = "its logits are not finite"


@torch.inference_mode()
def sample(logits: Tensor, params: list[SampleParams]) -> Sampled:
    """logits: [samples, vocab] float32, one row per entry of `params`; may be modified.

    A row with NaN or infinity gets an entry in `errors` and a meaningless id; the others do not notice.
    """
    logprobs = _logprobs_before(logits, params)
    sums = logits.sum(-1)  # one NaN or infinity makes it so; cheaper than a test per element
    _add_bias(logits, params)
    drawn = [row for row, p in enumerate(params) if p.temperature >= TEMPERATURE_MIN]
    ids = logits.argmax(-1)
    if drawn:
        rows = torch.tensor(drawn, device=logits.device)
        ids[rows] = _draw(logits[rows], [params[row] for row in drawn])
    chosen: list[int] = ids.tolist()
    errors = {row: NOT_FINITE for row, total in enumerate(sums.tolist()) if not math.isfinite(total)}
    return Sampled(chosen, _logprobs_of(logprobs, chosen, params), errors)


def _add_bias(logits: Tensor, params: list[SampleParams]) -> None:
    for row, p in enumerate(params):
        if p.bias:
            ids, values = zip(*p.bias, strict=True)
            where = torch.tensor(ids, device=logits.device)
            logits[row].index_add_(0, where, torch.tensor(values, dtype=logits.dtype, device=logits.device))


def _draw(logits: Tensor, params: list[SampleParams]) -> Tensor:
    """Draw from softmax(logits / temperature) cut to the nucleus. Returns [rows] int64."""
    temperatures = torch.tensor([p.temperature for p in params], device=logits.device).unsqueeze(1)
    scaled = logits / temperatures
    for row, p in enumerate(params):
        if p.top_p < 1.0:
            scaled[row].masked_fill_(scaled[row] < _nucleus_floor(scaled[row], p.top_p), -math.inf)
    return (scaled - _exponential(params, logits.shape[1], logits.device).log_()).argmax(-1)


def _nucleus_floor(scaled: Tensor, top_p: float) -> Tensor:
    """The least logit among the fewest most likely tokens whose probabilities reach `top_p` (Holtzman et al.,
    2020). Ties with it stay in, so that the result does not depend on the order of a sort.
    """
    total = scaled.logsumexp(-1)
    for candidates in (min(NUCLEUS_CANDIDATES, len(scaled)), len(scaled)):
        top = scaled.topk(candidates).values
        reached = (top - total).exp_().cumsum(-1) >= top_p
        if bool(reached[-1]):
            return top[reached.int().argmax()]
    return top[-1]  # rounding kept the sum of all below top_p


def _exponential(params: list[SampleParams], vocab_size: int, device: torch.device) -> Tensor:
    """Unit-exponential noise [rows, vocab], a function of (seed, choice, position, token). -log of it is Gumbel.

    A multiply-xorshift hash (the finalizer of MurmurHash3, Appleby) of the token, keyed twice from 64 mixed bits.
    """
    keys = np.array([_key(p) for p in params], np.uint64).view(np.int32).reshape(-1, 2)
    key = torch.from_numpy(keys).to(device)
    x = torch.arange(vocab_size, dtype=torch.int32, device=device) * _int32(0x9E3779B1) ^ key[:, :1]
    x = (x ^ _shifted(x, 16)) * _int32(0x85EBCA6B) ^ key[:, 1:]
    x = (x ^ _shifted(x, 13)) * _int32(0xC2B2AE35)
    x = (x ^ _shifted(x, 16)) & 0x7FFFFFFF
    uniform = (x.float() + 0.5) * 2.0**-31
    # log1p keeps the small values (likely winners) exact; 1 itself would give infinity
    return uniform.clamp_max_(1.0 - 2.0**-24).neg_().log1p_().neg_()


def _key(p: SampleParams) -> int:
    """64 well-mixed bits of (seed, choice, position)."""
    return _splitmix(_splitmix(_splitmix(p.seed) ^ p.choice) ^ p.position)


def _splitmix(x: int) -> int:
    """The output function of SplitMix64 (Steele, Lea and Flood, 2014)."""
    mask = (1 << 64) - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
    x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
    return x ^ x >> 31


def _int32(value: int) -> int:
    return value - (1 << 32)  # all constants here have the top bit set


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Logical shift right of int32."""
    return (x >> bits) & ((1 << 32 - bits) - 1)


def _logprobs_before(logits: Tensor, params: list[SampleParams]) -> dict[int, Tensor]:
    """Log-probabilities of the rows that want them, before bias and temperature touch the logits."""
    return {row: logits[row].log_softmax(-1) for row, p in enumerate(params) if p.logprobs is not None}


def _logprobs_of(rows: dict[int, Tensor], chosen: list[int], params: list[SampleParams]) -> list[TokenLogprobs | None]:
    found: list[TokenLogprobs | None] = [None] * len(params)
    for row, values in rows.items():
        count = min(params[row].logprobs or 0, len(values))
        top = values.topk(count)
        pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        found[row] = TokenLogprobs(float(values[chosen[row]]), tuple(pairs))
    return found
