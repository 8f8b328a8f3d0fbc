"""A client can always tell "finished" from "broken": errors before the first byte are ordinary JSON answers, and an
answer that is cut off carries an error event and no invented finish."""

import pytest

from tests.e2e.api import MODEL, Api, assert_error, chat_body, events, finish_of, force, text_of, wait_for
from tests.e2e.stack import Stack


def test_errors_before_the_stream_are_ordinary_answers(api: Api, stack: Stack) -> None:
    assert_error(api.chat(stream=True, n=0), 400, "n")
    assert_error(api.chat(stream=True, model="nope"), 404)
    assert_error(api.post("/completions", {"model": MODEL, "prompt": [5] * 8193, "stream": True}), 400)
    assert_error(Api(api.base_url, stack.create_revoked_key()).chat(stream=True), 401)


@pytest.mark.timeout(600)
def test_a_killed_worker_ends_its_streams_with_an_error_and_a_bill(own_stack: Stack, abc_token: int) -> None:
    api = Api(own_stack.base_urls[0], own_stack.acme_key)
    body = chat_body("x", max_tokens=8_000, stream=True, **force(abc_token))
    received = b""
    alive = True
    with api.client.stream("POST", api.base_url + "/chat/completions", json=body, headers=api.headers()) as answer:
        for data in answer.iter_raw():
            received += data
            if alive and received.count(b'"content":"abc"') >= 10:
                own_stack.kill_worker()
                alive = False
    chunks = events(received, done=False)
    assert chunks[-1]["error"]["code"] == "worker_lost"
    delivered = text_of(chunks[:-1]).count("abc")
    with pytest.raises(AssertionError):
        finish_of(chunks[:-1])

    request = answer.headers["x-request-id"]
    wait_for(lambda: len(own_stack.usage(request)) == 1, what="the lost attempt's bill")
    (row,) = own_stack.usage(request)
    assert (row["finish"], row["final"]) == ("lost", True)
    assert row["completion_tokens"] == delivered

    wait_for(lambda: api.client.get(own_stack.ready_urls[0]).status_code == 503, what="not ready")
    assert api.client.get(api.base_url + "/models", headers=api.headers()).json()["data"] == []
    refused = api.chat()
    assert_error(refused, 503)
    assert int(refused.headers["retry-after"]) >= 1
