"""`forebay chat`: a conversation with a model, through the gateway, in the terminal.

Speaks the public API and nothing else, over the standard library's HTTP client, so that it works wherever the
command is installed. The conversation is kept in memory and sent whole with every turn.
"""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from cli.embedded import demo
from cli.embedded.directory import DataDirectory
from cli.embedded.settings import environment, from_environment
from cli.errors import CommandError
from cli.request import answered

ANSWER_SECONDS_MAX = 120.0  # between two pieces of an answer


@dataclass(slots=True)
class Conversation:
    """One tenant's conversation with one model."""

    base_url: str  # ends in /v1
    key: str
    model: str = ""
    temperature: float | None = None
    messages: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    def ask(self, text: str) -> Iterator[str]:
        """Send `text`; the answer piece by piece. Raises CommandError with what the gateway said."""
        turn = [*self.messages, {"role": "user", "content": text}]
        body: dict[str, Any] = {"model": self.model, "messages": turn, "stream": True}
        if self.temperature is not None:
            body["temperature"] = self.temperature
        answer = ""
        for event in self._events("/chat/completions", body):
            if "error" in event:
                raise CommandError(event["error"]["message"])
            for choice in event["choices"]:
                piece = choice["delta"].get("content") or ""
                answer += piece
                yield piece
        self.messages = [*turn, {"role": "assistant", "content": answer}]

    def models(self) -> list[str]:
        with answered(self.base_url, self.key, "GET", "/models", timeout_s=ANSWER_SECONDS_MAX) as response:
            return [model["id"] for model in json.load(response)["data"]]

    def _events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        sent = json.dumps(body)
        with answered(self.base_url, self.key, "POST", path, sent, timeout_s=ANSWER_SECONDS_MAX) as response:
            for line in response:
                data = line.strip().removeprefix(b"data: ")
                if line.startswith(b"data: ") and data != b"[DONE]":
                    yield json.loads(data)


def chat(
    *question: str,
    model: str | None = None,
    base_url: str | None = None,
    key: str | None = None,
    temperature: float | None = None,
    data_dir: Path | None = None,
) -> None:
    """Ask one question, or talk until Ctrl-D.

    Parameters
    ----------
    question
        Asked and answered at once; without it, lines are read from the terminal.
    model
        Which model to talk to. [default: the first that the gateway serves]
    base_url
        The gateway's address, ending in /v1. [default: OPENAI_BASE_URL, else that of demo.env]
    key
        The API key. [default: OPENAI_API_KEY, else that of demo.env]
    temperature
        0 is the most likely answer. [default: the gateway's]
    data_dir
        The data directory whose demo.env is read. [default: .forebay]
    """
    settings = from_environment(environment(os.environ, {"data_dir": data_dir}))
    known = {**demo.read(DataDirectory(settings.data_path)), **os.environ}
    base_url, key = base_url or known.get("OPENAI_BASE_URL"), key or known.get("OPENAI_API_KEY")
    if not base_url or not key:
        raise CommandError(
            "OPENAI_BASE_URL and OPENAI_API_KEY are not set: start `forebay up`, then source its demo.env"
        )
    conversation = Conversation(base_url=base_url.rstrip("/"), key=key, temperature=temperature)
    conversation.model = model or _first_model(conversation)
    if question:
        _say(conversation, " ".join(question))
    else:
        _talk(conversation)


def _first_model(conversation: Conversation) -> str:
    models = conversation.models()
    if not models:
        raise CommandError("the gateway serves no model now: `forebay fleet` shows its workers")
    return models[0]


def _talk(conversation: Conversation) -> None:
    console = Console(highlight=False)
    if sys.stdin.isatty():
        console.print(f"{conversation.model} at {conversation.base_url}; Ctrl-D ends", style="dim", markup=False)
    while True:
        try:
            line = console.input("[bold]> [/bold]") if sys.stdin.isatty() else input()
        except (EOFError, KeyboardInterrupt):
            return
        if line.strip():
            try:
                _say(conversation, line)
            except CommandError as error:
                print(f"forebay: {error}", file=sys.stderr)
            except KeyboardInterrupt:
                print()  # the answer was cut off by its reader; the connection is closed, which cancels it


def _say(conversation: Conversation, text: str) -> None:
    for piece in conversation.ask(text):
        sys.stdout.write(piece)
        sys.stdout.flush()
    print()
