"""The ranges of the numbers and lists in a body, as far as they do not depend on the model.

Null always means the default. Every refusal is an InvalidRequest that names the field in `param`.
"""

from typing import Any

from gateway.errors import InvalidRequest

CHOICES_MAX = 128  # prompts x n
STOPS_MAX = 4
STOP_CHARS_MAX = 512
STOP_TOKENS_MAX = 64
BIASES_MAX = 1_024
BIAS_MAX = 100.0
TEMPERATURE_MAX = 2.0
PENALTY_MAX = 2.0  # of presence and frequency, either way
REPETITION_PENALTY_MAX = 2.0
TOP_K_MAX = 2**31 - 1
MIN_TOKENS_MAX = 2**31 - 1
CHAT_LOGPROBS_MAX = 20
COMPLETION_LOGPROBS_MAX = 5
SEED_MIN, SEED_MAX = -(2**63), 2**64 - 1


def between(value: Any, low: float, high: float, param: str) -> Any:
    """`value` if it is None or in [low, high]; NaN is in no range."""
    if value is not None and not low <= value <= high:
        raise _invalid(f"{param} must be between {_written(low)} and {_written(high)}.", param)
    return value


def at_least_one(value: int | None, param: str) -> int | None:
    if value is not None and value < 1:
        raise _invalid(f"{param} must be at least 1.", param)
    return value


def top_k(value: int | None) -> int:
    """The value to sample with: 0, which is off, for -1 too."""
    return max(0, between(value, -1, TOP_K_MAX, "top_k") or 0)


def repetition_penalty(value: float | None) -> float:
    if value is None:
        return 1.0
    if not 0 < value <= REPETITION_PENALTY_MAX:
        raise _invalid(
            f"repetition_penalty must be above 0 and at most {REPETITION_PENALTY_MAX:g}.", "repetition_penalty"
        )
    return value


def choices(n: int | None, prompts: int = 1) -> int:
    """`n`, with a limit on the choices of all prompts together."""
    n = 1 if n is None else n
    if not 1 <= n <= CHOICES_MAX:
        raise _invalid(f"n must be between 1 and {CHOICES_MAX}.", "n")
    if prompts * n > CHOICES_MAX:
        raise _invalid(f"One request may have at most {CHOICES_MAX} choices, this one has {prompts * n}.", "n")
    return n


def stops(stop: str | list[str] | None) -> tuple[str, ...]:
    texts = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    if len(texts) > STOPS_MAX:
        raise _invalid(f"stop may have at most {STOPS_MAX} entries.", "stop")
    if not all(1 <= len(text) <= STOP_CHARS_MAX for text in texts):
        raise _invalid(f"Each stop text must have 1 to {STOP_CHARS_MAX} characters.", "stop")
    return texts


def stop_tokens(ids: list[int] | None) -> tuple[int, ...]:
    """Each once. The vocabulary's size is not known here."""
    if ids is not None and len(ids) > STOP_TOKENS_MAX:
        raise _invalid(f"stop_token_ids may have at most {STOP_TOKENS_MAX} entries.", "stop_token_ids")
    return tuple(dict.fromkeys(ids or ()))


def biases(given: dict[str, float] | None) -> tuple[tuple[int, float], ...]:
    """(token id, bias). The vocabulary's size is not known here. An id has only one spelling: `05` is refused."""
    given = given or {}
    if len(given) > BIASES_MAX:
        raise _invalid(f"logit_bias may have at most {BIASES_MAX} entries.", "logit_bias")
    for key, bias in given.items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 10 and key == str(int(key))):
            raise _invalid("The keys of logit_bias must be token ids.", "logit_bias")
        if not -BIAS_MAX <= bias <= BIAS_MAX:
            raise _invalid(f"The values of logit_bias must be between -{BIAS_MAX:g} and {BIAS_MAX:g}.", "logit_bias")
    return tuple((int(key), bias) for key, bias in given.items())


def _written(number: float) -> str:
    """Every digit of an integer, and no `.0`."""
    return str(number) if isinstance(number, int) else f"{number:g}"


def _invalid(message: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, param=param, code="invalid_value")
