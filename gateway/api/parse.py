"""From a decoded body to a `Generation`: checks every range that can be checked without a model.

Every refusal is an InvalidRequest that names the field in `param`.
"""

from typing import Any

import msgspec

from gateway.admission.generation import Generation, Turn
from gateway.api import policy, ranges
from gateway.api.schemas import NULL, Body, ChatBody, CompletionBody, Message
from gateway.errors import InvalidRequest

MESSAGES_MAX = 2_048

TOOL_ROLES = ("tool", "function")
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
        _common(body),
        turns=tuple(_turn(message, f"messages[{i}]") for i, message in enumerate(body.messages)),
        max_tokens=ranges.at_least_one(new, "max_completion_tokens")
        if new is not None
        else ranges.at_least_one(old, "max_tokens"),
        max_tokens_param="max_tokens" if new is None else "max_completion_tokens",
        logprobs=ranges.between(body.top_logprobs, 0, ranges.CHAT_LOGPROBS_MAX, "top_logprobs") or 0
        if body.logprobs
        else None,
    )


def completion(body: CompletionBody) -> Generation:
    prompts = _prompts(body.prompt)
    common = _common(body, prompts=len(prompts))
    if body.best_of is not None and body.best_of != common.n:
        raise policy.refusal("best_of")
    return msgspec.structs.replace(
        common,
        prompts=prompts,
        max_tokens=ranges.at_least_one(body.max_tokens, "max_tokens"),
        logprobs=ranges.between(body.logprobs, 0, ranges.COMPLETION_LOGPROBS_MAX, "logprobs"),
    )


def _common(body: Body, *, prompts: int = 1) -> Generation:
    _refuse_unsupported(body)
    n = ranges.choices(body.n, prompts)
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream to be true.", param="stream_options")
    temperature = ranges.between(body.temperature, 0, ranges.TEMPERATURE_MAX, "temperature")
    top_p = ranges.between(body.top_p, 0, 1, "top_p")
    penalty = ranges.PENALTY_MAX
    return Generation(
        model=body.model,
        n=n,
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=ranges.top_k(body.top_k),
        min_p=ranges.between(body.min_p, 0, 1, "min_p") or 0.0,
        presence_penalty=ranges.between(body.presence_penalty, -penalty, penalty, "presence_penalty") or 0.0,
        frequency_penalty=ranges.between(body.frequency_penalty, -penalty, penalty, "frequency_penalty") or 0.0,
        repetition_penalty=ranges.repetition_penalty(body.repetition_penalty),
        seed=ranges.between(body.seed, ranges.SEED_MIN, ranges.SEED_MAX, "seed"),
        min_tokens=ranges.between(body.min_tokens, 0, ranges.MIN_TOKENS_MAX, "min_tokens") or 0,
        stop=ranges.stops(body.stop),
        stop_token_ids=ranges.stop_tokens(body.stop_token_ids),
        ignore_eos=bool(body.ignore_eos),
        logit_bias=ranges.biases(body.logit_bias),
    )


def _refuse_unsupported(body: Body) -> None:
    for field, found in policy.REFUSED.items():
        raw = getattr(body, field, NULL)
        if raw is not NULL and isinstance(raw, msgspec.Raw) and not _is_neutral(raw, found.neutral):
            raise policy.refusal(field)


def _is_neutral(raw: msgspec.Raw, neutral: tuple[Any, ...]) -> bool:
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):  # a number out of range, or nested too deeply
        return False
    return value is None or any(value == same and isinstance(value, bool) == isinstance(same, bool) for same in neutral)


def _turn(message: Message, path: str) -> Turn:
    role = ROLES.get(message.role)
    if message.role in TOOL_ROLES:
        reason = f"{path}.role: what tools answered is not supported yet."
        raise InvalidRequest(reason, param=f"{path}.role", code="unsupported_value")
    if role is None:
        shown = message.role[:40]
        raise InvalidRequest(f"{path}.role is {shown!r}; it must be one of {', '.join(ROLES)}.", param=f"{path}.role")
    for field in ("tool_calls", "function_call"):
        if not _is_neutral(getattr(message, field), ([],)):
            reason = f"{path}.{field} is not supported yet."
            raise InvalidRequest(reason, param=f"{path}.{field}", code="unsupported_parameter")
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
