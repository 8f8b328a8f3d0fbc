"""The start of the whole stack, step by step: NATS, workers, Postgres, schema, demo tenants, then gateways.

Only wiring: each step is carried out by its own module. Loading a model takes longest, so nothing that a worker can do
without keeps it from starting: it needs NATS when it has loaded, and no database.
"""

import asyncio
import importlib
import shlex
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from cli.embedded import demo, nats, ports, postgres, stack
from cli.embedded.child import Child
from cli.embedded.directory import DataDirectory, Secrets
from cli.embedded.settings import UpSettings
from cli.embedded.stack import Urls
from cli.embedded.supervisor import Supervisor
from cli.embedded.terminal import Terminal
from cli.errors import CommandError


@dataclass(frozen=True, slots=True)
class Start:
    """Called by the supervisor; returns when everything is ready. Raises CommandError."""

    settings: UpSettings
    environ: Mapping[str, str]
    directory: DataDirectory
    terminal: Terminal

    async def __call__(self, supervisor: Supervisor) -> None:
        stack.check_ports(self.settings)
        secrets = self.directory.load_secrets(nats.ROLES)
        nats_server, nats_urls = await self._nats(supervisor, secrets)
        workers = stack.workers(self.settings, self.directory, self.environ, nats_urls)
        await supervisor.start(workers)
        with self.terminal.spinner("starting NATS and Postgres"):
            owner_url, gateway_url = await self._postgres(supervisor, secrets)
            await self._nats_listens(supervisor, nats_server)
        urls = Urls(postgres=owner_url, gateway_postgres=gateway_url, nats=nats_urls)
        with self.terminal.spinner("preparing the database"):
            keys = await self._database(urls, secrets)
        demo.write(self.directory, self.settings, urls, keys)
        gateways = stack.gateways(self.settings, self.directory, self.environ, urls)
        # Started last and so stopped first, while workers can still finish their streams.
        await supervisor.start(gateways)
        with self.terminal.spinner("starting gateways and workers"):
            await supervisor.until_healthy([*workers, *gateways], self.settings.start_s)
        self._welcome()

    async def _postgres(self, supervisor: Supervisor, secrets: Secrets) -> tuple[str, str]:
        """The owner's URL and the gateways'."""
        outside = self.settings.postgres_url
        if outside is not None and not stack.is_ours(outside.reveal(), secrets):
            self.terminal.say("  postgres     not started here: FOREBAY_POSTGRES_URL is set in this shell")
            return outside.reveal(), outside.reveal()
        port = ports.pick(self._port_before("FOREBAY_POSTGRES_URL", secrets))
        superuser_url, owner_url, gateway_url = stack.postgres_urls(secrets, port)
        await asyncio.to_thread(postgres.ensure_cluster, self.directory, secrets, self.terminal.say)
        child = postgres.child(self.directory, port)
        await supervisor.start([child])
        for name in ("gateway.db.migrate", "gateway.db.seed"):  # what `_database` needs, while the server starts
            importlib.import_module(name)
        await supervisor.until(child, postgres.wait_ready(superuser_url))
        await postgres.ensure_database(superuser_url, secrets.forebay)
        self.terminal.say(f"  postgres     {child.address}")
        return owner_url, gateway_url

    async def _nats(self, supervisor: Supervisor, secrets: Secrets) -> tuple[Child | None, dict[str, str]]:
        """The server, started but perhaps not listening yet, if it is ours; and the URLs by role."""
        outside = self.settings.nats_url
        if outside is not None and not stack.is_ours(outside.reveal(), secrets):
            self.terminal.say("  nats         not started here: FOREBAY_NATS_URL is set in this shell")
            return None, dict.fromkeys(nats.ROLES, outside.reveal())
        port = ports.pick(self._port_before("FOREBAY_NATS_URL", secrets))
        child = nats.child(self.directory, port, secrets)
        await supervisor.start([child])
        return child, stack.nats_urls(secrets, port)

    async def _nats_listens(self, supervisor: Supervisor, child: Child | None) -> None:
        if child is not None:
            port = int(child.address.rpartition(":")[2])
            await supervisor.until(child, ports.wait_listening(port, nats.READY_SECONDS_MAX))
            self.terminal.say(f"  nats         {child.address}")

    async def _database(self, urls: Urls, secrets: Secrets) -> dict[str, str]:
        """Schema, the gateways' account and demo tenants; the demo keys, made at the first start."""
        from sqlalchemy.exc import SQLAlchemyError

        from gateway.db import migrate, pools, seed

        own = stack.is_ours(urls.postgres, secrets)
        try:
            await migrate.upgrade(urls.postgres)
            if own:
                await postgres.ensure_gateway(urls.postgres, secrets.gateway)
            keys = await seed.demo(urls.postgres, secrets.keys)
        except (migrate.SchemaError, SQLAlchemyError, *pools.AWAY) as error:
            hint = "" if own else " (FOREBAY_POSTGRES_URL is set in this shell, perhaps by another demo.env)"
            raise CommandError(f"the database cannot be prepared: {str(error).splitlines()[0]}{hint}") from error
        if keys != secrets.keys:
            self.directory.save_secrets(msgspec.structs.replace(secrets, keys=keys))
        return keys

    def _port_before(self, name: str, secrets: Secrets) -> int | None:
        """The port of the last run if it is free, so that addresses noted earlier still work."""
        url = demo.read(self.directory).get(name)
        return urlsplit(url).port if url is not None and stack.is_ours(url, secrets) else None

    def _welcome(self) -> None:
        demo_env = shlex.quote(_short(self.directory.demo_env))
        forebay = shlex.quote(_short(Path(sysconfig.get_path("scripts")) / "forebay"))
        self.terminal.say(
            f"""
Forebay is ready: {self.settings.base_url}
  source {demo_env}
      sets OPENAI_BASE_URL and OPENAI_API_KEY for any OpenAI client, and the other keys and addresses
  {forebay} chat
      is a conversation in the terminal
Logs are in {_short(self.directory.logs)}. Ctrl-C stops everything."""
        )


def _short(path: Path) -> str:
    """The path as a person would type it in this folder."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
