"""The cost of tokens, exactly: whole micro-units in and out, without floating point.

Pure. The one rounding rule: the cost of an event is the exact sum of its three products, tokens times micro-units per
million tokens, rounded once, half up, to a whole micro-unit. So a bill is off by at most half a micro-unit an event, in
either direction. Which price applies is not decided here (`prices_at` in the schema).
"""

import uuid
from typing import Final

import msgspec

PER: Final = 1_000_000  # tokens that a price is for


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Micro-units per million tokens, `0 <= cached_input_upm <= input_upm`."""

    id: uuid.UUID
    input_upm: int
    cached_input_upm: int
    output_upm: int


def cost_micro(price: Price, prompt: int, cached: int, completion: int) -> int:
    """What an event costs. `cached` of the `prompt` tokens are priced apart, and only once."""
    assert 0 <= cached <= prompt, "cached tokens are prompt tokens"
    assert completion >= 0, "tokens are counted"
    exact = (prompt - cached) * price.input_upm + cached * price.cached_input_upm + completion * price.output_upm
    return (exact + PER // 2) // PER
