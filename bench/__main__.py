"""`python -m bench`: all benchmarks, or one. They are named by import path, so that only the chosen one is imported."""

import importlib
import signal
import sys

import cyclopts

from bench.errors import BenchError
from worker.models.errors import ModelFileError

INTERRUPTED = 130  # the exit status that shells give a program that SIGINT ended

app = cyclopts.App(
    name="python -m bench",
    help="Measure Forebay. Tables are printed, rows appended to bench/results. Leave the machine to it alone.",
    help_format="plaintext",
    version_flags=[],
)

app.command("bench.scheduler:run", name="scheduler", help="The engine's own work, without a model: seconds.")
app.command("bench.engine:run", name="engine", help="The engine with the real model, in process.")
app.command("bench.sampling:run", name="sampling", help="The sampler alone; records nothing.")
app.command("bench.stack:run", name="stack", help="Everything together with the real model, over HTTP.")
app.command("bench.gateway:run", name="gateway", help="Gateway, NATS and limiter, against a fake engine.")
app.command("bench.overload:run", name="overload", help="Three times what a fleet can do, against a fake engine.")
app.command("bench.neighbours:run", name="neighbours", help="What an abusive tenant does to another's first token.")
app.command("bench.quality:run", name="quality", help="What each way to keep weights brings and costs.")
app.command("bench.load_command:run", name="load", help="Put load on any OpenAI-compatible server; records nothing.")


@app.default
def everything(*, quick: bool = False) -> None:
    """Run scheduler, engine, stack and gateway: some minutes.

    Parameters
    ----------
    quick
        Fewer requests: shows that everything works, and roughly how fast.
    """
    for part in ("scheduler", "engine", "stack", "gateway"):
        importlib.import_module(f"bench.{part}").run(quick=quick)


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs with SIGINT ignored
    signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        app()
    except (BenchError, ModelFileError) as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _as_interrupt(number: int, frame: object) -> None:  # noqa: ARG001 - a signal handler's
    """SIGTERM acts as Ctrl-C: an event loop turns that into a cancellation, which stops whatever was started."""
    signal.raise_signal(signal.SIGINT)


if __name__ == "__main__":
    main()
