"""Which tokens a sequence contains, and how often it has generated each: the input of the penalties.

Grows with the sequence, so that a step costs one token and not the whole text. Of a prompt of thousands of tokens it is
derived once, and copied for each choice. Invariant: each token is listed once.
"""

from collections.abc import Iterable, Sequence
from copy import deepcopy

import numpy as np
from numpy.typing import NDArray


class TokenCounts:
    def __init__(self, prompt: Sequence[int]) -> None:
        self._prompt = np.unique(np.array(prompt, np.int64))  # sorted; never changed
        self._ids = self._prompt  # then the tokens that only the output contains
        self._generated = np.zeros(len(self._ids), np.float32)
        self._distinct = len(self._ids)
        self._index: dict[int, int] = {}  # of each generated token
        self.length = len(prompt)  # tokens counted, prompt and output

    def another(self) -> "TokenCounts":
        """For another choice of the same prompt, before either has output."""
        assert not self._index
        return deepcopy(self)

    @property
    def ids(self) -> NDArray[np.int64]:
        return self._ids[: self._distinct]

    @property
    def generated(self) -> NDArray[np.float32]:
        """[ids] how often each was generated; 0 for a token that only the prompt contains."""
        return self._generated[: self._distinct]

    @property
    def output(self) -> NDArray[np.int64]:
        """The places in `ids` of the tokens that were generated."""
        return np.fromiter(self._index.values(), np.int64, len(self._index))

    def add(self, output: Iterable[int]) -> None:
        """Count the next tokens of the output."""
        for token in output:
            index = self._index.get(token)
            if index is None:
                index = self._index[token] = self._find(token)
            self._generated[index] += 1
            self.length += 1

    def _find(self, token: int) -> int:
        """Its place, new if the prompt does not contain it."""
        index = int(self._prompt.searchsorted(token))
        if index < len(self._prompt) and self._prompt[index] == token:
            return index
        index = self._distinct
        if index == len(self._ids):
            self._grow()
        self._ids[index] = token
        self._distinct += 1
        return index

    def _grow(self) -> None:
        more = max(16, len(self._ids))
        self._ids = np.concatenate([self._ids, np.zeros(more, np.int64)])
        self._generated = np.concatenate([self._generated, np.zeros(more, np.float32)])
