"""Processes that a killed `up` left running: finds them by the state file and stops them."""

import contextlib
from collections.abc import Callable

import psutil

from cli.embedded.state import Service, State

STOP_SECONDS_MAX = 20.0
KILL_SECONDS_MAX = 5.0


def alive(state: State) -> list[Service]:
    """The services of `state` that still run, in start order."""
    return [service for service in state.services if service.mark.find() is not None]


def stop(state: State, say: Callable[[str], None]) -> None:
    """Stop them one after the other, the last started first, as the supervisor does."""
    for service in reversed(alive(state)):
        say(f"stopping {service.name} (process {service.mark.pid}), left by an `up` that was killed")
        process = service.mark.find()
        if process is None:
            continue
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(service.stop_signal)
            _, still = psutil.wait_procs([process], timeout=STOP_SECONDS_MAX)
            for stubborn in still:
                stubborn.kill()
            psutil.wait_procs(still, timeout=KILL_SECONDS_MAX)
