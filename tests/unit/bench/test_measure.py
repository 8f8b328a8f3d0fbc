from bench.measure import Measure


def test_a_target_is_met_on_its_own_side() -> None:
    assert Measure("latency", 2.5, "ms", ("<=", 3)).cells == ["latency", 2.5, "ms", "<= 3", "yes"]
    assert Measure("latency", 3.5, "ms", ("<=", 3)).cells[-1] == "no"
    assert Measure("rate", 700, "1/s", (">=", 600)).cells[-1] == "yes"
    assert Measure("rate", 500, "1/s", (">=", 25_000)).cells[-2:] == [">= 25,000", "no"]


def test_what_has_no_target_is_neither_met_nor_missed() -> None:
    assert Measure("memory", 100, "MiB").cells == ["memory", 100, "MiB", "", ""]
