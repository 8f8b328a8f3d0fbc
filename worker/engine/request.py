"""What the engine is asked for. Plain values; whoever builds them has read them off the wire."""

from dataclasses import dataclass

from worker.engine.errors import InvalidRequest


@dataclass(slots=True, frozen=True, kw_only=True)
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


@dataclass(slots=True, frozen=True, kw_only=True)
class EngineRequest:
    """One attempt at one request. Choice `c` continues prompt `c // n`; there are `len(prompts) * n`."""

    id: str
    prompts: tuple[list[int] | tuple[int, ...], ...]
    n: int
    sampling: SamplingParams
    tier: int  # 0 is the most urgent
    tenant: str
    salt: bytes  # where the tenant's hash chains start


def check_request(request: EngineRequest, vocab_size: int) -> None:
    """Raises InvalidRequest. Ids are checked here because one that is out of range would be an index on the device,
    where it kills the process and not the request.
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
