from bench.arrivals import arrivals


def test_a_pace_keeps_gaps_within_three_times_their_median_where_a_fixed_chunk_does_not() -> None:
    fixed = arrivals(rate=0.4, seconds=40.0, pace=None, beside=64)
    paced = arrivals(rate=0.4, seconds=40.0, pace=2.4)
    assert paced["itl_p99_over_p50"] < 3.0 < fixed["itl_p99_over_p50"]


def test_the_same_figures_each_time() -> None:
    assert arrivals(rate=1.0, seconds=3.0, pace=2.4) == arrivals(rate=1.0, seconds=3.0, pace=2.4)
