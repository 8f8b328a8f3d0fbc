"""A client that leaves: the work stops, the blocks come back, and what was generated until then is billed once."""

import pytest

from tests.e2e.api import Api, chat_body, metric, open_request, reset, wait_for
from tests.e2e.stack import Stack

LONG = {"max_tokens": 8_000, "ignore_eos": True}


def read_chunks(connection, count: int) -> str:
    """Read until `count` content chunks have arrived; the response's request id."""
    received = b""
    while received.count(b'"content":"') < count + 1:  # the first delta is the empty one with the role
        data = connection.recv(65536)
        assert data, received
        received += data
    head = received.split(b"\r\n\r\n", 1)[0].decode()
    return next(line.split(": ", 1)[1] for line in head.split("\r\n") if line.lower().startswith("x-request-id"))


def idle(stack: Stack) -> bool:
    url = stack.worker_metrics_urls[0]
    return (
        metric(url, "forebay_sequences_running") == 0
        and metric(url, "forebay_sequences_waiting") == 0
        and metric(url, "forebay_kv_blocks_free") == metric(url, "forebay_kv_blocks")
    )


def test_a_stream_that_is_closed_is_billed_for_what_was_generated(api: Api, stack: Stack) -> None:
    with open_request(api, "/chat/completions", chat_body("x", stream=True, **LONG)) as connection:
        request = read_chunks(connection, 10)
    wait_for(lambda: len(stack.usage(request)) == 1, what="one usage row")
    wait_for(lambda: idle(stack), what="all blocks free")
    (row,) = stack.usage(request)
    assert row["finish"] == "cancelled"
    assert row["final"]
    assert row["prompt_tokens"] > 0
    assert 10 <= row["completion_tokens"] < LONG["max_tokens"]


def test_a_whole_answer_that_nobody_waits_for_is_stopped_and_billed(stack: Stack) -> None:
    """Of a tenant of its own: bills of earlier tests may be booked only now."""
    api = Api(stack.base_urls[0], stack.create_tenant(rpm=None, tpm=None))
    mine = (
        "SELECT finish, completion_tokens FROM usage_events e JOIN api_keys k ON k.id = e.api_key_id"
        f" WHERE k.public_id = '{api.key.split('-')[2]}'"
    )
    wait_for(lambda: idle(stack), what="nothing else runs")
    with open_request(api, "/chat/completions", chat_body("x", **LONG)):
        wait_for(lambda: metric(stack.worker_metrics_urls[0], "forebay_sequences_running") >= 1)
    wait_for(lambda: idle(stack), what="all blocks free")
    wait_for(lambda: len(stack.query(mine)) == 1, what="one usage row")
    (row,) = stack.query(mine)
    assert row["finish"] == "cancelled"
    assert row["completion_tokens"] < LONG["max_tokens"]


def test_a_full_answer_is_one_row_with_the_client_s_own_counts(api: Api, stack: Stack) -> None:
    answer = api.chat("x", max_tokens=7, ignore_eos=True)
    request = answer.headers["x-request-id"]
    wait_for(lambda: len(stack.usage(request)) == 1, what="one usage row")
    (row,) = stack.usage(request)
    usage = answer.json()["usage"]
    assert (row["prompt_tokens"], row["completion_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert (row["finish"], row["final"], row["attempt"]) == ("length", True, 1)


@pytest.mark.timeout(600)
def test_fifty_clients_that_hang_up_leave_nothing_behind(api: Api, stack: Stack) -> None:
    for round_ in range(50):
        with open_request(api, "/chat/completions", chat_body("x", **LONG)) as connection:
            wait_for(lambda: metric(stack.worker_metrics_urls[0], "forebay_sequences_running") >= 1)
            if round_ % 2:
                reset(connection)
        api.probe()
    wait_for(lambda: idle(stack), what="all blocks free")
    wait_for(lambda: metric(stack.ops_metrics_urls[0], "forebay_streams_open") == 0)
