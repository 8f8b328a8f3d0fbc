"""Sampling parameters over real HTTP: each reaches the worker as it was meant, or is a 400 that names it."""

import msgspec
import pytest

from shared import wire
from tests.scripted_gateway import Play, ScriptedGateway
from tests.tiny_model import BOS, CONTEXT, MODEL

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES = {
    CHAT: {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"model": MODEL, "prompt": "hi"},
}
VOCAB = 300
NO_BIASES: list[object] = [
    {str(VOCAB): 5},
    {"-1": 1},
    {"999999999": -100},
    {"abc": 1},
    {"5.0": 1},
    {"5": 101},
    {"5": -101},
    {"5": "x"},
    {"5": None},
    {"5": True},
    [],
    {"5": 1, "05": 2},
    {"": 1},
    {" 5": 1},
    {"\N{ARABIC-INDIC DIGIT FIVE}": 1},
    {str(token): 7 for token in range(1_025)},
]
EVERYTHING = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.05,
    "presence_penalty": -0.5,
    "frequency_penalty": 1.5,
    "repetition_penalty": 1.1,
    "min_tokens": 2,
    "stop_token_ids": [7, 299, 7],
    "logit_bias": {"299": -99.5, "0": 3},
    "seed": 11,
    "max_tokens": 8,
    "ignore_eos": True,
    "stop": "end",
}


@pytest.fixture(params=[CHAT, COMPLETIONS])
def path(request: pytest.FixtureRequest) -> str:
    return request.param


async def asked(gateway: ScriptedGateway, path: str, **fields: object) -> wire.Sampling:
    """What the worker was told."""
    answer = await gateway.post(path, {**BODIES[path], "max_tokens": 8, **fields})
    assert answer.status == 200, answer.error
    return gateway.play.job.sampling


async def test_every_parameter_reaches_the_worker(gateway: ScriptedGateway, path: str) -> None:
    assert await asked(gateway, path, **EVERYTHING) == wire.Sampling(
        max_tokens=8,
        temperature=0.7,
        top_p=0.9,
        seed=11,
        stop=("end",),
        ignore_eos=True,
        logit_bias=((299, -99.5), (0, 3.0)),
        top_k=40,
        min_p=0.05,
        presence_penalty=-0.5,
        frequency_penalty=1.5,
        repetition_penalty=1.1,
        min_tokens=2,
        stop_token_ids=(7, 299),
    )


async def test_a_stop_that_is_the_name_of_a_special_token_is_that_token(gateway: ScriptedGateway, path: str) -> None:
    told = await asked(gateway, path, stop=["<s>", "<s>user"], stop_token_ids=[7])
    assert (told.stop, told.stop_token_ids) == (("<s>", "<s>user"), (7, BOS))


async def test_null_is_the_default_of_every_parameter(gateway: ScriptedGateway, path: str) -> None:
    nothing = {**dict.fromkeys(EVERYTHING), "logprobs": None, "seed": 1, "max_tokens": 8}
    assert await asked(gateway, path, **nothing) == wire.Sampling(max_tokens=8, seed=1)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("top_k", [-2, 1.5, True, "3"]),
        ("top_p", [-0.1, 1.1, True]),
        ("min_p", [-0.1, 1.01, True]),
        ("presence_penalty", [-2.01, 2.01, True]),
        ("frequency_penalty", [-2.01, 2.01, []]),
        ("repetition_penalty", [0, -1, 2.01, True]),
        ("min_tokens", [-1, 9, 2**40, True]),
        ("stop_token_ids", [[VOCAB], [-1], [2**63], [True], 7, list(range(65))]),
        ("best_of", [2, 0]),
        ("n", [0, 129]),
        ("logit_bias", NO_BIASES),
    ],
)
async def test_what_no_sampler_can_do_is_refused_by_name(
    gateway: ScriptedGateway, path: str, field: str, values: list[object]
) -> None:
    for value in values:
        answer = await gateway.post(path, {**BODIES[path], "max_tokens": 8, field: value})
        error = answer.error
        assert (answer.status, error["param"], error["type"]) == (400, field, "invalid_request_error"), value
        assert error["message"]
    assert not gateway.limiter.demands


@pytest.mark.parametrize("field", ["min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"])
async def test_numbers_that_are_not_finite_are_refused(gateway: ScriptedGateway, field: str) -> None:
    for value in ("1e400", "-1e400", "NaN", "Infinity"):
        body = f'{{"model":"{MODEL}","messages":[{{"role":"user","content":"hi"}}],"{field}":{value}}}'
        answer = await gateway.post(CHAT, body.encode())
        assert answer.status == 400
        assert answer.error["param"] == (field if "e" in value else None)


async def test_min_tokens_beyond_what_the_context_leaves(gateway: ScriptedGateway) -> None:
    body = {"model": MODEL, "prompt": "x" * (CONTEXT - 10)}
    answer = await gateway.post(COMPLETIONS, {**body, "min_tokens": 11})
    assert (answer.status, answer.error["param"], answer.error["code"]) == (400, "min_tokens", "invalid_value")
    assert (await gateway.post(COMPLETIONS, {**body, "min_tokens": 10})).status == 200


async def test_a_bias_reaches_the_worker(gateway: ScriptedGateway, path: str) -> None:
    every = {str(token): 7 for token in range(VOCAB)}
    for bias, told in [
        ({}, ()),
        (None, ()),
        ({"5": -100}, ((5, -100.0),)),
        ({"5": 100}, ((5, 100.0),)),
        ({"5": 0.25, "299": -1e-3}, ((5, 0.25), (299, -1e-3))),
        (every, tuple((token, 7.0) for token in range(VOCAB))),
    ]:
        assert (await asked(gateway, path, logit_bias=bias)).logit_bias == told


async def test_logprobs_have_openai_s_bounds(gateway: ScriptedGateway) -> None:
    for path, fields, param in [
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": True}, "top_logprobs"),
        (CHAT, {"top_logprobs": 3}, "top_logprobs"),
        (CHAT, {"logprobs": 3}, "logprobs"),
        (COMPLETIONS, {"logprobs": 6}, "logprobs"),
        (COMPLETIONS, {"logprobs": -1}, "logprobs"),
        (COMPLETIONS, {"logprobs": True}, "logprobs"),
    ]:
        answer = await gateway.post(path, {**BODIES[path], **fields})
        assert (answer.status, answer.error["param"]) == (400, param), fields
    assert (await asked(gateway, CHAT, logprobs=True, top_logprobs=20)).logprobs == 20
    assert (await asked(gateway, COMPLETIONS, logprobs=5)).logprobs == 5


async def test_a_completion_lists_the_drawn_token_beside_the_most_likely(gateway: ScriptedGateway) -> None:
    async def say(play: Play) -> None:
        entry = wire.TokenLogprob(id=9, logprob=-3.5, text=b"drawn", top=((7, -0.5, b"best"),))
        play.send(msgspec.structs.replace(play.chunk("drawn", finish="stop"), logprobs=(entry,)))
        play.finish()

    gateway.dispatcher.script = say
    answer = await gateway.post(COMPLETIONS, {**BODIES[COMPLETIONS], "logprobs": 1})
    assert answer.json["choices"][0]["logprobs"]["top_logprobs"] == [{"best": -0.5, "drawn": -3.5}]


async def test_as_many_best_as_choices_are_just_the_choices(gateway: ScriptedGateway) -> None:
    answer = await gateway.post(COMPLETIONS, {**BODIES[COMPLETIONS], "n": 3, "best_of": 3})
    assert len(answer.json["choices"]) == 3
