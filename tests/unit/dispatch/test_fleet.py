"""What the fleet looks like from its beats."""

from gateway.dispatch.fleet import FORGET_S, FleetView
from gateway.dispatch.forecast import Member
from gateway.dispatch.queues import NOTHING, Work, work_of
from shared import wire
from tests.unit.dispatch.samples import beat, job
from tests.unit.dispatch.test_forecast import LOAD


def card(name: str = "m") -> wire.ModelCard:
    return wire.ModelCard(
        name=name,
        pool="default",
        context_length=1,
        vocab_size=1,
        tokenizer=b"",
        chat_template=None,
        bos_id=None,
        eos_ids=(),
        add_bos=False,
        special_ids=(),
        request_tokens_max=1,
    )


def fleet() -> FleetView:
    view = FleetView(silence_s=1.5)
    view.put_card("card", card())
    return view


def hear(view: FleetView, now: float, *beats: wire.WorkerBeat) -> None:
    view.silence.own_beat(now)
    for one in beats:
        view.on_beat(one, now)


def test_a_model_is_listed_once_its_card_is_here() -> None:
    view = FleetView(silence_s=1.5)
    hear(view, 0.0, beat())
    assert view.models() == []
    assert view.missing() == {"card"}
    view.put_card("card", card())
    assert [info.name for info in view.models()] == ["m"]
    assert view.missing() == set()
    assert view.card("m") == card()
    assert view.card("other") is None


def test_only_workers_that_take_work_count() -> None:
    view = fleet()
    hear(view, 0.0, beat(ready=False))
    assert (view.models(), view.serves("card")) == ([], True)  # it may come to be ready
    hear(view, 0.1, beat(draining=True))
    assert (view.models(), view.serves("card")) == ([], False)
    hear(view, 0.2, beat())
    assert [info.digest for info in view.models()] == ["card"]


def test_a_silent_worker_is_lost_once_and_comes_back_with_its_next_beat() -> None:
    view = fleet()
    for tenth in range(10):
        hear(view, tenth / 10, beat("w1"), beat("w2"))
    for tenth in range(10, 30):
        hear(view, tenth / 10, beat("w2"))
    assert view.newly_lost(2.95) == ["w1"]
    assert view.newly_lost(2.96) == []
    assert [each.worker for each in view.workers()] == ["w2"]
    hear(view, 3.0, beat("w1"))
    assert {each.worker for each in view.workers()} == {"w1", "w2"}


def test_a_worker_that_hangs_is_lost_though_it_beats_until_it_is_well() -> None:
    view = fleet()
    hear(view, 0.0, beat("w1"), beat("w2"))
    hear(view, 0.1, beat("w1", healthy=False), beat("w2"))
    assert view.newly_lost(0.1) == ["w1"]
    hear(view, 0.2, beat("w1", healthy=False), beat("w2"))
    assert view.newly_lost(0.2) == []
    assert [each.worker for each in view.workers()] == ["w2"]
    hear(view, 0.3, beat("w1"), beat("w2", healthy=False))
    assert view.newly_lost(0.3) == ["w2"]
    assert [each.worker for each in view.workers()] == ["w1"]


def test_each_worker_is_in_one_state() -> None:
    view = fleet()
    hear(view, 0.0, beat("gone"))
    for tenth in range(1, 31):
        others = beat("a"), beat("b", ready=False), beat("c", draining=True), beat("d", healthy=False), beat("e")
        hear(view, tenth / 10, *others)
    view.newly_lost(3.0)
    assert view.states() == {"ready": 2, "unready": 1, "draining": 1, "hanging": 1, "silent": 1}


def test_a_worker_is_forgotten_with_its_card() -> None:
    view = fleet()
    hear(view, 0.0, beat("w1"))
    now = 0.0
    while now < FORGET_S + 5:
        now += 0.5
        hear(view, now, beat("w2", card="new", model="n"))
        view.newly_lost(now)
    assert view.card("m") is None
    hear(view, now, beat("w1"))
    assert view.missing() == {"card", "new"}


def test_of_two_revisions_the_one_with_more_workers_is_found() -> None:
    view = fleet()
    view.put_card("new", card())
    hear(view, 0.0, beat("w1"), beat("w2", card="new"), beat("w3", card="new"))
    info = view.find("m")
    assert info is not None
    assert info.digest == "new"


def test_a_job_that_ends_between_two_beats_is_taken_off_what_the_last_one_counts() -> None:
    view = fleet()
    hear(view, 0.0, beat(load=LOAD))
    before, since = job("before"), job("since", n=2)
    view.accepted("w1", since)
    assert view.members("card", "default") == [Member(LOAD, work_of(since))]
    view.ended("w1", before)
    assert view.members("card", "default") == [Member(LOAD, work_of(since) - Work(1, 1), 1)]
    view.ended("w1", since)
    assert view.members("card", "default") == [Member(LOAD, Work(-1, -1), 1)]
    hear(view, 0.2, beat(load=LOAD))
    assert view.members("card", "default") == [Member(LOAD, NOTHING)]
