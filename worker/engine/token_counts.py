"""Which tokens a sequence contains, and how often it has generated each: the input of the penalties.

Grows with the sequence, so that a step costs one token and not the whole text. Invariant: each token is listed once.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


class TokenCounts:
    def __init__(self, prompt: Sequence[int]) -> None:
        distinct = np.unique(np.array(prompt, np.int64))
        self._ids = distinct
        self._generated = np.zeros(len(distinct), np.float32)
        self._index = {token: index for index, token in enumerate(distinct.tolist())}
        self.length = len(prompt)  # tokens counted, prompt and output

    @property
    def ids(self) -> NDArray[np.int64]:
        return self._ids[: len(self._index)]

    @property
    def generated(self) -> NDArray[np.float32]:
        """[ids] how often each was generated; 0 for a token that only the prompt contains."""
        return self._generated[: len(self._index)]

    def add(self, output: Iterable[int]) -> None:
        """Count the next tokens of the output."""
        for token in output:
            index = self._index.setdefault(token, len(self._index))
            if index == len(self._ids):
                self._grow()
            self._ids[index] = token
            self._generated[index] += 1
            self.length += 1

    def _grow(self) -> None:
        more = max(16, len(self._ids))
        self._ids = np.concatenate([self._ids, np.zeros(more, np.int64)])
        self._generated = np.concatenate([self._generated, np.zeros(more, np.float32)])
