"""The form of an API key: `fb-<env>-<public id>-<secret><checksum>`.

The public id (12 characters) finds the row and may be shown and logged. The secret (43 characters, 256 bits) exists
in full only in the caller's hands: the database keeps its SHA-256, which for a random secret of that size needs no
salt and no slow hash. The checksum (6 characters, CRC-32 of all before it) lets a mistyped or foreign key be
refused without a look-up, and secret scanners tell ours from noise.

Knows nothing of tenants, databases or HTTP. Invariant: a text that `parse` accepts differs from every other accepted
text with the same public id in its secret, so a key has one spelling.
"""

import hashlib
import hmac
import re
import secrets
import string
import zlib

import msgspec

DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase
PUBLIC_ID_DIGITS = string.digits + string.ascii_lowercase
PUBLIC_ID_LENGTH = 12
SECRET_LENGTH = 43  # 62**43 > 2**256
CHECKSUM_LENGTH = 6
KEY_LENGTH_MAX = 80

_FORM = re.compile(
    rf"fb-(?P<env>[a-z]{{1,8}})-(?P<public_id>[0-9a-z]{{{PUBLIC_ID_LENGTH}}})"
    rf"-(?P<secret>[0-9A-Za-z]{{{SECRET_LENGTH}}})(?P<checksum>[0-9A-Za-z]{{{CHECKSUM_LENGTH}}})",
    re.ASCII,
)
_SECRET = re.compile(rf"(fb-[a-z]{{1,8}}-[0-9a-z]{{{PUBLIC_ID_LENGTH}}}-)[0-9A-Za-z]+", re.ASCII)


class ParsedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A well-formed key as a client sent it. Holds the secret's digest and not the secret."""

    env: str
    public_id: str
    digest: bytes


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored of a new key."""

    env: str
    public_id: str
    digest: bytes
    last4: str


def digest(secret: str) -> bytes:
    """SHA-256 of the secret, 32 bytes."""
    return hashlib.sha256(secret.encode("ascii")).digest()


def verify(key: ParsedKey, stored_digest: bytes) -> bool:
    """Whether the key's secret is the stored one, in constant time."""
    return hmac.compare_digest(key.digest, stored_digest)


def generate(env: str) -> tuple[str, KeyRecord]:
    """A new key: its full text, to be shown once, and what to store."""
    return renew(env, "".join(secrets.choice(PUBLIC_ID_DIGITS) for _ in range(PUBLIC_ID_LENGTH)))


def renew(env: str, public_id: str) -> tuple[str, KeyRecord]:
    """A new secret for a key that has its public id already; returns the same as `generate`."""
    secret = "".join(secrets.choice(DIGITS) for _ in range(SECRET_LENGTH))
    head = f"fb-{env}-{public_id}-{secret}"
    text = head + _checksum(head)
    stored = record(text)
    if stored is None:
        raise ValueError(f"an environment is 1 to 8 lower-case letters, not {env!r}")
    return text, stored


def record(text: str) -> KeyRecord | None:
    """What to store of a key that exists already, None if it is not a key."""
    parsed = parse(text)
    if parsed is None:
        return None
    return KeyRecord(env=parsed.env, public_id=parsed.public_id, digest=parsed.digest, last4=text[-4:])


def parse(text: str) -> ParsedKey | None:
    """The parts of a key whose form and checksum are right, else None."""
    if len(text) > KEY_LENGTH_MAX:
        return None
    match = _FORM.fullmatch(text)
    if match is None or _checksum(text[:-CHECKSUM_LENGTH]) != match["checksum"]:
        return None
    return ParsedKey(env=match["env"], public_id=match["public_id"], digest=digest(match["secret"]))


def redact(text: str) -> str:
    """`text` without the secrets of keys in it, be they complete or truncated, with a correct checksum or not."""
    return _SECRET.sub(r"\1***", text)


def _checksum(head: str) -> str:
    value = zlib.crc32(head.encode("ascii"))
    digits: list[str] = []
    for _ in range(CHECKSUM_LENGTH):
        value, digit = divmod(value, len(DIGITS))
        digits.append(DIGITS[digit])
    return "".join(reversed(digits))
