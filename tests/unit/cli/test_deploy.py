"""The container files say the same as the code."""

import json
import os
import re
import subprocess
from pathlib import Path

from cli.embedded import nats

ROOT = Path(__file__).parents[3]
CONF = ROOT / "deploy" / "nats.conf"


def expected() -> str:
    """deploy/nats.conf as the embedded server's configuration gives it, with passwords from the environment."""
    passwords = {role: f"@NATS_{role.upper()}_PASSWORD" for role in nats.ROLES}
    values = nats.configuration(Path("/data"), passwords, port=4222, host="0.0.0.0")
    text = json.dumps({"http_port": 8222, **values}, indent=2)
    return re.sub(r'"@(\w+)"', r"$\1", text) + "\n"


def test_the_servers_in_containers_have_the_users_and_permissions_of_the_embedded_one() -> None:
    comments, _, body = CONF.read_text().partition("{")
    assert all(line.startswith("#") for line in comments.splitlines())
    assert "{" + body == expected(), f"write this to deploy/nats.conf:\n{expected()}"


def test_nats_server_accepts_the_file() -> None:
    passwords = {f"NATS_{role.upper()}_PASSWORD": f"change-me-{role}" for role in nats.ROLES}
    checked = subprocess.run(
        [nats.program(), "-t", "-c", str(CONF)],
        env={**os.environ, **passwords},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert checked.returncode == 0, checked.stderr
