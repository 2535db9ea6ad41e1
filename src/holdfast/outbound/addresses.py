"""Which addresses may be reached. A name is resolved once, judged, and the address that was judged is used."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple

from holdfast.errors import AddressRefused, InvalidValue

Address = IPv4Address | IPv6Address
_NAT64 = IPv6Network("64:ff9b::/96")
_UNICAST = IPv6Network("2000::/3")
"""All that is handed out of IPv6. What lies beside it are tunnels and leftovers that may lead to this very host."""


class Place(NamedTuple):
    """Where to connect: an address, never a name."""

    family: int
    address: str
    port: int


class Gate:
    """Lets connections out to public addresses, and to those networks that were allowed by name."""

    def __init__(self, allow: Sequence[str] = ()) -> None:
        try:
            self._allowed = tuple(ip_network(each) for each in allow)
        except ValueError as error:
            raise InvalidValue(f"allow takes networks such as '10.0.0.0/8' or '127.0.0.1/32': {error}") from error

    def resolve(self, host: str, port: int) -> Place:
        """The place behind a name. If one of its addresses is not to be reached, none is: names change their mind."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for *_, there in found:
            address = ip_address(str(there[0]).partition("%")[0])
            if not self.is_open(address):
                raise AddressRefused(
                    f"{host} means {address}, which is no public address; allow its network to reach it"
                )
        family, *_, there = found[0]
        return Place(family, str(there[0]), port)

    def check_plain(self, host: str, place: Place) -> None:
        """Refuse to speak without encryption to a place that was not allowed by name."""
        if not self.is_allowed(place.address):
            raise AddressRefused(f"plain http goes only to networks that were allowed; use https for {host}")

    def is_allowed(self, address: str) -> bool:
        """Was this address allowed by name?"""
        found = _meant(ip_address(address.partition("%")[0]))
        return any(found.version == network.version and found in network for network in self._allowed)

    def is_open(self, address: Address) -> bool:
        meant = _meant(address)
        if self.is_allowed(str(meant)):
            return True
        return meant.is_global and not meant.is_multicast and (meant.version == 4 or meant in _UNICAST)


def _meant(address: Address) -> Address:
    """The address inside the address: IPv6 can carry an IPv4 one in several ways."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.teredo[1] if address.teredo is not None else address
