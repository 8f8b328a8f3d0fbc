"""Compiles the kernels for GPUs that this machine need not have: `python -m kernels.compile --arch sm_80 --arch sm_90`.

For each launch that a kernel's file lists (`launches`), prints a Markdown row with the registers, spilled bytes and
shared memory of its machine code. Exits with 1 if a kernel spills that may not, or needs more shared memory than one
program can have on the chip. `--checked` compiles only the short list of `make check`; `--document docs/kernels.md`
replaces the table in that document.

Knows no kernel. Invariant: the figures are read from the machine code, never estimated.
"""

import argparse
import importlib
import os
import pkgutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import TextIO

import triton

import kernels
from kernels.capture import Variant, capture, target_of
from kernels.launch import Launch
from kernels.usage import HEAD, SHARED_BYTES_MAX, Usage
from kernels.usage_document import NoTable, check, write_table

_CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


def launches(architecture: str) -> list[Launch]:
    """The launches of every module in this package that has a function `launches`."""
    names = (module.name for module in pkgutil.iter_modules(kernels.__path__) if module.name != "compile")
    modules = [importlib.import_module(f"kernels.{name}") for name in names]
    return [launch for module in modules if hasattr(module, "launches") for launch in module.launches(architecture)]


def compile_launch(architecture: str, launch: Launch) -> Iterator[Usage]:
    """The usage of each kernel that the launcher starts."""
    with capture(architecture) as caught:
        launch.run()
    for variant in caught.variants.values():
        yield _compile(architecture, launch, variant)


def _compile(architecture: str, launch: Launch, variant: Variant) -> Usage:
    kernel = triton.compile(variant.source, target=target_of(architecture), options=variant.options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        shown = subprocess.run(
            [_CUOBJDUMP, "--dump-resource-usage", file.name], capture_output=True, text=True, timeout=30, check=True
        )
    words = ("REG:" + shown.stdout.split("REG:")[1]).split()
    numbers = {name: int(number) for name, _, number in (word.partition(":") for word in words) if number.isdigit()}
    return Usage(
        architecture,
        launch.name,
        variant.kernel,
        registers=numbers["REG"],
        spilled_bytes=numbers["STACK"] + numbers["LOCAL"],
        shared_bytes=kernel.metadata.shared,
        may_spill=launch.may_spill,
    )


def report(usages: Iterable[Usage], out: TextIO) -> list[Usage]:
    """Write the table to `out`, each row as soon as it is known, and return all rows."""
    print(HEAD, file=out)
    known: list[Usage] = []
    for usage in usages:
        print(usage.row(), file=out, flush=True)
        known.append(usage)
    return known


def _compile_named(work: tuple[str, str]) -> list[Usage]:
    """For a process pool: a launch cannot be pickled, so the process finds it by name."""
    architecture, name = work
    launch = next(launch for launch in launches(architecture) if launch.name == name)
    return list(compile_launch(architecture, launch))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.compile")
    parser.add_argument("--arch", action="append", choices=sorted(SHARED_BYTES_MAX), required=True)
    parser.add_argument("--checked", action="store_true", help="only the short list of `make check`")
    parser.add_argument("--only", default="", help="launches whose name contains this")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--document", type=Path, help="the file whose table of all launches to replace")
    options = parser.parse_args(arguments)
    if options.document:
        try:
            check(options.document)
        except NoTable as error:
            parser.error(str(error))
    work = [
        (architecture, launch.name)
        for architecture in options.arch
        for launch in launches(architecture)
        if options.only in launch.name and (launch.checked or not options.checked)
    ]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("fork")) as pool:
        usages = report(chain.from_iterable(pool.map(_compile_named, work)), sys.stdout)
    if options.document:
        write_table(options.document, usages)
    faults = sum(usage.fault() is not None for usage in usages)
    print(f"{len(work)} launches, {faults} faults", file=sys.stderr)
    return 1 if faults or not work else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
