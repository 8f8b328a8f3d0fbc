import uuid

import pytest

from gateway.admission import sizes
from gateway.admission.generation import Generation
from gateway.admission.limiter import Limit
from gateway.errors import ContextTooLong, InvalidRequest
from tests.demands import KEY, MODEL, limit

CONTEXT, DEFAULT = 1_000, 200


def output(*limits: Limit, asked: int | None = None, prompt: int = 10) -> int:
    generation = Generation(model="m", prompts=("x",), max_tokens=asked)
    return sizes.of(limits, MODEL, CONTEXT).output(generation, prompt, DEFAULT)


def test_without_quotas_the_model_decides() -> None:
    assert output() == DEFAULT
    assert output(asked=1_000, prompt=900) == 100
    with pytest.raises(ContextTooLong):
        output(prompt=1_000)
    with pytest.raises(ContextTooLong):
        output(asked=1_001)


def test_the_smallest_context_of_tenant_key_and_model_holds() -> None:
    limits = (limit("max_context", 100), limit("max_context", 60, key=KEY), limit("max_context", 40, model=MODEL))
    assert output(*limits) == 30
    assert output(*limits[:2]) == 50
    assert output(limit("max_context", 40, model=uuid.uuid4())) == DEFAULT
    assert output(limit("max_context", 5_000), prompt=999) == 1


def test_an_output_beyond_the_quota_is_refused_and_the_default_is_cut_to_it() -> None:
    assert output(limit("max_output", 50)) == 50
    assert output(limit("max_output", 50), asked=50) == 50
    with pytest.raises(InvalidRequest) as refused:
        output(limit("max_output", 50), asked=51)
    assert (refused.value.param, refused.value.code) == ("max_tokens", "invalid_value")
    assert "50" in refused.value.message
    assert "51" in refused.value.message


def test_zero_is_none_at_all() -> None:
    with pytest.raises(ContextTooLong):
        output(limit("max_context", 0))
    for asked in (None, 1):
        with pytest.raises(InvalidRequest):
            output(limit("max_output", 0), asked=asked)


def test_null_is_unlimited() -> None:
    assert output(limit("max_output", None), limit("max_context", None), asked=500) == 500


def test_shadow_mode_tells_and_refuses_nobody() -> None:
    shadows = (limit("max_context", 40, enforced=False), limit("max_output", 50, enforced=False))
    found = sizes.of(shadows, MODEL, CONTEXT)
    assert output(*shadows, asked=100, prompt=60) == 100
    for asked, prompt, missed in ((None, 10, []), (45, 10, ["max_context"]), (60, 40, ["max_context", "max_output"])):
        assert found.missed(Generation(model="m", max_tokens=asked), prompt) == missed
    barred = sizes.of([limit("max_output", 0, enforced=False)], MODEL, CONTEXT)
    assert barred.missed(Generation(model="m"), 1) == ["max_output"]
