"""`python -m bench.gpu_check --out DIR`: what the kernels and the engine do on a machine with CUDA, in under 8 minutes.

    a  kernels   every kernel against the plain reference
    b  speed     every kernel as a share of copy bandwidth or matrix products, and beside torch's own
    c  engine    random weights in the shape of Llama-3.1-8B: one sequence, 64, 256; graphs on and off
       quantized the same with weights or a KV pool in few bits: error of the logits, and speed
    d  naive     the same shape in transformers' generate

Needs Python 3.12, torch >= 2.11, triton >= 3.6, numpy, transformers, and no network. Each part runs in a process of its
own with a time limit, since a device that has failed stays failed for its process. Prints a short table; writes
gpu_check.json and gpu_check.log to DIR. `--dry-run` runs all of it on a CPU with tiny shapes, kernels interpreted: it
shows that the check works, and says nothing of speed.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.table import render

PARTS = {
    "kernels": "accuracy",
    "speed": "speed",
    "engine": "serving",
    "quantized": "quantized",
    "naive": "naive",
}
# Together less than 8 minutes. Estimated at 120, 40, 70, 67 and 20 s, mostly for compiling.
LIMITS_S = {"kernels": 180, "speed": 70, "engine": 105, "quantized": 85, "naive": 35}
DRY_PATIENCE = 5  # times longer for a dry run, which measures nothing and may share its processor
REPORT, LOG = "gpu_check.json", "gpu_check.log"


def main() -> int:
    options = _options()
    if options.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported, here and in the parts
    if options.part:
        return _run_part(options.part, options.out, dry=options.dry_run)
    log = options.out / LOG
    log.write_text("")
    parts = {name: _in_a_process(name, options.out, dry=options.dry_run) for name in PARTS}
    report = {"dry_run": options.dry_run, "parts": parts}
    (options.out / REPORT).write_text(json.dumps(report, indent=1))
    text = "\n".join(_summary(name, part) for name, part in parts.items())
    with log.open("a") as file:
        file.write(text)
    print(text)
    return 1 if any(part["faults"] for part in parts.values()) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_check")
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON and the log")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on a CPU, kernels interpreted")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {options.out} cannot be made: {error.strerror}")
    return options


def _in_a_process(name: str, out: Path, *, dry: bool) -> dict[str, Any]:
    """The part's result or, if it did not finish, the reason."""
    file = out / f"{name}.json"
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "bench.gpu_check", "--out", str(out), "--part", name]
    limit_s = LIMITS_S[name] * (DRY_PATIENCE if dry else 1)
    start = time.monotonic()
    with (out / LOG).open("a") as log:
        log.write(f"== {name}\n")
        log.flush()
        try:
            code = subprocess.run(
                [*command, *(["--dry-run"] if dry else [])],
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
                check=False,
            ).returncode
            why = f"ended with {code}; see {LOG}"
        except subprocess.TimeoutExpired:
            why = f"took more than {limit_s} s"
    empty = {"rows": [], "columns": [], "table": [], "faults": [why]}
    found = json.loads(file.read_text()) if file.exists() else empty
    file.unlink(missing_ok=True)
    return {**found, "seconds": round(time.monotonic() - start, 1)}


def _run_part(name: str, out: Path, *, dry: bool) -> int:
    from bench.gpu.machine import Machine  # noqa: PLC0415 - imports torch, after the environment is made

    machine = Machine(dry=dry)
    try:
        found = importlib.import_module(f"bench.gpu.{PARTS[name]}").run(machine)
    except Exception:  # noqa: BLE001 - the process that started this one reports it
        traceback.print_exc()
        return 1
    unfinished = out / f"{name}.tmp"  # a part that is killed while writing has no result
    unfinished.write_text(json.dumps({**asdict(found), "machine": machine.described()}))
    unfinished.replace(out / f"{name}.json")
    return 0


def _summary(name: str, part: dict[str, Any]) -> str:
    lines = [f"\n{name}, {part['seconds']} s: " + ", ".join(str(value) for value in part.get("machine", {}).values())]
    if part["table"]:
        lines.append(render(part["columns"], part["table"]))
    return "\n".join([*lines, *(f"FAULT {fault}" for fault in part["faults"])])


if __name__ == "__main__":
    sys.exit(main())
