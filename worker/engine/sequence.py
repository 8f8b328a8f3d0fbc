"""One choice of one request while it runs: its tokens, how many of them are computed, and its blocks.

    |<------------------ tokens ------------------>|
    | prompt                    | output           |
    | in the KV pool: num_computed |    the gap    |

The scheduler only ever closes the gap. After a preemption nothing is computed and the whole is like a prompt.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from worker.engine.batch import SampleParams
from worker.engine.blocks import BlockTable
from worker.engine.detokenize import Detokenizer
from worker.engine.request import SamplingParams
from worker.engine.token_counts import TokenCounts


class Status(Enum):
    WAITING = auto()  # holds no block; perhaps preempted
    RUNNING = auto()  # holds the blocks of all its tokens
    FINISHED = auto()  # holds no block, and never will again


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    request: str
    choice: int
    tier: int
    arrival: int  # unique, in the order of arrival
    tokens: list[int]  # prompt and output
    prompt_len: int
    tokens_max: int  # with so many tokens the sequence has its full length
    sampling: SamplingParams
    table: BlockTable
    ends: frozenset[int] = frozenset()  # tokens that end the text
    text: Detokenizer = field(default_factory=Detokenizer)
    seen: TokenCounts | None = None  # from the first draw on, if there are penalties
    status: Status = Status.WAITING
    num_computed: int = 0
    started: bool = False  # has been in a step

    @property
    def urgency(self) -> tuple[int, int]:
        """The smaller, the sooner served. Never changes, so that a preempted sequence gets its old place back."""
        return (self.tier, self.arrival)

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.prompt_len

    def next_sample(self) -> SampleParams:
        """How the token after the last one is drawn."""
        sampling = self.sampling
        return SampleParams(
            sampling.temperature,
            sampling.top_p,
            sampling.seed,
            self.choice,
            len(self.tokens),
            sampling.bias,
            sampling.logprobs,
            sampling.top_k,
            sampling.min_p,
            sampling.repetition_penalty,
            sampling.presence_penalty,
            sampling.frequency_penalty,
            self._count_seen() if sampling.penalises else None,
            self.ends if self.num_generated < sampling.min_tokens else frozenset(),
        )

    def _count_seen(self) -> TokenCounts:
        if self.seen is None:
            self.seen = TokenCounts(self.tokens[: self.prompt_len])
        self.seen.add(self.tokens[self.seen.length :])
        return self.seen
