"""The two targets that are counts, or times of a virtual clock, and so the same on every machine."""

from bench.scheduler_runs import overhead, preemption, prefix


def test_a_shared_prefix_saves_nine_tenths_of_the_work() -> None:
    measured = prefix()
    assert measured["prompt_tokens"] == 20 * 2_060
    assert measured["saved_share"] >= 0.9


def test_half_of_the_pool_keeps_four_fifths_of_the_throughput() -> None:
    measured = preemption(150)
    assert measured["preemptions"] > 10
    assert measured["throughput_share"] > 0.8
    assert 0 < measured["recompute_tax"] < 0.15


def test_the_overhead_is_of_steps_in_which_all_decode() -> None:
    assert overhead(8, 4, steps=5).row().keys() == {"running", "waiting", "step_p50_ms", "step_p95_ms", "step_p99_ms"}
