"""`demo.env`: what a shell needs to be a tenant, an admin or a billing job of this stack."""

import shlex

from cli.embedded.directory import DataDirectory, write_private
from cli.embedded.settings import UpSettings
from cli.embedded.stack import Urls
from cli.errors import DataDirectoryError

EXPORT = "export "


def write(directory: DataDirectory, settings: UpSettings, urls: Urls, keys: dict[str, str]) -> None:
    values = {
        "OPENAI_BASE_URL": settings.base_url,
        "OPENAI_API_KEY": keys["acme"],
        "FOREBAY_HOBBY_KEY": keys["hobby"],
        "FOREBAY_ADMIN_KEY": keys["admin"],
        "FOREBAY_POSTGRES_URL": urls.postgres,
        "FOREBAY_NATS_URL": urls.nats["admin"],
    }
    lines = [f"{EXPORT}{name}={shlex.quote(value)}\n" for name, value in values.items()]
    write_private(directory.demo_env, "".join(lines).encode())


def read(directory: DataDirectory) -> dict[str, str]:
    """The values of an existing demo.env; empty when there is none. Raises DataDirectoryError."""
    try:
        text = directory.demo_env.read_text()
        assignments = [shlex.split(line.removeprefix(EXPORT)) for line in text.splitlines() if line.startswith(EXPORT)]
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise DataDirectoryError(f"{directory.demo_env} cannot be read: {error}") from error
    pairs = (words[0].partition("=") for words in assignments if words)
    return {name: value for name, _, value in pairs}
