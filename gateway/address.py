"""The address that a request came from: its peer's or, behind trusted proxies, the one that they forward for.

Pure. `X-Forwarded-For` is read from the right end, as long as the proxy that added an entry is trusted; entries further
left could be forged and are ignored. Invariant: an address that cannot be determined for sure is None, which is in no
network.
"""

import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address

HOPS_MAX: Final = 32
MAPPED: Final = 96  # bits before the IPv4 address in ::ffff:192.0.2.1
_WITH_PORT: Final = re.compile(r"(?P<ipv4>[0-9.]+):[0-9]{1,5}|\[(?P<ipv6>[0-9A-Fa-f:.]+)\](:[0-9]{1,5})?")


def network(text: str) -> Network:
    """Parse a network; one of IPv4-mapped IPv6 addresses becomes that IPv4 network. Raises ValueError."""
    found = ip_network(text)
    mapped = getattr(found.network_address, "ipv4_mapped", None)
    return found if mapped is None or found.prefixlen < MAPPED else ip_network((mapped, found.prefixlen - MAPPED))


def networks(text: str) -> tuple[Network, ...]:
    """Parse a comma-separated list of networks. Raises ValueError."""
    return tuple(network(part.strip()) for part in text.split(",") if part.strip())


def client(peer: str, forwarded: Sequence[str], trusted: Sequence[Network]) -> Address | None:
    """The address behind a connection from `peer` with these values of X-Forwarded-For."""
    address = _parsed(peer)
    if not trusted or not is_in(address, trusted):
        return address
    hops = ",".join(forwarded).rsplit(",", HOPS_MAX)
    for hop in reversed(hops if forwarded else []):
        address = _parsed(_without_port(hop.strip()))
        if not is_in(address, trusted):
            break
    return address


def is_in(address: Address | None, allowed: Sequence[Network]) -> bool:
    return address is not None and any(address in network for network in allowed)


def _without_port(hop: str) -> str:
    """Some balancers write 192.0.2.1:1234, and [2001:db8::1]:1234 or [2001:db8::1]."""
    found = _WITH_PORT.fullmatch(hop)
    return hop if found is None else found["ipv4"] or found["ipv6"]


def _parsed(text: str) -> Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
