"""One figure of a benchmark's table, and whether it meets its target."""

from typing import Literal

import msgspec

from bench.table import Cell

COLUMNS = ["what", "value", "unit", "target", "met"]


class Measure(msgspec.Struct, frozen=True):
    what: str
    value: float
    unit: str
    target: tuple[Literal["<=", ">="], float] | None = None

    @property
    def cells(self) -> list[Cell]:
        if self.target is None:
            return [self.what, self.value, self.unit, "", ""]
        relation, bound = self.target
        met = self.value <= bound if relation == "<=" else self.value >= bound
        return [self.what, self.value, self.unit, f"{relation} {bound:,g}", "yes" if met else "no"]
