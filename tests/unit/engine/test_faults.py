"""What goes wrong while a token becomes text ends that request, and nothing else of its step."""

from dataclasses import dataclass

from tests.unit.engine.builders import VOCABULARY, drain, make_request, make_runner, run_alone, token
from worker.engine.config import EngineConfig
from worker.engine.engine import Engine


@dataclass
class Cracked:
    """A vocabulary with a token that cannot be read."""

    broken: int
    vocab_size: int = VOCABULARY.vocab_size
    eos_ids: frozenset[int] = VOCABULARY.eos_ids
    skips_first_space: bool = False

    def token_bytes(self, token: int, /) -> bytes:
        if token == self.broken:
            raise RuntimeError("a crack")
        return VOCABULARY.token_bytes(token)


def test_a_token_that_cannot_become_text_ends_its_own_request() -> None:
    runner = make_runner()
    config = EngineConfig(block_size=runner.block_size, context_length=runner.context_length, sequences_max=8)
    engine = Engine(runner, Cracked(token("~")), config)
    good = make_request("good", max_tokens=12)
    engine.add(good)
    engine.add(make_request("bad", logit_bias=((token("~"), 100.0),)))
    said = drain(engine)
    assert (said.done["bad"].error, said.done["bad"].totals.completion_tokens) == ("engine_error", 1)
    assert [str(step.failure) for step in said.steps if step.failure] == ["a crack"]
    assert said.done["good"].error is None
    assert said.ids["good", 0] == run_alone(good).ids["good", 0]
