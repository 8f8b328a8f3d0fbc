"""The requests that a load sends: prompts of an exact length that never repeat, and the options of their answers.

Knows nothing of connections. Invariant: request `index` of a seed is always the same bytes, and no two share a prefix
of more than a few words, so that no cache helps unless the seed is used twice.
"""

import random
from typing import Literal

import msgspec

# Each, with a space before it, is one token for SmolLM2 (a test holds it to that) and for most vocabularies of English.
WORDS = """river water stone light winter summer morning evening garden window village mountain forest island harbor
market kitchen table paper letter story music color silver golden quiet simple early late north south eastern western
open closed heavy small large young ancient modern common public private careful gentle strong weak bright dark warm
cold teacher doctor farmer student captain soldier artist writer reader worker driver neighbor stranger brother sister
mother father child people family animal horse bird fish tree flower field road bridge street corner building station
train ship engine machine wheel circle square number answer question reason result method theory history science
nature""".split()  # noqa: SIM905 - a list of a hundred strings is harder to read

Api = Literal["chat", "completions"]


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one kind. All are greedy and go on to `output_tokens` where the server knows `ignore_eos`."""

    model: str
    api: Api
    prompt_tokens: int  # of the text; a chat template adds its own
    output_tokens: int
    stream: bool = True
    seed: int = 1

    @property
    def path(self) -> str:
        """Under the base URL, which ends in /v1."""
        return "/chat/completions" if self.api == "chat" else "/completions"

    def text(self, index: int) -> str:
        words = random.Random(f"{self.seed}/{index}").choices(WORDS, k=self.prompt_tokens)
        return "".join(f" {word}" for word in words)

    def body(self, index: int) -> bytes:
        """The JSON of request `index`."""
        text = self.text(index)
        return msgspec.json.encode(
            {
                "model": self.model,
                **({"messages": [{"role": "user", "content": text}]} if self.api == "chat" else {"prompt": text}),
                "max_tokens": self.output_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": self.stream,
                **({"stream_options": {"include_usage": True}} if self.stream else {}),
            }
        )
