"""The arithmetic of money: exact, rounded once, half up."""

import uuid
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.ledger.pricing import Price, cost_micro
from gateway.ledger.rows import BIGINT_MAX, TOKENS_MAX

UPM_MAX = 10**12
tokens = st.integers(0, TOKENS_MAX)
micros = st.integers(0, UPM_MAX)


def price(*, prompt: int, cached: int, completion: int) -> Price:
    return Price(id=uuid.UUID(int=0), input_upm=prompt, cached_input_upm=cached, output_upm=completion)


@st.composite
def prices(draw: st.DrawFn) -> Price:
    prompt = draw(micros)
    return price(prompt=prompt, cached=draw(st.integers(0, prompt)), completion=draw(micros))


@st.composite
def usage(draw: st.DrawFn) -> tuple[int, int, int]:
    """Prompt, cached and completion tokens."""
    prompt = draw(tokens)
    return prompt, draw(st.integers(0, prompt)), draw(tokens)


def exact(one: Price, prompt: int, cached: int, completion: int) -> Fraction:
    """The cost without any rounding, from the uncached and the cached part of the prompt apart."""
    parts = ((prompt - cached, one.input_upm), (cached, one.cached_input_upm), (completion, one.output_upm))
    return sum((Fraction(count * upm, 1_000_000) for count, upm in parts), Fraction())


@pytest.mark.parametrize(
    ("upm", "count", "cost"),
    [
        (150_000, 3, 0),  # 0.45
        (250_000, 2, 1),  # 0.5 goes up
        (250_000, 6, 2),  # 1.5 too
        (1, 499_999, 0),
        (1, 500_000, 1),
        (1_000_000, 7, 7),
        (0, 7, 0),
    ],
)
def test_half_a_micro_unit_goes_up(upm: int, count: int, cost: int) -> None:
    assert cost_micro(price(prompt=upm, cached=0, completion=0), count, 0, 0) == cost
    assert cost_micro(price(prompt=0, cached=0, completion=upm), 0, 0, count) == cost
    assert cost_micro(price(prompt=upm, cached=upm, completion=0), count, count, 0) == cost


def test_a_cached_token_is_priced_as_cached_and_not_as_input_too() -> None:
    assert cost_micro(price(prompt=2_000_000, cached=500_000, completion=8_000_000), 1_000, 600, 50) == 800 + 300 + 400


@settings(max_examples=200)
@given(prices(), usage())
def test_it_is_the_exact_cost_to_within_half_a_micro_unit_and_fits_its_column(
    one: Price, used: tuple[int, int, int]
) -> None:
    cost = cost_micro(one, *used)
    assert Fraction(-1, 2) <= exact(one, *used) - cost < Fraction(1, 2)
    assert 0 <= cost <= BIGINT_MAX


@settings(max_examples=200)
@given(prices(), usage(), st.data())
def test_more_cached_never_costs_more(one: Price, used: tuple[int, int, int], data: st.DataObject) -> None:
    prompt, cached, completion = used
    fewer = data.draw(st.integers(0, cached))
    assert cost_micro(one, prompt, cached, completion) <= cost_micro(one, prompt, fewer, completion)


@settings(max_examples=200)
@given(prices(), usage(), usage())
def test_parts_add_up_to_the_whole_but_for_one_rounding(
    one: Price, first: tuple[int, int, int], second: tuple[int, int, int]
) -> None:
    whole = cost_micro(one, *(a + b for a, b in zip(first, second, strict=True)))
    assert abs(cost_micro(one, *first) + cost_micro(one, *second) - whole) <= 1


def test_more_cached_tokens_than_prompt_tokens_have_no_cost() -> None:
    with pytest.raises(AssertionError):
        cost_micro(price(prompt=1, cached=1, completion=1), 1, 2, 0)
