"""Feeds sequences to a decoder step by step, each on blocks scattered over a small pool."""

from itertools import takewhile

import numpy as np
import torch

from worker.models.decoder import KvPool, StepTensors
from worker.models.whole_layers import decoder

BLOCK, BLOCKS = 4, 60


class Stepper:
    def __init__(self, model, ops) -> None:
        config = model.config
        self.decoder = decoder(config, model.weights, ops)
        shape = (BLOCKS, BLOCK, config.kv_heads, config.head_dim)
        self.pool = KvPool(*([torch.full(shape, torch.nan) for _ in range(config.layers)] for _ in range(2)))
        self.free = np.random.default_rng(2).permutation(np.arange(1, BLOCKS)).tolist()
        self.tables: dict[str, list[int]] = {}
        self.lengths: dict[str, int] = {}

    def share(self, giver: str, taker: str, *, blocks: int) -> None:
        """A new sequence whose first blocks are the giver's: a prefix that need not be computed."""
        self.tables[taker], self.lengths[taker] = self.tables[giver][:blocks], blocks * BLOCK

    def step(self, decodes: int | None = None, **new: list[int]) -> dict[str, torch.Tensor]:
        """Append ids to each named sequence; the logits of every new token. `decodes`: how many of the sequences, the
        first ones, generate; by default those that get one token.
        """
        positions, slots, contexts = [], [], []
        for name, ids in new.items():
            table, start = self.tables.setdefault(name, []), self.lengths.get(name, 0)
            end = self.lengths[name] = start + len(ids)
            while len(table) * BLOCK < end:
                table.append(self.free.pop())
            positions += range(start, end)
            slots += [table[p // BLOCK] * BLOCK + p % BLOCK for p in range(start, end)]
            contexts.append(end)
        longest = max(len(self.tables[name]) for name in new)
        counts = [len(ids) for ids in new.values()]
        if decodes is None:
            decodes = len(list(takewhile(lambda count: count == 1, counts)))
        rows = self.decoder.forward(
            StepTensors(
                ids=torch.tensor([i for ids in new.values() for i in ids]),
                positions=torch.tensor(positions),
                slots=torch.tensor(slots),
                query_start=torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32),
                context_lens=torch.tensor(contexts, dtype=torch.int32),
                block_tables=torch.tensor(
                    [self.tables[n] + [0] * (longest - len(self.tables[n])) for n in new], dtype=torch.int32
                ),
                sample_rows=torch.arange(sum(counts)),
                decodes=decodes,
            ),
            self.pool,
        )
        return dict(zip(new, rows.split(counts), strict=True))
