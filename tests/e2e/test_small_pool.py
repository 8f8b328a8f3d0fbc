"""Requests that the KV pool can hardly hold, or never: an answer or a clear refusal, and others go on."""

import concurrent.futures

from tests.e2e.api import Api, assert_error, metric, wait_for
from tests.e2e.stack import Stack

BLOCK = 16


def test_a_request_that_can_never_fit_is_refused_and_nothing_waits_behind_it(tiny_pool_stack: Stack) -> None:
    """The pool holds 8 blocks of 16 tokens; the context allows far more."""
    stack = tiny_pool_stack
    api, other = Api(stack.base_urls[0], stack.acme_key), Api(stack.base_urls[0], stack.hobby_key)
    url = stack.worker_metrics_urls[0]
    total = metric(url, "forebay_kv_blocks")
    assert total == 8

    assert_error(api.complete([100] * (12 * BLOCK), max_tokens=4), (400, 503))

    grows = {"max_tokens": 4 * BLOCK, "ignore_eos": True}
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        pair = [pool.submit(api.complete, [100] * (3 * BLOCK), **grows) for _ in range(2)]
        probes = [pool.submit(other.complete, "ping", max_tokens=4) for _ in range(10)]
        assert all(probe.result(60).status_code == 200 for probe in probes)
        for answer in pair:
            assert answer.result(60).json()["choices"][0]["finish_reason"] == "length"
            assert answer.result().json()["usage"]["completion_tokens"] == 4 * BLOCK
    wait_for(lambda: metric(url, "forebay_kv_blocks_free") == total, what="all blocks free")
