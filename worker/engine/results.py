"""The results of a step, as plain values: the link puts them on the wire."""

from dataclasses import dataclass, field
from typing import Literal

from worker.engine.pace import Work
from worker.engine.runner import RunnerBroken

Finish = Literal["stop", "length"]
RequestError = Literal["engine_error", "device_failed"]


@dataclass(slots=True, frozen=True)
class TokenLogprob:
    """Log-probabilities (nats) at one position, of the distribution that the token was drawn from."""

    id: int
    logprob: float
    text: bytes  # the token's own bytes, perhaps half a character
    top: tuple[tuple[int, float, bytes], ...]  # (token id, logprob, bytes), most likely first


@dataclass(slots=True)
class ChoiceChunk:
    """What one step added to one choice. `text` may be empty while `ids` is not: half a character, or text that may
    become a stop string. It follows later, with later ids.
    """

    request: str
    choice: int
    ids: list[int]
    text: str
    finish: Finish | None  # set on the last chunk of the choice
    logprobs: list[TokenLogprob] | None  # one per id when asked for


@dataclass(slots=True, frozen=True)
class RequestTotals:
    """The counts for the bill. Every sampled token counts, an end-of-sequence token too. A prompt counts once, whatever
    n is, and not at all while none of its sequences has started.
    """

    prompt_tokens: int
    cached_tokens: int  # of the prompt tokens: those that were in the cache before the request began
    completion_tokens: int
    preemptions: int = 0  # how often one of its sequences lost its blocks
    recomputed_tokens: int = 0  # prompt and output tokens computed again after preemptions, not billed


@dataclass(slots=True)
class RequestDone:
    """All choices have finished, or the request has failed and `error` names why."""

    request: str
    totals: RequestTotals
    error: RequestError | None = None
    message: str | None = None  # one sentence for the client


@dataclass(slots=True)
class StepResult:
    started: list[str] = field(default_factory=list[str])  # requests whose first token is computed in this step
    chunks: list[ChoiceChunk] = field(default_factory=list[ChoiceChunk])
    done: list[RequestDone] = field(default_factory=list[RequestDone])
    tokens: int = 0  # run through the model in this step
    sequences: int = 0
    preemptions: int = 0
    work: Work = field(default_factory=Work)
    failure: Exception | None = None  # what was raised: the requests that it ended are in `done`
    broken: RunnerBroken | None = None  # no more is computed: all requests are in `done`


@dataclass(slots=True, frozen=True)
class TierLoad:
    """What one tier has in the engine. A sequence that runs on its tier's floor share counts as of the most urgent
    tier, since it is not preempted.
    """

    running: int  # sequences
    waiting: int  # sequences
    held: int  # sequences that wait for another to compute the prompt that they share
    held_blocks: int  # blocks that those will need beyond the shared ones
    owed: bool  # its floor share is due: until it has that, none of its running sequences is preempted
    blocks: int  # held by its running sequences alone: what preempting all of them would free


@dataclass(slots=True, frozen=True)
class EngineStats:
    blocks_total: int  # usable ones, without the null block
    blocks_free: int  # that no sequence holds, whether or not the prefix cache remembers what they contain
    running: int  # sequences
    waiting: int  # sequences
    held: int  # sequences
    preemptions_total: int
    prompt_tokens_total: int
    generated_tokens_total: int
    cached_blocks: int  # free blocks whose content the prefix cache still has
    prefix_hits_tokens_total: int  # of the prompt tokens: those that were found in the prefix cache
    tiers: dict[int, TierLoad]
