"""The inputs and outputs of drawing tokens, as tensors on the device of the logits. No kernel here.

Implementations: `token_draw.draw_tokens` (Triton), `reference_sampling.draw_tokens` (plain, exact, slow).
Order: bias, penalties, bans; temperature; min_p, top_k, top_p, each of what the one before it left; draw. Tokens equal
to the last one kept stay in.
"""

from dataclasses import dataclass

from torch import Tensor

TEMPERATURE_MIN = 1e-3  # less is arg max: dividing by it would overflow, and the best token wins anyway
BANNED = -3.4028234663852886e38  # the least finite number: infinities are a broken model's, and a fault
LOGIT_MAX = 1e30  # a penalty keeps logits below: they can still be divided by a small temperature
PENALTY_MIN = 1e-30  # a smaller repetition penalty would be 0 in float32

# Faults of a row, of which the greatest is reported.
NOT_FINITE = 1
ALL_BANNED = 2
OUTSIDE = 3  # a list names a token outside the vocabulary


@dataclass(slots=True, frozen=True)
class TokenLists:
    """Of each row some tokens, each named once, with a number each: the entries `starts[row]` to `starts[row + 1]`.

    `ids` and `values` may be longer than what is in use, so that one buffer serves every batch.
    """

    starts: Tensor  # [rows + 1] int32
    ids: Tensor  # [entries] int32
    values: Tensor  # [entries] float32


@dataclass(slots=True, frozen=True)
class LogitEdits:
    bias: TokenLists
    seen: TokenLists  # every token of prompt and output, and how often it is in the output
    banned: TokenLists  # the values are not looked at
    repetition: Tensor  # [rows] float32, 1 is off
    presence: Tensor  # [rows] float32, 0 is off
    frequency: Tensor  # [rows] float32, 0 is off


@dataclass(slots=True, frozen=True)
class DrawParams:
    """Of each row, contiguous. What a draw is a function of, beside the logits."""

    temperature: Tensor  # [rows] float32; below 0.001 it is arg max
    top_k: Tensor  # [rows] int32; off below 1 and from the vocabulary's size on
    top_p: Tensor  # [rows] float32; 1 is off
    min_p: Tensor  # [rows] float32; 0 is off
    seed: Tensor  # [rows] int64, the bits of the unsigned number
    choice: Tensor  # [rows] int64
    position: Tensor  # [rows] int64


@dataclass(slots=True, frozen=True)
class Drawn:
    ids: Tensor  # [rows] int64; of a row with a fault, some token of the vocabulary
    logprobs: Tensor  # [rows] float32, of the distribution that the token was drawn from
    floors: Tensor  # [rows] float32: tokens whose logit / temperature is less could not be drawn
    totals: Tensor  # [rows] float32: log of the sum of exp(logit / temperature) over those that could
    faults: Tensor  # [rows] int32: 0, NOT_FINITE, ALL_BANNED or OUTSIDE
