"""Work that threads share inside compiled code, and the threads that stand by for it."""

import gc
import threading
import time

import numpy as np
from numba import njit

from kernels.crew import Crew
from kernels.shared_work import ITEMS_WON_MAX, await_done, claim, done, ledger, take, wins

TIMEOUT_S = 60
PHASES, ITEMS = 40, 50
TURNS = 1_000_000


@njit(nogil=True)
def run(out, counts):
    """out: [phases, items] how often each item was computed; a phase adds up the one before it."""
    for phase in range(PHASES):
        item = claim(counts, phase)
        while item < ITEMS:
            out[phase, item] += 1 if phase == 0 else out[phase - 1].sum()
            done(counts, phase)
            item = claim(counts, phase)
        await_done(counts, phase, ITEMS)


def want():
    """In whole numbers that wrap around, as the sums do."""
    out = np.ones((PHASES, ITEMS), np.int64)
    with np.errstate(over="ignore"):
        for phase in range(1, PHASES):
            out[phase] = out[phase - 1].sum()
    return out


def test_each_item_is_computed_once_after_all_of_the_phase_before():
    crew = Crew(3)
    for _ in range(20):
        out = np.zeros((PHASES, ITEMS), np.int64)
        crew.call(run, out, ledger(PHASES))
        assert np.array_equal(out, want())


def test_a_phase_begins_when_the_last_item_of_the_one_before_is_done():
    out, counts = np.zeros((PHASES, ITEMS), np.int64), ledger(PHASES)
    mine = claim(counts, 0)
    other = threading.Thread(target=run, args=(out, counts))
    other.start()
    until = time.monotonic() + TIMEOUT_S
    while counts[0, 0] <= ITEMS and time.monotonic() < until:
        time.sleep(0.01)  # until the other has found nothing more to claim
    time.sleep(0.05)  # in which it would go on, if it did not wait
    out[0, mine] += 1
    done(counts, 0)
    other.join(TIMEOUT_S)
    assert np.array_equal(out, want())


def test_who_comes_late_finds_the_work_done():
    out, counts = np.zeros((PHASES, ITEMS), np.int64), ledger(PHASES)
    Crew(0).call(run, out, counts)
    run(out, counts)
    assert np.array_equal(out, want())


def in_threads(count, work, *args):
    """Results of the same call in several threads at once."""
    results = []
    threads = [threading.Thread(target=lambda: results.append(work(*args))) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    return results


@njit(nogil=True)
def count(counts, turns):
    for _ in range(turns):
        claim(counts, 0)
        done(counts, 0)


def test_no_count_is_lost_when_threads_count_at_once():
    counts = ledger(1)
    count(counts, 1)  # compiled here, so that the threads begin together
    in_threads(4, count, counts, TURNS)
    assert counts[0, :2].tolist() == [4 * TURNS + 1] * 2


@njit(nogil=True)
def win_all(counts):
    won = 0
    for phase in range(counts.shape[0]):
        for item in range(ITEMS_WON_MAX):
            won += wins(counts, phase, item)
    return won


def test_each_item_is_won_once_when_threads_finish_it_at_once():
    phases = TURNS // ITEMS_WON_MAX
    assert win_all(ledger(1)) == ITEMS_WON_MAX
    assert sum(in_threads(4, win_all, ledger(phases))) == phases * ITEMS_WON_MAX


@njit(nogil=True)
def run_and_win(out, counts):
    """As `run`, with results that are written by who wins."""
    for phase in range(PHASES):
        item = take(counts, phase, ITEMS, 100)
        while item < ITEMS:
            result = 1 if phase == 0 else out[phase - 1].sum()
            if wins(counts, phase, item):
                out[phase, item] += result
                done(counts, phase)
            item = take(counts, phase, ITEMS, 100)


def test_items_that_are_won_are_written_once_after_all_of_the_phase_before():
    crew = Crew(3)
    for _ in range(20):
        out = np.zeros((PHASES, ITEMS), np.int64)
        crew.call(run_and_win, out, ledger(PHASES))
        assert np.array_equal(out, want())


def test_nobody_waits_for_the_result_of_a_thread_that_lost_its_core():
    out, counts = np.zeros((PHASES, ITEMS), np.int64), ledger(PHASES)
    late = take(counts, 0, ITEMS, 0)
    run_and_win(out, counts)  # alone, to the end
    assert np.array_equal(out, want())
    assert not wins(counts, 0, late)


def test_a_result_that_is_being_written_is_awaited():
    out, counts = np.zeros((PHASES, ITEMS), np.int64), ledger(PHASES)
    mine = take(counts, 0, ITEMS, 0)
    assert wins(counts, 0, mine)
    other = threading.Thread(target=run_and_win, args=(out, counts))
    other.start()
    until = time.monotonic() + TIMEOUT_S
    while counts[0, 1] < ITEMS - 1 and time.monotonic() < until:
        time.sleep(0.01)  # until the other has done everything else
    time.sleep(0.05)  # in which it would go on, if it did not wait
    out[0, mine] += 1
    done(counts, 0)
    other.join(TIMEOUT_S)
    assert np.array_equal(out, want())


def test_every_helper_takes_part_and_a_busy_one_takes_the_present_job_and_none_that_it_missed():
    crew, taken = Crew(2), []
    everybody, go_on, last = threading.Barrier(3), threading.Event(), threading.Barrier(3)
    caller = threading.current_thread()

    def first():
        everybody.wait(TIMEOUT_S)
        if threading.current_thread() is not caller:
            go_on.wait(TIMEOUT_S)

    crew.call(first)
    crew.call(lambda: taken.append("missed"))
    timer = threading.Thread(target=go_on.set)
    crew.call(lambda: (timer.start() if threading.current_thread() is caller else None, last.wait(TIMEOUT_S)))
    assert taken == ["missed"]  # by the caller alone


def test_helpers_end_with_their_crew():
    before = set(threading.enumerate())
    crew = Crew(2)
    crew.call(lambda: None)
    helpers = set(threading.enumerate()) - before
    assert len(helpers) == 2
    del crew
    gc.collect()
    for helper in helpers:
        helper.join(TIMEOUT_S)
        assert not helper.is_alive()
