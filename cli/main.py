"""The `forebay` command: names every subcommand and imports only the one that was asked for.

`forebay worker` must start without Litestar and `forebay gateway` without torch, so the subcommands stand here as
import paths, never as imports. An expected fault ends with one sentence on stderr and exit status 1.
"""

import os
import sys
from importlib.metadata import version

import cyclopts

from cli.errors import CommandError
from shared.settings import SettingsError

app = cyclopts.App(
    name="forebay",
    help="A multi-tenant, OpenAI-compatible gateway in front of a fleet of language-model workers.",
    version=lambda: version("forebay"),
    help_format="markdown",  # which joins the lines of a docstring before it breaks them
    default_parameter=cyclopts.Parameter(negative=()),  # no --no-json, no --empty-model
)

app.command("cli.up:up", help="Start everything on this machine.")
app.command("cli.status:status", help="Show what an `up` on a data directory is doing.")
app.command("cli.down:down", help="Stop what `up` started.")
app.command("cli.gateway:gateway", help="Run one gateway.")
app.command("cli.worker:worker", help="Run one worker.")
app.command("cli.ledger:app", name="ledger", help="Run a ledger alone: usage from NATS into Postgres.")
app.command("cli.migrate:app", name="migrate", help="Bring the database to this version's schema.")
app.command("cli.tenant:app", name="tenant", help="Create, list, show and change tenants.")
app.command("cli.plan:app", name="plan", help="Create, list, show, change and delete plans.")
app.command("cli.key:app", name="key", help="Create, list, show, change, rotate and revoke API keys.")
app.command("cli.quota:app", name="quota", help="Set, list and delete quotas.")
app.command("cli.model:app", name="model", help="List models, open and close them, and grant them.")
app.command("cli.fleet:fleet", help="Show workers and queues, as a gateway knows them.")
app.command("cli.audit:app", name="audit", help="Show who changed what.")
app.command("cli.usage:app", name="usage", help="Show what was used.")
app.command("cli.price:app", name="price", help="Set, end and list prices.")
app.command("cli.chat:chat", help="Talk to a model in the terminal.")
app.command("cli.doctor:doctor", help="Check what this machine offers.")


def main(tokens: list[str] | None = None) -> None:
    """The entry point of the console script; `tokens` replaces the shell's arguments."""
    status: str | int | None = None
    try:
        try:
            status = app(sys.argv[1:] if tokens is None else tokens)
        except SystemExit as ended:
            status = ended.code
        except (CommandError, SettingsError) as error:
            print(f"forebay: {error}", file=sys.stderr)
            status = 1
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has closed the pipe: also discard what is flushed at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)


if __name__ == "__main__":
    main()
