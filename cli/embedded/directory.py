"""The data directory of `forebay up`: its layout, its lock, its passwords, and who may read it.

It knows nothing of processes. Invariant: whoever holds `Lock` is the only one that starts, stops or writes here;
a password is in `secrets.json` before anything is created with it.

    DIR/
      lock  state.json  secrets.json  demo.env      mode 600
      postgres/  nats/                              the servers' data
      logs/                                         one file a process, and the one before
"""

import fcntl
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from cli.errors import AlreadyRunning, DataDirectoryError

PASSWORD_BYTES = 18
OURS = frozenset({"lock", "logs", "nats", "postgres", "postgres.new", "state.json", "demo.env", ".secrets.json.new"})


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """Passwords of this directory's servers and the demo keys, made once."""

    postgres: str  # the superuser's, used for the first set-up alone
    forebay: str  # the owner of the database
    gateway: str = ""  # gateways, which own nothing in it
    nats: dict[str, str]  # role -> password
    keys: dict[str, str] = {}  # "acme", "hobby", "admin" -> the full key


class DataDirectory:
    """Paths in one data directory, and the files that belong to the directory itself."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.postgres = self.root / "postgres"
        self.nats = self.root / "nats"
        self.logs = self.root / "logs"
        self.state_file = self.root / "state.json"
        self.secrets_file = self.root / "secrets.json"
        self.demo_env = self.root / "demo.env"

    def prepare(self) -> None:
        """Create the directory. Raises DataDirectoryError when it holds something that is not Forebay's."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            foreign = [path.name for path in self.root.iterdir() if path.name not in OURS]
            if foreign and not self.secrets_file.exists():
                raise DataDirectoryError(
                    f"{self.root} holds other files ({foreign[0]}) and no Forebay data: choose another --data-dir"
                )
            for folder in (self.nats, self.logs):
                folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise DataDirectoryError(f"{self.root} cannot be used: {error.strerror}") from error

    @contextmanager
    def lock(self) -> Generator[None]:
        """Hold the directory. Raises AlreadyRunning when another process does."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise DataDirectoryError(f"{self.root} cannot be used: {error.strerror}") from error
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(handle, 32).decode() or "?"
                raise AlreadyRunning(
                    f"already running on {self.root} (process {holder}): `forebay status` shows it, "
                    "`forebay down` stops it, --data-dir starts another"
                ) from None
            os.ftruncate(handle, 0)
            os.write(handle, str(os.getpid()).encode())
            yield
        finally:
            os.close(handle)

    def is_locked(self) -> bool:
        """Whether an `up` is alive on this directory."""
        try:
            with (self.root / "lock").open("rb") as handle:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except (FileNotFoundError, NotADirectoryError):
            return False
        return False

    def load_secrets(self, nats_roles: tuple[str, ...]) -> Secrets:
        """This directory's passwords; made at the first call, with one for each of `nats_roles`."""
        if self.secrets_file.exists():
            try:
                found = msgspec.json.decode(self.secrets_file.read_bytes(), type=Secrets)
            except msgspec.DecodeError as error:
                raise DataDirectoryError(f"{self.secrets_file} is damaged: {error}") from error
            if not found.gateway:  # from a version in which gateways used the owner's account
                found = msgspec.structs.replace(found, gateway=_password())
                self.save_secrets(found)
            return found
        if self.postgres.exists():
            raise DataDirectoryError(f"{self.secrets_file} is missing, so {self.postgres} cannot be opened")
        nats = {role: _password() for role in nats_roles}
        made = Secrets(postgres=_password(), forebay=_password(), gateway=_password(), nats=nats)
        self.save_secrets(made)
        return made

    def save_secrets(self, value: Secrets) -> None:
        write_private(self.secrets_file, msgspec.json.encode(value))


def _password() -> str:
    return secrets.token_urlsafe(PASSWORD_BYTES)


def write_private(path: Path, content: bytes) -> None:
    """Replace `path` in one step with a file that only its owner can read."""
    fresh = path.with_name(f".{path.name}.new")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    fresh.replace(path)
