import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tokenizers

from tests.collector import Collector, collecting
from tests.e2e.api import Api
from tests.e2e.stack import Stack, running
from worker.models.card import demo_model_path, read_card

COLLECTOR_TOKEN = "a-token-that-the-collector-wants"
FAKE = {"FOREBAY_FAKE_STEP_US": "1000", "FOREBAY_FAKE_TOKEN_US": "10"}
TINY_POOL = {**FAKE, "FOREBAY_KV_BYTES": str(9 * 737_280)}  # 8 blocks of 16 tokens and the null block


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    """The collector of the shared stack's spans."""
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="session")
def stack(collector: Collector) -> Iterator[Stack]:
    """Two gateways and a fake worker with all tracing on, shared by all tests that leave them as they were."""
    traced = {**collector.environ, "OTEL_EXPORTER_OTLP_HEADERS": f"x-token={COLLECTOR_TOKEN}"}
    with running(gateways=2, env={**FAKE, **traced}) as shared:
        yield shared


@pytest.fixture(scope="session")
def real_stack() -> Iterator[Stack]:
    """The real model behind one gateway, in fp32: the same answers on every processor."""
    with running(env={"FOREBAY_RUNNER": "torch", "FOREBAY_DTYPE": "fp32"}) as shared:
        yield shared


@pytest.fixture
def own_stack() -> Iterator[Stack]:
    """A stack that the test may damage, with answers that take so long that none ends before it is damaged."""
    with running(env={**FAKE, "FOREBAY_FAKE_STEP_US": "10000"}) as own:
        yield own


@pytest.fixture
def tiny_pool_stack() -> Iterator[Stack]:
    with running(env=TINY_POOL) as own:
        yield own


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder like a clone, whose `.venv` is this environment."""
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    return tmp_path


@pytest.fixture
def api(stack: Stack) -> Api:
    return Api(stack.base_urls[0], stack.acme_key)


@pytest.fixture(scope="session")
def other(stack: Stack) -> Api:
    """Another tenant, of a less urgent tier, without limits, on the same gateway."""
    return Api(stack.base_urls[0], stack.create_tenant(rpm=None, tpm=None, tier=2))


@pytest.fixture(scope="session")
def tokenizer() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(read_card(demo_model_path()).tokenizer_json.decode())


@pytest.fixture(scope="session")
def abc_token(tokenizer: tokenizers.Tokenizer) -> int:
    """The id of the one token whose text is `abc`."""
    token = tokenizer.token_to_id("abc")
    assert token is not None
    return token


@pytest.fixture(scope="session")
def half_token() -> int:
    """The id of a token that is the first bytes of a character, and no character."""
    vocabulary = read_card(demo_model_path()).vocabulary
    texts = ((token, vocabulary.token_bytes(token)) for token in range(vocabulary.vocab_size))
    return next(token for token, text in texts if len(text) == 2 and text[0] >= 0xE0 and 0x80 <= text[1] < 0xC0)
