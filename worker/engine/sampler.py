"""Turns each row of logits into one token. Stateless: a draw depends on its own row and on (seed, choice, position)
alone.

Order: bias, penalties, bans (`logits.py`); temperature; min_p, top_k, top_p (`truncation.py`); draw. The draw is
Gumbel-max with counter-based noise (`noise.py`), so a request gives the same tokens in any batch, after preemption and
on another worker, as far as its logits are the same, and a small change of the logits rarely changes the token.
Temperatures below TEMPERATURE_MIN mean arg max: dividing by them would overflow, and the most likely token wins anyway.

A batch is sampled in slices of rows whose intermediate tensors fit the processor's cache and whose memory is bounded.
No row affects another, neither by its values nor by its faults. A slice that raises is sampled again in halves, until
the row that raises is alone and is reported.
"""

import math

import torch
from torch import Tensor

from kernels.sampling import TEMPERATURE_MIN
from worker.engine.batch import Sampled, SampleParams
from worker.engine.logits import process
from worker.engine.logprobs import logprobs_of
from worker.engine.noise import exponential, noise_keys
from worker.engine.truncation import CANDIDATES, Limits, floors_of, floors_of_wide, log_total, truncates

SLICE_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 24}
ROWS_FEW = 4
NOT_FINITE = "its logits are not finite"
ALL_BANNED = "every token is banned"


@torch.inference_mode()
def sample(logits: Tensor, params: list[SampleParams]) -> Sampled:
    """logits: [samples, vocab] float32, one row per entry of `params`; not changed.

    A row with NaN or infinity, without a token that may be drawn, or whose parameters raise gets an entry in `errors`
    and a meaningless id. Other rows are not affected.
    """
    step = max(1, SLICE_ELEMENTS[logits.device.type] // logits.shape[1])
    return _joined([_contain(logits[at : at + step], params[at : at + step]) for at in range(0, len(params), step)])


def _contain(logits: Tensor, params: list[SampleParams]) -> Sampled:
    """`_sample`, with an error that one row raises confined to that row."""
    try:
        return _sample(logits, params)
    except Exception as error:  # noqa: BLE001 - whatever one request's parameters raise ends that request alone
        if len(params) == 1:
            return Sampled([0], [None], {0: f"{type(error).__name__} in the sampler"})
    half = len(params) // 2
    return _joined([_contain(logits[:half], params[:half]), _contain(logits[half:], params[half:])])


def _joined(parts: list[Sampled]) -> Sampled:
    whole = Sampled([], [])
    for part in parts:
        whole.errors |= {len(whole.ids) + row: error for row, error in part.errors.items()}
        whole.ids += part.ids
        whole.logprobs += part.logprobs
    return whole


def _sample(logits: Tensor, params: list[SampleParams]) -> Sampled:
    sums = _sums(logits)  # one NaN or infinity makes it so; cheaper than a test per element
    processed = process(logits, params)
    drawn = [row for row, p in enumerate(params) if p.temperature >= TEMPERATURE_MIN]
    scaled = processed / _temperatures(params, logits.device) if drawn else processed
    floors = torch.full((len(params), 1), -math.inf, device=logits.device)
    ids = torch.zeros(len(params), dtype=torch.int64, device=logits.device)
    if len(drawn) < len(params):
        ids = _argmax(scaled)
    if whole := [row for row in drawn if not truncates(params[row])]:
        ids[whole] = _draw(_rows(scaled, whole), noise_keys([params[row] for row in whole], logits.device))
    if cut := [row for row in drawn if truncates(params[row])]:
        ids[cut], floors[cut] = _draw_truncated(_rows(scaled, cut), [params[row] for row in cut])
    errors = {row: NOT_FINITE for row, total in enumerate(sums.tolist()) if not math.isfinite(total)}
    if any(p.banned for p in params):
        best = processed.gather(1, ids.unsqueeze(1)).squeeze(1)
        errors = {row: ALL_BANNED for row, value in enumerate(best.tolist()) if value == -math.inf} | errors
    return Sampled(ids.tolist(), logprobs_of(scaled, floors, ids, params), errors)


def _temperatures(params: list[SampleParams], device: torch.device) -> Tensor:
    """[rows, 1] the divisors of the logits: 1 for arg max."""
    values = [p.temperature if p.temperature >= TEMPERATURE_MIN else 1.0 for p in params]
    return torch.tensor(values, device=device).unsqueeze(1)


def _rows(values: Tensor, rows: list[int]) -> Tensor:
    return values if len(rows) == len(values) else values[rows]


def _sums(values: Tensor) -> Tensor:
    """[rows]. Of few rows on a CPU by numpy: torch wakes its threads for it, which takes longer than the sums."""
    if values.device.type == "cpu" and len(values) <= ROWS_FEW:
        return torch.from_numpy(values.numpy().sum(-1))
    return values.sum(-1)


def _argmax(values: Tensor) -> Tensor:
    """[rows] int64. On a CPU by numpy, which is four to ten times as fast at it as torch."""
    if values.device.type == "cpu":
        return torch.from_numpy(values.numpy().argmax(-1))
    return values.argmax(-1)


def _draw(scaled: Tensor, keys: Tensor) -> Tensor:
    """[rows] int64, from softmax(scaled)."""
    vocabulary = torch.arange(scaled.shape[1], dtype=torch.int32, device=scaled.device).unsqueeze(0)
    noise = exponential(keys, vocabulary).log_()
    return _argmax(torch.sub(scaled, noise, out=noise))


def _draw_truncated(scaled: Tensor, params: list[SampleParams]) -> tuple[Tensor, Tensor]:
    """[rows] int64, from softmax(scaled) truncated by the limits; and [rows, 1] the least logits kept."""
    keys = noise_keys(params, scaled.device)
    limits = Limits.of(params, scaled.shape[1], scaled.device)
    top = scaled.topk(min(CANDIDATES, scaled.shape[1]))
    totals = log_total(scaled, top.indices[:, :1])
    floors, complete = floors_of(top.values, totals, limits)
    noise = exponential(keys, top.indices.int()).log_()
    best = torch.where(top.values < floors, -math.inf, top.values - noise).argmax(-1, keepdim=True)
    ids = top.indices.gather(1, best).squeeze(1)
    wide = (~complete).nonzero().squeeze(1)
    if len(wide):
        values = scaled[wide]
        kept = floors_of_wide(values, totals[wide], limits.of_rows(wide))
        ids[wide] = _draw(torch.where(values < kept, -math.inf, values), keys[wide])
        floors[wide] = kept
    return ids, floors
