"""What every runner owes the engine. A test module subclasses `RunnerConformance` with a `runner` fixture; the fake and
the real ones pass the same tests, so that what the fake proves holds for them."""

import numpy as np

from worker.engine.batch import Batch, LogitBias, Sampled, SampleParams
from worker.engine.runner import Runner


def greedy(position: int, *, choice: int = 0, seed: int = 7, **options) -> SampleParams:
    return SampleParams(temperature=0.0, top_p=1.0, seed=seed, choice=choice, position=position, **options)


def batch_of(runner: Runner, parts: list[tuple[list[int], int, list[int], SampleParams | None]]) -> Batch:
    """A batch of (all ids so far, how many of them are computed, blocks, sample or None)."""
    size = runner.block_size
    width = max(-(-len(ids) // size) for ids, _, _, _ in parts)
    tables = np.zeros((len(parts), width), dtype=np.int32)
    ids_: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    starts, rows = [0], []
    for index, (ids, computed, blocks, params) in enumerate(parts):
        needed = -(-len(ids) // size)
        tables[index, :needed] = blocks[:needed]
        ids_ += ids[computed:]
        positions += range(computed, len(ids))
        slots += [blocks[p // size] * size + p % size for p in range(computed, len(ids))]
        starts.append(len(ids_))
        if params is not None:
            rows.append(len(ids_) - 1)
    return Batch(
        ids=np.array(ids_, dtype=np.int64),
        positions=np.array(positions, dtype=np.int64),
        slots=np.array(slots, dtype=np.int64),
        query_start=np.array(starts, dtype=np.int32),
        context_lens=np.array([len(ids) for ids, _, _, _ in parts], dtype=np.int32),
        block_tables=tables,
        rows=np.arange(len(parts), dtype=np.int32),
        sample_rows=np.array(rows, dtype=np.int64),
        samples=[params for _, _, _, params in parts if params is not None],
    )


def computed(runner: Runner, batch: Batch) -> Sampled:
    return runner.submit(batch).result()


class RunnerConformance:
    """The pool must have 16 usable blocks, the context 4 blocks, and the vocabulary the ids 2 to 41."""

    prompt = tuple(range(2, 2 + 21))

    def ids(self, runner: Runner) -> list[int]:
        return list(self.prompt[: 2 * runner.block_size + 1])

    def test_it_samples_one_token_per_row_within_the_vocabulary(self, runner: Runner):
        ids = self.ids(runner)
        sampled = computed(
            runner,
            batch_of(
                runner, [(ids, 0, [1, 2, 3], greedy(len(ids))), (ids[:1], 0, [4], None), (ids, 0, [7, 6, 5], greedy(9))]
            ),
        )
        assert len(sampled.ids) == len(sampled.logprobs) == 2
        assert all(0 <= token < runner.vocab_size for token in sampled.ids)
        assert sampled.errors == {}

    def test_a_prompt_in_chunks_gives_the_token_of_the_whole(self, runner: Runner):
        ids = self.ids(runner)
        whole = computed(runner, batch_of(runner, [(ids, 0, [1, 2, 3], greedy(len(ids)))]))
        cut = runner.block_size + 1
        first = computed(runner, batch_of(runner, [(ids[:cut], 0, [9, 5, 7], None)]))
        rest = computed(runner, batch_of(runner, [(ids, cut, [9, 5, 7], greedy(len(ids)))]))
        assert first.ids == []
        assert rest.ids == whole.ids

    def test_neighbours_change_nothing(self, runner: Runner):
        ids = self.ids(runner)
        alone = computed(runner, batch_of(runner, [(ids, 0, [1, 2, 3], greedy(len(ids)))]))
        others = [
            (ids[::-1][:length], 0, [4 + 3 * i, 5 + 3 * i, 6 + 3 * i], greedy(length))
            for i, length in enumerate((1, 5))
        ]
        together = computed(runner, batch_of(runner, [others[0], (ids, 0, [3, 1, 2], greedy(len(ids))), others[1]]))
        assert together.ids[1] == alone.ids[0]

    def side_by_side(self, runner: Runner, options: list[dict]) -> Sampled:
        """The same prompt once for each of `options`, in blocks of its own."""
        ids = self.ids(runner)
        tables = [[1 + 3 * i, 2 + 3 * i, 3 + 3 * i] for i in range(len(options))]
        parts = [(ids, 0, table, greedy(len(ids), **option)) for table, option in zip(tables, options, strict=True)]
        return computed(runner, batch_of(runner, parts))

    def test_a_bias_of_100_forces_and_one_of_minus_100_bans(self, runner: Runner):
        (free,) = self.side_by_side(runner, [{}]).ids
        forced = 41 if free != 41 else 40
        options = [{"bias": LogitBias.of([(forced, 100.0)])}, {"bias": LogitBias.of([(free, -100.0)])}, {}]
        ids = self.side_by_side(runner, options).ids
        assert ids[0] == forced
        assert ids[1] != free
        assert ids[2] == free

    def test_a_banned_token_is_not_drawn_whatever_its_bias(self, runner: Runner):
        (free,) = self.side_by_side(runner, [{}]).ids
        bias = LogitBias.of([(free, 100.0)])
        ids = self.side_by_side(runner, [{"banned": frozenset({free}), "bias": bias}, {}]).ids
        assert ids[0] != free
        assert ids[1] == free

    def test_logprobs_come_when_asked_for_with_the_chosen_token_among_the_best(self, runner: Runner):
        sampled = self.side_by_side(runner, [{"logprobs": None}, {"logprobs": 0}, {"logprobs": 3}])
        none, only, top = sampled.logprobs
        assert none is None
        assert only is not None
        assert only.top == ()
        assert top is not None
        assert top.top[0] == (sampled.ids[2], top.logprob)
        values = [logprob for _, logprob in top.top]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
        assert values[0] <= 0

    def test_a_step_without_samples_is_fine(self, runner: Runner):
        assert computed(runner, batch_of(runner, [(self.ids(runner), 0, [1, 2, 3], None)])).ids == []
