from ipaddress import ip_address

import pytest

from gateway import address
from gateway.settings import GatewaySettings
from shared.settings import SettingsError, load

PROXIES = address.networks("10.0.0.0/8, 2001:db8::/32")


@pytest.mark.parametrize(
    ("peer", "forwarded", "found"),
    [
        ("192.0.2.1", [], "192.0.2.1"),
        ("192.0.2.1", ["198.51.100.7"], "192.0.2.1"),  # not a proxy: what it says is its own invention
        ("10.0.0.1", ["198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", ["203.0.113.9, 198.51.100.7"], "198.51.100.7"),  # the left part is the client's invention
        ("10.0.0.1", ["203.0.113.9", "198.51.100.7"], "198.51.100.7"),  # two lines are one list
        ("10.0.0.1", ["198.51.100.7, 10.0.0.2, 2001:db8::5"], "198.51.100.7"),
        ("10.0.0.1", ["203.0.113.9, 198.51.100.7:51234, 10.0.0.2:80"], "198.51.100.7"),  # as some balancers write it
        ("10.0.0.1", ["[2001:db9::7]:443, [2001:db8::5]"], "2001:db9::7"),
        ("10.0.0.1", ["198.51.100.7:port"], None),
        ("10.0.0.1", ["2001:db9::7:443:80:1:2:3"], None),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", ["198.51.100.7, nonsense"], None),
        ("10.0.0.1", ["198.51.100.7,"], None),
        ("10.0.0.1", [""], None),
        ("10.0.0.1", ["198.51.100.7," + "10.0.0.2," * 40 + "10.0.0.3"], None),  # more hops than anybody looks at
        ("::ffff:10.0.0.1", ["::ffff:198.51.100.7"], "198.51.100.7"),
        ("", [], None),
        ("unix", ["198.51.100.7"], None),
    ],
)
def test_who_is_behind_a_connection(peer: str, forwarded: list[str], found: str | None) -> None:
    assert address.client(peer, forwarded, PROXIES) == (found and ip_address(found))


def test_without_trusted_proxies_nobody_speaks_for_another() -> None:
    assert address.client("10.0.0.1", ["198.51.100.7"], ()) == ip_address("10.0.0.1")


def test_an_address_that_cannot_be_told_is_in_no_network() -> None:
    assert not address.is_in(None, address.networks("0.0.0.0/0, ::/0"))
    assert not address.is_in(ip_address("192.0.2.1"), ())
    assert address.is_in(ip_address("192.0.2.1"), address.networks("192.0.2.0/24"))


def test_an_ipv4_network_in_ipv6s_spelling_is_that_network() -> None:
    assert address.networks("::ffff:192.0.2.0/120, ::ffff:192.0.2.1") == address.networks("192.0.2.0/24, 192.0.2.1/32")
    for wider in ("::/0", "::fffe:0:0/95", "2001:db8::/32"):
        assert str(address.network(wider)) == wider


def test_the_setting_is_read_at_the_start() -> None:
    wanted = {"FOREBAY_POSTGRES_URL": "p", "FOREBAY_NATS_URL": "n"}
    given = load(GatewaySettings, {**wanted, "FOREBAY_TRUSTED_PROXIES": "10.0.0.0/8"})
    assert given.trusted_networks == address.networks("10.0.0.0/8")
    assert load(GatewaySettings, wanted).trusted_networks == ()
    with pytest.raises(SettingsError, match="has host bits set"):
        load(GatewaySettings, {**wanted, "FOREBAY_TRUSTED_PROXIES": "10.0.0.1/8"})
