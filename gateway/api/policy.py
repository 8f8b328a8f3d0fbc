"""Whether each documented field of both endpoints is honoured, ignored or refused. The one place that says so.

`gateway.api.parse` takes its refusals from here, and docs/api.md shows the same table; tests compare both, and the
fields of `gateway.api.schemas`, with it. Null always means the same as leaving the field out.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal

from gateway.errors import InvalidRequest

Verdict = Literal["honour", "ignore", "refuse"]


@dataclass(slots=True, frozen=True)
class Policy:
    verdict: Verdict
    note: str
    neutral: tuple[
        Any, ...
    ] = ()  # of a refused field: values that only ask for the default behaviour, and are accepted


def _honour(note: str) -> Policy:
    return Policy("honour", note)


def _ignore(note: str) -> Policy:
    return Policy("ignore", note)


def _refuse(note: str, *neutral: Any) -> Policy:
    return Policy("refuse", note, neutral)


SHARED: Final[dict[str, Policy]] = {
    "model": _honour("a name from `/v1/models`"),
    "max_tokens": _honour("1 to the context, else 400; cut to the room that the prompt leaves"),
    "temperature": _honour("0 to 2; 0 takes the most likely token"),
    "top_p": _honour("0 to 1; 0 takes the most likely token"),
    "n": _honour("1 to 128, prompts counted; each choice is reserved"),
    "stop": _honour(
        "a text or up to 4, each of 1 to 512 characters; not part of the answer. The one that ends first counts, and of"
        " two that end together the first in the list"
    ),
    "stream": _honour("server-sent events"),
    "stream_options": _honour("`include_usage`, with `stream` alone"),
    "seed": _honour(
        "64 bits; the same seed draws the same tokens, in any batch; where products are rounded (bf16, the default on"
        " CPUs) a token may differ after a preemption or on a cached prefix"
    ),
    "logit_bias": _honour("-100 to 100 by token id, up to 1,024 of them"),
    "presence_penalty": _honour("-2 to 2"),
    "frequency_penalty": _honour("-2 to 2"),
    "top_k": _honour("an extension; 0 and -1 are off"),
    "min_p": _honour("an extension; 0 to 1"),
    "repetition_penalty": _honour("an extension; above 0, at most 2"),
    "min_tokens": _honour("an extension; no end before so many tokens"),
    "stop_token_ids": _honour("an extension; up to 64"),
    "ignore_eos": _honour("an extension; goes on to `max_tokens`"),
    "user": _ignore("the key says who pays"),
    "metadata": _ignore("nothing is stored"),
    "service_tier": _ignore("the tier is the plan's"),
    "safety_identifier": _ignore("the key says who pays"),
    "prompt_cache_key": _ignore("prompts that begin alike share their work without it"),
    "prompt_cache_retention": _ignore("the cache keeps what is used"),
    "response_format": _refuse("answers are free text, structured output comes later", {"type": "text"}),
}

CHAT: Final[dict[str, Policy]] = {
    "messages": _honour("texts, or parts of type `text`; `developer` is `system`; up to 2,048"),
    **SHARED,
    "max_completion_tokens": _honour("the newer name of `max_tokens`; both must agree"),
    "logprobs": _honour("of the distribution that tokens are drawn from"),
    "top_logprobs": _honour("0 to 20, with `logprobs` alone"),
    "parallel_tool_calls": _ignore("there are no tools"),
    "prompt_cache_options": _ignore("prompts that begin alike share their work without them"),
    "tools": _refuse("models call no tools here", []),
    "tool_choice": _refuse("models call no tools here", "none", "auto"),
    "functions": _refuse("models call no functions here", []),
    "function_call": _refuse("models call no functions here", "none", "auto"),
    "modalities": _refuse("text is the only one", ["text"]),
    "audio": _refuse("answers are text"),
    "prediction": _refuse("answers are computed from the prompt alone"),
    "web_search_options": _refuse("models do not search"),
    "reasoning_effort": _refuse("models answer without reasoning apart", "none"),
    "verbosity": _refuse("ask for it in the prompt", "medium"),
    "moderation": _refuse("texts are not moderated"),
    "store": _refuse("answers are not stored", False),
}

COMPLETION: Final[dict[str, Policy]] = {
    "prompt": _honour("a text, token ids, or a list of either"),
    **SHARED,
    "logprobs": _honour("0 to 5, of the distribution that tokens are drawn from"),
    "best_of": _refuse("every choice is returned, so it must equal n"),
    "echo": _refuse("answers do not begin with the prompt", False),
    "suffix": _refuse("models write on, not in between", ""),
}

REFUSED: Final = {field: policy for field, policy in {**COMPLETION, **CHAT}.items() if policy.verdict == "refuse"}


def refusal(field: str) -> InvalidRequest:
    """The error for a refused field whose value is not neutral."""
    message = f"{field} is not supported yet: {REFUSED[field].note}."
    return InvalidRequest(message, param=field, code="unsupported_parameter")
