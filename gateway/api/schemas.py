"""The bodies of requests, field for field as OpenAI documents them.

Decoding checks types; `gateway.api.parse` and `ranges` check the rest; `gateway.api.policy` says what each field does.
A field that is not listed is refused by its name. Fields of type Raw are not decoded here.
"""

import msgspec

NULL = msgspec.Raw(b"null")


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class Part(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None


class Message(msgspec.Struct, frozen=True):
    """Unknown fields are skipped: clients send back our own answers, which carry more than is read here."""

    role: str
    content: str | list[Part] | msgspec.UnsetType | None = msgspec.UNSET
    tool_calls: msgspec.Raw = NULL
    function_call: msgspec.Raw = NULL


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What both endpoints take."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: int | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    # Extensions, as vLLM and SGLang name them.
    ignore_eos: bool | None = None  # go on to max_tokens
    min_tokens: int | None = None  # end-of-sequence and stop tokens are banned until then
    stop_token_ids: list[int] | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    # Accepted without effect.
    user: str | None = None
    metadata: msgspec.Raw = NULL
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    # Refused unless neutral.
    response_format: msgspec.Raw = NULL


class ChatBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    # Accepted without effect.
    parallel_tool_calls: bool | None = None
    prompt_cache_options: msgspec.Raw = NULL

    # Refused unless neutral.
    tools: msgspec.Raw = NULL
    tool_choice: msgspec.Raw = NULL
    functions: msgspec.Raw = NULL
    function_call: msgspec.Raw = NULL
    modalities: msgspec.Raw = NULL
    audio: msgspec.Raw = NULL
    prediction: msgspec.Raw = NULL
    web_search_options: msgspec.Raw = NULL
    reasoning_effort: msgspec.Raw = NULL
    verbosity: msgspec.Raw = NULL
    moderation: msgspec.Raw = NULL
    store: msgspec.Raw = NULL


class CompletionBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    best_of: int | None = None  # only as many as n

    # Refused unless neutral.
    echo: msgspec.Raw = NULL
    suffix: msgspec.Raw = NULL


class LenientChatBody(ChatBody, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """For tenants with the flag `ignore_unknown_fields`."""


class LenientCompletionBody(CompletionBody, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """For tenants with the flag `ignore_unknown_fields`."""
