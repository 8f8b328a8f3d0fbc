"""From a decoded body to a `Generation`: every range that can be checked without a model.

Every refusal is an InvalidRequest that names the field in `param`.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.admission.generation import Generation, Turn
from gateway.api.schemas import NEUTRAL, NULL, Body, ChatBody, CompletionBody, Message
from gateway.errors import InvalidRequest

CHOICES_MAX = 128  # prompts x n
MESSAGES_MAX = 2_048
STOPS_MAX = 4
STOP_CHARS_MAX = 512
BIASES_MAX = 1_024
TEMPERATURE_MAX = 2.0
BIAS_MAX = 100.0
CHAT_LOGPROBS_MAX = 20
COMPLETION_LOGPROBS_MAX = 5
SEED_MIN, SEED_MAX = -(2**63), 2**64 - 1

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def chat(body: ChatBody) -> Generation:
    if not body.messages:
        raise InvalidRequest("messages must not be empty.", param="messages")
    if len(body.messages) > MESSAGES_MAX:
        raise InvalidRequest(f"messages has more than {MESSAGES_MAX} entries.", param="messages")
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true.", param="top_logprobs")
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidRequest(
            "max_tokens and max_completion_tokens differ; send one of them.", param="max_completion_tokens"
        )
    return msgspec.structs.replace(
        _common(body, choices=_n(body)),
        turns=tuple(_turn(message, f"messages[{i}]") for i, message in enumerate(body.messages)),
        max_tokens=_at_least_one(new, "max_completion_tokens") if new is not None else _at_least_one(old, "max_tokens"),
        max_tokens_param="max_tokens" if new is None else "max_completion_tokens",
        logprobs=_between(body.top_logprobs, 0, CHAT_LOGPROBS_MAX, "top_logprobs") or 0 if body.logprobs else None,
    )


def completion(body: CompletionBody) -> Generation:
    prompts = _prompts(body.prompt)
    return msgspec.structs.replace(
        _common(body, choices=len(prompts) * _n(body)),
        prompts=prompts,
        max_tokens=_at_least_one(body.max_tokens, "max_tokens"),
        logprobs=_between(body.logprobs, 0, COMPLETION_LOGPROBS_MAX, "logprobs"),
    )


def _common(body: Body, *, choices: int) -> Generation:
    _refuse_unsupported(body)
    if choices > CHOICES_MAX:
        raise InvalidRequest(f"One request may have at most {CHOICES_MAX} choices, this one has {choices}.", param="n")
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream to be true.", param="stream_options")
    temperature = _between(body.temperature, 0, TEMPERATURE_MAX, "temperature")
    top_p = _between(body.top_p, 0, 1, "top_p")
    if top_p == 0:
        raise InvalidRequest("top_p must be above 0.", param="top_p")
    return Generation(
        model=body.model,
        n=_n(body),
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        seed=_between(body.seed, SEED_MIN, SEED_MAX, "seed"),
        stop=_stop(body.stop),
        ignore_eos=bool(body.ignore_eos),
        logit_bias=_biases(body.logit_bias or {}),
    )


def _refuse_unsupported(body: Body) -> None:
    for field, neutral in NEUTRAL.items():
        raw: msgspec.Raw = getattr(body, field, NULL)
        if raw is not NULL and not _is_neutral(raw, neutral):
            raise InvalidRequest(f"{field} is not supported yet.", param=field, code="unsupported_parameter")


def _is_neutral(raw: msgspec.Raw, neutral: tuple[Any, ...]) -> bool:
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):  # a number out of range, or nested too deeply
        return False
    return value is None or any(value == same and isinstance(value, bool) == isinstance(same, bool) for same in neutral)


def _turn(message: Message, path: str) -> Turn:
    role = ROLES.get(message.role)
    if role is None:
        shown = message.role[:40]
        raise InvalidRequest(f"{path}.role is {shown!r}; it must be one of {', '.join(ROLES)}.", param=f"{path}.role")
    for field in ("tool_calls", "function_call"):
        if not _is_neutral(getattr(message, field), ([],)):
            raise InvalidRequest(f"{path}.{field} is not supported yet.", param=f"{path}.{field}")
    return Turn(role, _content(message, f"{path}.content"))


def _content(message: Message, path: str) -> str:
    content = message.content
    if content is None or isinstance(content, msgspec.UnsetType) or content == []:
        raise InvalidRequest(f"{path} is missing.", param=path)
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for i, part in enumerate(content):
        if part.type != "text":
            shown = part.type[:40]
            raise InvalidRequest(
                f"{path}[{i}] is of type {shown!r}; only text is supported.", param=f"{path}[{i}].type"
            )
        if part.text is None:
            raise InvalidRequest(f"{path}[{i}].text is missing.", param=f"{path}[{i}].text")
        texts.append(part.text)
    return "".join(texts)


def _prompts(prompt: str | list[str | int | list[int]]) -> tuple[str | list[int], ...]:
    if isinstance(prompt, str):
        return (prompt,)
    if not prompt:
        raise InvalidRequest("prompt must not be empty.", param="prompt")
    ids = [item for item in prompt if isinstance(item, int)]
    if len(ids) == len(prompt):
        return (ids,)
    several = tuple(item for item in prompt if not isinstance(item, int))
    if ids or len({type(item) for item in several}) > 1:
        raise InvalidRequest("prompt mixes texts and token ids.", param="prompt")
    return several


def _n(body: Body) -> int:
    n = 1 if body.n is None else body.n
    if not 1 <= n <= CHOICES_MAX:
        raise InvalidRequest(f"n must be between 1 and {CHOICES_MAX}.", param="n")
    return n


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    if len(stops) > STOPS_MAX:
        raise InvalidRequest(f"stop may have at most {STOPS_MAX} entries.", param="stop")
    if not all(1 <= len(text) <= STOP_CHARS_MAX for text in stops):
        raise InvalidRequest(f"Each stop text must have 1 to {STOP_CHARS_MAX} characters.", param="stop")
    return stops


def _biases(biases: dict[str, float]) -> tuple[tuple[int, float], ...]:
    if len(biases) > BIASES_MAX:
        raise InvalidRequest(f"logit_bias may have at most {BIASES_MAX} entries.", param="logit_bias")
    return tuple(dict(_bias(biases)).items())


def _bias(biases: dict[str, float]) -> Iterator[tuple[int, float]]:
    for key, bias in biases.items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise InvalidRequest("The keys of logit_bias must be token ids.", param="logit_bias")
        if not -BIAS_MAX <= bias <= BIAS_MAX:
            raise InvalidRequest(
                f"The values of logit_bias must be between -{BIAS_MAX:g} and {BIAS_MAX:g}.", param="logit_bias"
            )
        yield int(key), bias


def _at_least_one(value: int | None, param: str) -> int | None:
    if value is not None and value < 1:
        raise InvalidRequest(f"{param} must be at least 1.", param=param)
    return value


def _between(value: Any, low: float, high: float, param: str) -> Any:
    """`value` if it is None or in [low, high]; NaN is in no range."""
    if value is not None and not low <= value <= high:
        raise InvalidRequest(f"{param} must be between {low:g} and {high:g}.", param=param)
    return value
