"""How many prompt tokens go into a step beside decodes, so that no running stream pauses for long.

A step should take at most a few times the streams' typical gap between tokens, which is the time of a step of decodes
alone, averaged over the tokens lately decoded. A bound by each step's own decodes let the gaps of busy moments grow to
four times the median (`bench.arrivals`).

Owns what the parts of a step cost on this machine, learned from the steps that were run: a fixed part, one per decode,
one per prompt token, one per pair of a prompt token and a token before it, and one per token before a chunk. Knows no
clock and no sequence: seconds are passed in. Invariant: every cost stays above zero, and a cost that a step did not
involve does not change.

Learned by the exponentiated gradient (Kivinen and Warmuth, Information and Computation 132, 1997): the ratio of the
measured to the expected time moves each cost by its share in the expectation.
"""

import math
from dataclasses import dataclass, field

RATE = 0.2
SURPRISE_MAX = math.log(4.0)  # log of the largest ratio counted: other work on the machine must not count for more
TYPICAL_TOKENS = 1_000  # decoded tokens over which the typical gap is averaged
SPARE_LEAST = 1.0  # prompts may always take at least this multiple of the decodes' time: they must make progress
TOKENS_LEAST = 8  # of the first prompt of a step, whatever they cost: it must make progress

# Initial costs in seconds, of the demo model on two cores. Other models differ mostly by one common factor.
STEP_S, DECODE_S, TOKEN_S, PAIR_S, CONTEXT_S = 0.03, 0.0036, 0.0025, 1e-6, 1e-5


@dataclass(slots=True, frozen=True)
class Work:
    """What one step consists of."""

    decodes: int = 0
    tokens: int = 0  # of prompts
    pairs: float = 0.0  # of a prompt token and a token before it
    context: int = 0  # tokens before the chunks, computed earlier

    def beside(self, tokens: int, computed: int) -> "Work":
        """This work plus a chunk of `tokens` of a prompt of which `computed` tokens are done."""
        pairs = tokens * (computed + tokens / 2)
        return Work(self.decodes, self.tokens + tokens, self.pairs + pairs, self.context + computed)


@dataclass(slots=True)
class Pace:
    """A step with prompts should take at most `times` the typical gap."""

    times: float
    costs_s: list[float] = field(default_factory=lambda: [STEP_S, DECODE_S, TOKEN_S, PAIR_S, CONTEXT_S])
    typical_decodes: float = 1.0

    def expected_s(self, work: Work) -> float:
        return sum(self._parts_s(work))

    def learn(self, work: Work, took_s: float) -> None:
        """Learns only from steps with decodes: a full budget of prompt tokens costs less per token than a small
        chunk.
        """
        if not work.decodes or took_s <= 0:
            return
        parts_s = self._parts_s(work)
        expected_s = sum(parts_s)
        surprise = math.log(took_s / expected_s)
        step = RATE * min(max(surprise, -SURPRISE_MAX), SURPRISE_MAX)
        shares = [part / expected_s for part in parts_s]
        self.costs_s = [cost * math.exp(step * share) for cost, share in zip(self.costs_s, shares, strict=True)]
        weight = min(1.0, work.decodes / TYPICAL_TOKENS)
        self.typical_decodes += weight * (work.decodes - self.typical_decodes)

    def spare_s(self, decodes: int) -> float:
        """The seconds that prompts may take beside `decodes` decodes."""
        step_s, decode_s, *_ = self.costs_s
        typical_s, own_s = step_s + decode_s * self.typical_decodes, step_s + decode_s * decodes
        return max(self.times * typical_s - own_s, SPARE_LEAST * own_s)

    def chunk_s(self, tokens: int, computed: int) -> float:
        """The seconds that a chunk adds to a step, of a prompt of which `computed` tokens are done."""
        return sum(self._parts_s(Work().beside(tokens, computed))[2:])

    def tokens(self, spare_s: float, computed: int) -> int:
        """The size of the longest such chunk that takes at most `spare_s`."""
        _, _, token_s, pair_s, context_s = self.costs_s
        left_s = spare_s - context_s * computed
        if left_s <= 0:
            return 0
        # left = tokens * each + tokens^2 * pair / 2
        each_s = token_s + pair_s * computed
        return int(2 * left_s / (each_s + math.sqrt(each_s * each_s + 2 * pair_s * left_s)))

    def _parts_s(self, work: Work) -> list[float]:
        amounts = (1, work.decodes, work.tokens, work.pairs, work.context)
        return [cost * amount for cost, amount in zip(self.costs_s, amounts, strict=True)]
