"""The terminal's view of a running stack: finished steps as lines, the present one as a spinner."""

import contextlib
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.status import Status


class Terminal:
    """On anything but a terminal (a pipe, a log file) the spinner's texts are left out and the lines are plain."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._status: Status | None = None

    def say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # a terminal that was closed does not keep the stack from being stopped
            self._console.print(line, markup=False)

    def waiting(self, text: str) -> None:
        """Replace the spinner's text, if one is shown."""
        if self._status is not None:
            self._status.update(text.replace("[", r"\["))

    @contextmanager
    def spinner(self, text: str) -> Generator[None]:
        if not self._console.is_terminal:
            yield
            return
        with self._console.status(text) as status:
            self._status = status
            try:
                yield
            finally:
                self._status = None
