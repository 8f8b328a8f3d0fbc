"""One choice of one request while it runs: its tokens, how many of them are computed, and its blocks.

    |<------------------ tokens ------------------>|
    | prompt                    | output           |
    | in the KV pool: num_computed |    the gap    |

What a step in flight computes counts as computed, and what it samples as a token. The scheduler only ever closes the
gap. After a preemption nothing is computed and the whole is like a prompt, of which the prefix cache may still have a
part.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from worker.engine.batch import Manner
from worker.engine.blocks import NO_TABLE, BlockTable
from worker.engine.detokenize import Detokenizer
from worker.engine.prefix import Chain
from worker.engine.request import SamplingParams
from worker.engine.token_counts import TokenCounts

_NONE = frozenset[int]()


class Status(Enum):
    HELD = auto()  # waits for another choice to compute the prompt that they share
    WAITING = auto()  # holds no block; perhaps preempted
    RUNNING = auto()  # holds the blocks of all its tokens
    FINISHED = auto()  # holds no block, and never will again


@dataclass(slots=True, eq=False)
class Account:
    """Whom the service charges: one object for each tier and tenant that has requests here."""

    tier: int
    tenant: str
    requests: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    request: str
    choice: int
    account: Account
    arrival: int  # unique, in the order of arrival
    tokens: list[int]  # prompt and output; a token in flight is `~row` of its step, which is negative
    prompt_len: int
    tokens_max: int  # the full length of the sequence
    sampling: SamplingParams
    chain: Chain
    table: BlockTable = NO_TABLE
    ends: frozenset[int] = frozenset()  # tokens that end the text
    text: Detokenizer = field(default_factory=Detokenizer)
    seen: TokenCounts | None = None  # if there are penalties
    manner: Manner = ()  # of all its further draws, once it cannot change any more
    status: Status = Status.WAITING
    rank: int = 0  # while it runs: the tier that it runs as, its own or, on the floor share, the most urgent
    turn: int = 0  # while it runs: unique, in the order of admission
    preemptions: int = 0
    reached: int = 0  # the most tokens that were computed when it was preempted

    @property
    def tier(self) -> int:
        return self.account.tier

    @property
    def tenant(self) -> str:
        return self.account.tenant

    @property
    def num_computed(self) -> int:
        return self.table.computed

    @property
    def gap(self) -> int:
        return len(self.tokens) - self.num_computed

    @property
    def unpaid(self) -> int:
        """Tokens of its prompt that its tenant has yet to be charged for; 0 if it was preempted, since some were
        charged then.
        """
        return 0 if self.preemptions else max(self.prompt_len - self.num_computed, 0)

    @property
    def decodes(self) -> bool:
        """Whether it lacks only K and V of its last token, which it has sampled itself."""
        return self.num_computed == len(self.tokens) - 1 >= self.prompt_len

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def in_flight(self) -> bool:
        """Whether its last token is still in flight."""
        return self.tokens[-1] < 0

    def forget_flight(self) -> None:
        """Drop the tokens in flight: the sequence has ended, and nobody gets them."""
        while self.tokens[-1] < 0:
            self.tokens.pop()

    def next_manner(self) -> Manner:
        """How the next token is drawn, while `manner` is not set."""
        sampling = self.sampling
        banned = self.ends if self.num_generated < sampling.min_tokens else _NONE
        manner: Manner = (
            sampling.temperature,
            sampling.top_p,
            sampling.seed,
            self.choice,
            sampling.bias,
            sampling.logprobs,
            sampling.top_k,
            sampling.min_p,
            sampling.repetition_penalty,
            sampling.presence_penalty,
            sampling.frequency_penalty,
            self._count_seen(),
            banned,
        )
        if not banned and self.seen is None:
            self.manner = manner
        return manner

    def _count_seen(self) -> TokenCounts | None:
        if self.seen is not None:
            self.seen.add(self.tokens[self.seen.length :])
        return self.seen
