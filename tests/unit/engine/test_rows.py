import numpy as np
import pytest

from tests.unit.engine.builders import make_sequence
from worker.engine.rows import Rows
from worker.engine.sequence import Sequence

BLOCK_SIZE = 4


def start(rows: Rows, sequence: Sequence, *, cached: int = 0) -> Sequence:
    """With blocks for all its tokens, of which the first `cached` ones were found."""
    blocks = list(range(1, 1 + -(-len(sequence.tokens) // BLOCK_SIZE)))
    rows.start(sequence, blocks[:cached], blocks[cached:])
    return sequence


def launch(rows: Rows, *parts: tuple[Sequence, int]) -> list[int]:
    """Run a step of so many tokens each, and append a token where the gap is closed."""
    places = np.array([sequence.table.row for sequence, _ in parts])
    ends = rows.launch(places, np.array([tokens for _, tokens in parts]))
    for sequence, _ in parts:
        if not sequence.gap:
            sequence.tokens.append(2)
    return ends.tolist()


@pytest.fixture
def rows() -> Rows:
    return Rows(4, 8, BLOCK_SIZE)


def test_a_prompt_decodes_from_the_step_on_that_ends_it(rows):
    sequence = start(rows, make_sequence(0, 6))
    assert launch(rows, (sequence, 4)) == [4]
    assert (list(rows.prompts), rows.decodes()) == ([sequence], [])
    assert launch(rows, (sequence, 2)) == [6]
    assert (list(rows.prompts), rows.decodes()) == ([], [sequence])


def test_what_was_computed_before_and_found_but_for_its_last_token_decodes_at_once(rows):
    sequence = make_sequence(0, 3)
    sequence.tokens += [2, 2]
    start(rows, sequence, cached=1)
    assert (list(rows.prompts), rows.decodes(), sequence.num_computed) == ([], [sequence], 4)


def test_a_prompt_of_which_only_the_last_token_is_missing_is_still_a_prompt(rows):
    sequence = start(rows, make_sequence(0, 5), cached=1)
    assert (list(rows.prompts), rows.decodes()) == ([sequence], [])


def test_a_sequence_of_its_full_length_decodes_no_more(rows):
    sequence = start(rows, make_sequence(0, 3, tokens_max=5))
    launch(rows, (sequence, 3))
    assert rows.decodes() == [sequence]
    launch(rows, (sequence, 1))
    assert (rows.decodes(), len(sequence.tokens)) == ([], 5)


def test_those_grow_whose_last_token_begins_a_block(rows):
    short, long = start(rows, make_sequence(0, 3)), start(rows, make_sequence(1, 4))
    launch(rows, (short, 3), (long, 4))
    assert rows.growing() == [long]
    launch(rows, (short, 1))
    assert rows.growing() == [short, long]


def test_a_row_that_was_left_tells_nothing_of_who_had_it(rows):
    first = start(rows, make_sequence(0, 3))
    launch(rows, (first, 3))
    row = first.table.row
    assert rows.stop(first).tolist() == [1]
    assert (first.num_computed, rows.decodes(), rows.growing()) == (0, [], [])
    second = start(rows, make_sequence(1, 6))
    assert (second.table.row, second.num_computed, list(rows.prompts)) == (row, 0, [second])
    rows.check_integrity({second: None})


def test_integrity_finds_a_sequence_that_stayed_behind(rows):
    start(rows, make_sequence(0, 3))
    with pytest.raises(AssertionError):
        rows.check_integrity({})
