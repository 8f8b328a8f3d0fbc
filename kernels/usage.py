"""What one compiled kernel takes of a chip, and whether the chip has it.

Owns the limits of chips and the judgement. Knows no kernel and no compiler. Invariant: the numbers are those of the
machine code.
"""

from dataclasses import dataclass

# Shared memory per program, from the table of compute capabilities in NVIDIA's programming guide.
SHARED_BYTES_MAX = {"sm_80": 163 * 1024, "sm_86": 99 * 1024, "sm_89": 99 * 1024, "sm_90": 227 * 1024}

HEAD = "| chip | launch | kernel | registers | bytes spilled | shared memory | fault |\n|---|---|---|--:|--:|--:|---|"


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one variant on one architecture."""

    architecture: str
    launch: str
    kernel: str
    registers: int
    spilled_bytes: int  # of each thread: its stack, which nothing but spilled registers uses here
    shared_bytes: int
    may_spill: bool

    def fault(self) -> str | None:
        if self.spilled_bytes and not self.may_spill:
            return "spills"
        if self.shared_bytes > SHARED_BYTES_MAX[self.architecture]:
            return "does not fit into shared memory"
        return None

    def row(self) -> str:
        kib = f"{self.shared_bytes / 1024:.1f} KiB"
        cells = (self.architecture, self.launch, self.kernel, self.registers, self.spilled_bytes, kib)
        return f"| {' | '.join(str(cell) for cell in cells)} | {self.fault() or ''} |"
