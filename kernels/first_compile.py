"""`python -m kernels.first_compile`: compiles the attention of `cpu_layers` into numba's cache.

At a worker's very first start that is a third of what must be compiled, and numba compiles one function at a time per
process: the worker runs this in a second process while it loads weights. Knows no model: attention has the same types
in all of them.
"""

from typing import Any

import numba
import numpy as np

from kernels.cpu_layers import attend_decodes, attend_prompt

TWO, THREE, FOUR, FIVE = (np.zeros((1,) * rank, np.float32) for rank in (2, 3, 4, 5))
PLACES, NUMBERS = np.zeros(1, np.int64), np.zeros(1, np.int32)
COUNTS, TABLES = np.zeros((1, 1), np.int64), np.zeros((1, 1), np.int32)
DECODES = PLACES, PLACES, TABLES, NUMBERS, 1
# With the types that `layers` passes.
CALLS: tuple[tuple[Any, tuple[Any, ...]], ...] = (
    (attend_decodes, (THREE, FOUR, FOUR, DECODES, 0, np.float32(1), THREE, COUNTS, 0)),
    (attend_prompt, (THREE, (FOUR, FOUR), (FIVE, FIVE), NUMBERS, 0, 0, np.float32(1), THREE, COUNTS, 0)),
)


def main() -> None:
    for function, arguments in CALLS:
        function.compile(tuple(map(numba.typeof, arguments)))


if __name__ == "__main__":
    main()
