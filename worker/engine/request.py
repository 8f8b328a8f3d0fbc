"""The requests that the engine takes, as plain values: the link reads them off the wire."""

from dataclasses import dataclass
from functools import cached_property

from worker.engine.batch import LogitBias
from worker.engine.errors import InvalidRequest


@dataclass(frozen=True, kw_only=True)  # no slots: two properties are cached
class SamplingParams:
    """How each choice of a request is sampled, and where it ends."""

    max_tokens: int  # per choice
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    seed: int = 0  # 64 bits
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added to the logit)
    logprobs: int | None = None  # alternatives per token; 0 = the chosen one only; None = off
    top_k: int = 0  # 0 is off
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0  # above 0
    min_tokens: int = 0  # before which no token and no stop string ends the text
    stop_token_ids: tuple[int, ...] = ()  # they end the text as an end-of-sequence token does

    @cached_property
    def bias(self) -> LogitBias | None:
        return LogitBias.of(self.logit_bias) if self.logit_bias else None

    @cached_property
    def penalises(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty) or self.repetition_penalty != 1


@dataclass(slots=True, frozen=True, kw_only=True)
class EngineRequest:
    """One attempt at one request. Choice `c` continues prompt `c // n`; there are `len(prompts) * n`."""

    id: str
    prompts: tuple[list[int] | tuple[int, ...], ...]
    n: int
    sampling: SamplingParams
    tier: int  # 0 is the most urgent
    tenant: str
    salt: bytes  # the start of the tenant's hash chains


def check_request(request: EngineRequest, vocab_size: int) -> None:
    """Raises InvalidRequest. Token ids are checked here because an id out of range would be a wild index on the device,
    which ends the process and not just the request.
    """
    sampling = request.sampling
    if not request.prompts or request.n < 1 or sampling.max_tokens < 1:
        raise InvalidRequest("A request needs a prompt, n of at least 1 and max_tokens of at least 1.")
    if "" in sampling.stop:
        raise InvalidRequest("A stop string must not be empty.")
    for prompt in request.prompts:
        if not prompt:
            raise InvalidRequest("A prompt must have at least one token.")
        if min(prompt) < 0 or max(prompt) >= vocab_size:
            raise InvalidRequest(f"A prompt has token ids outside 0 to {vocab_size - 1}.")
    if any(not 0 <= token < vocab_size for token, _ in sampling.logit_bias):
        raise InvalidRequest(f"logit_bias has token ids outside 0 to {vocab_size - 1}.")
    if any(not 0 <= token < vocab_size for token in sampling.stop_token_ids):
        raise InvalidRequest(f"stop_token_ids has token ids outside 0 to {vocab_size - 1}.")
