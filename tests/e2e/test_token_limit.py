"""Requests that arrive together cannot outrun a token limit, over any number of gateways, and what a request did not
use comes back."""

import concurrent.futures
import itertools
import time

import httpx
import pytest

from tests.e2e.api import MODEL, Api, chat_body, force, wait_for
from tests.e2e.stack import Stack


def send_together(apis: list[Api], path: str, body: dict, count: int) -> list[httpx.Response]:
    gateways = itertools.cycle(apis)

    def one(index: int, api: Api) -> httpx.Response:
        return api.post(path, {**body, "stream": index % 2 == 0})

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count), [next(gateways) for _ in range(count)]))


@pytest.fixture
def limited(stack: Stack) -> list[Api]:
    """One key with 200 tokens a minute, seen through both gateways."""
    key = stack.create_tenant(rpm=None, tpm=200)
    return [Api(url, key) for url in stack.base_urls]


def test_the_sum_over_two_gateways_is_exact(limited: list[Api], abc_token: int) -> None:
    body = {"model": MODEL, "prompt": [100] * 50, "max_tokens": 50, **force(abc_token)}
    answers = send_together(limited, "/completions", body, 20)
    admitted = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(admitted) + len(refused) == 20
    # Each reserves, and uses, 100 of 200 tokens; a third would need a refill of 100, which takes 30 s.
    assert len(admitted) == 2
    for answer in refused:
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("tokens", "rate_limit_exceeded")
        assert 0 < int(answer.headers["retry-after"]) <= 60
        assert int(answer.headers["x-ratelimit-remaining-tokens"]) >= 0


def until_settled(stack: Stack) -> None:
    """An answer waits 50 ms for its settlement, which on a busy machine takes longer."""
    unsettled = "SELECT FROM inflight WHERE state <> 'settled'"
    wait_for(lambda: not stack.query(unsettled), what="no reservation is open")


def test_what_was_reserved_but_not_used_is_returned(stack: Stack, limited: list[Api], abc_token: int) -> None:
    """Each request reserves about 90 of 200 tokens and uses about 35: one after the other, four fit."""
    body = chat_body("x", max_tokens=60, stop=["abcabcabc"], **force(abc_token))
    for api, stream in itertools.product(limited, (False, True)):
        answer = api.post("/chat/completions", {**body, "stream": stream})
        assert answer.status_code == 200, answer.text
        until_settled(stack)


def test_a_request_above_the_whole_bucket_can_never_pass(limited: list[Api]) -> None:
    answer = limited[0].chat("x", max_tokens=500)
    assert answer.status_code == 429
    assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in answer.headers


def test_waiting_as_long_as_told_is_enough(stack: Stack) -> None:
    """6,000 tokens a minute refill 100 a second: the wait is short enough to be taken at its word."""
    api = Api(stack.base_urls[0], stack.create_tenant(rpm=None, tpm=6_000))
    asked = {"prompt": [100] * 199, "max_tokens": 1}  # a long prompt takes no time, long output would
    while (answer := api.complete(**asked)).status_code == 200:  # also what was refilled meanwhile
        pass
    assert answer.status_code == 429
    time.sleep(int(answer.headers["retry-after-ms"]) / 1000)
    assert api.complete(**asked).status_code == 200


def test_zero_is_none_and_null_is_unlimited(stack: Stack) -> None:
    blocked = Api(stack.base_urls[0], stack.create_tenant(rpm=0, tpm=None)).chat()
    assert blocked.status_code == 429
    assert blocked.headers["x-should-retry"] == "false"
    assert Api(stack.base_urls[0], stack.create_tenant(rpm=None, tpm=None)).chat().status_code == 200


def test_one_tenant_s_flood_is_not_another_s(limited: list[Api], api: Api) -> None:
    answers = send_together(limited, "/chat/completions", chat_body("x", max_tokens=60), 10)
    assert any(answer.status_code == 429 for answer in answers)
    assert api.chat().status_code == 200
