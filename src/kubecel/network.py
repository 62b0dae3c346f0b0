# SPDX-License-Identifier: Apache-2.0
"""IP addresses, networks and URLs.

Rules: addresses have no zone and are not IPv4-mapped IPv6. A network may have host bits set. A URL is absolute or an
absolute path.
Source: k8s.io/apiserver/pkg/cel/library/{ip,cidr,urls}.go (1.37); Go's net/netip and net/url.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from urllib.parse import unquote_to_bytes

from msgspec import Struct

from kubecel import types
from kubecel.values import NO_OVERLOAD, Err, Map, Value, register

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class IP(Struct, frozen=True):
    address: Address

    @property
    def size(self) -> int:
        return self.address.max_prefixlen // 8

    def equals(self, other: Value) -> bool | Err:
        return self == other if type(other) is IP else NO_OVERLOAD


class CIDR(Struct, frozen=True):
    address: Address
    bits: int

    @property
    def size(self) -> int:
        return -(-self.bits // 8)

    def equals(self, other: Value) -> bool | Err:
        return self == other if type(other) is CIDR else NO_OVERLOAD

    def prefix(self, address: Address) -> int:
        """The address with the host bits cleared."""
        behind = self.address.max_prefixlen - self.bits
        return int(address) >> behind << behind

    def contains(self, address: Address) -> bool:
        return address.version == self.address.version and self.prefix(address) == self.prefix(self.address)


class Url(Struct, frozen=True):
    """A URL. `host` includes the port. `escaped_path` is percent-encoded."""

    text: str
    scheme: str
    host: str
    escaped_path: str
    query: str

    @property
    def work(self) -> int:
        """The work of comparing its parts, in elements."""
        return len(self.text)

    def equals(self, other: Value) -> bool | Err:
        return self.text == other.text if type(other) is Url else NO_OVERLOAD


for _kind, _type in ((IP, types.IP), (CIDR, types.CIDR), (Url, types.URL)):
    register(_kind, _type)


def _address(text: str) -> Address | Err:
    try:
        address = ipaddress.ip_address(text)
    except ValueError as error:
        return Err(f'IP Address "{text}" parse error during conversion from string: {error}')
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return Err(f'IP address "{text}" with zone value is not allowed')
        if address.ipv4_mapped is not None:
            return Err(f'IPv4-mapped IPv6 address "{text}" is not allowed')
    return address


def _ip(text: str) -> IP | Err:
    address = _address(text)
    return address if isinstance(address, Err) else IP(address)


def _cidr(text: str) -> CIDR | Err:
    before, slash, bits = text.rpartition("/")
    address = _address(before)
    if not slash or isinstance(address, Err) or not re.fullmatch(r"(?a)0|[1-9]\d{0,2}", bits):
        return Err(f'network address parse error during conversion from string: "{text}"')
    if int(bits) > address.max_prefixlen:
        return Err(f'network address parse error during conversion from string: "{text}": prefix length out of range')
    return CIDR(address, int(bits))


def _is_canonical(text: str) -> Value:
    address = _address(text)
    return address if isinstance(address, Err) else str(address) == text


def _contains_ip(network: CIDR, text: str) -> Value:
    address = _address(text)
    return address if isinstance(address, Err) else network.contains(address)


def _contains(network: CIDR, other: CIDR) -> bool:
    return network.bits <= other.bits and network.contains(other.address)


def _contains_text(network: CIDR, text: str) -> Value:
    other = _cidr(text)
    return other if isinstance(other, Err) else _contains(network, other)


def _masked(network: CIDR) -> CIDR:
    return CIDR(type(network.address)(network.prefix(network.address)), network.bits)


def _is_global(ip: IP) -> bool:
    address = ip.address
    if address.version == 4 and int(address) in (0, 2**32 - 1):
        return False
    return not (address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local)


def _is_link_local_multicast(ip: IP) -> bool:
    if ip.address.version == 4:
        return int(ip.address) >> 8 == 0xE00000
    return int(ip.address) >> 112 & 0xFF0F == 0xFF02


_URL = re.compile(r"(?s)(?:([A-Za-z][A-Za-z0-9+.\-]*):)?(.*)")
_PORT = re.compile(r"(?a)(?::\d*)?")
_HOST_BYTES = re.compile(r"(?a)(?:[A-Za-z0-9_.~!$&'()*+,;=:<>\"\[\]\-]|[^\x00-\x7f]|%[89A-Fa-f][0-9A-Fa-f])*")
_PLAIN_PATH = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~$&+,/:;=@!'()*[]")


def url_of(text: str, fragment: bool = False) -> Url | Err:
    """Parse a URL. With `fragment`, "#" starts a fragment. Relative URLs are errors."""

    def wrong(reason: str) -> Err:
        return Err(f'URL parse error during conversion from string: parse "{text}": {reason}')

    if any(ord(one) < 0x20 or one == "\x7f" for one in text):
        return wrong("invalid control character in URL")
    whole = text.partition("#")[0] if fragment else text
    if not whole:
        return wrong("empty url")
    if whole == "*":
        return Url(text, "", "", "*", "")
    match = _URL.fullmatch(whole)
    assert match is not None
    scheme, rest = (match[1] or "").lower(), match[2]
    if rest.startswith(":") and not scheme:
        return wrong("missing protocol scheme")
    rest, _, query = rest.partition("?")
    if not rest.startswith("/"):
        # "mailto:x" is a URL without a path; "x/y" is relative.
        return Url(text, scheme, "", "", query) if scheme else wrong("invalid URI for request")
    host = ""
    if rest.startswith("//") and (scheme or (fragment and not rest.startswith("///"))):
        authority, slash, path = rest[2:].partition("/")
        rest = slash + path
        read = _host(authority)
        if read is None:
            return wrong("invalid character in host name or port")
        host = read
    path_bytes = _decoded(rest)
    if path_bytes is None:
        return wrong("invalid URL escape")
    return Url(text, scheme, host, _escaped(rest, path_bytes), query)


def _host(authority: str) -> str | None:
    """The host and port; None if they are malformed."""
    user, at, host = authority.rpartition("@")
    if at and (re.search(r"[^A-Za-z0-9\-._:~!$&'()*+,;=%@]", user) or _decoded(user) is None):
        return None
    if host.startswith("["):
        inside, bracket, port = host[1:].rpartition("]")
        if not bracket or not _PORT.fullmatch(port) or not re.fullmatch(r"(?a)[0-9A-Fa-f:.]+(?:%25.*)?", inside):
            return None
        return host.replace("%25", "%", 1) if "%25" in inside else host
    _, colon, port = host.rpartition(":")
    if (colon and not _PORT.fullmatch(colon + port)) or not _HOST_BYTES.fullmatch(host):
        return None
    return unquote_to_bytes(host).decode("utf-8", "replace")


def _decoded(text: str) -> bytes | None:
    if re.search(r"%(?![0-9A-Fa-f]{2})", text):
        return None
    return unquote_to_bytes(text)


def _escaped(written: str, path: bytes) -> str:
    if all(one in _PLAIN_PATH or one == "%" for one in written):
        return written
    safe = _PLAIN_PATH - frozenset("!'()*[]")
    return "".join(chr(byte) if chr(byte) in safe else f"%{byte:02X}" for byte in path)


def _url(text: str) -> Url | Err:
    request = url_of(text)
    return request if isinstance(request, Err) else url_of(text, fragment=True)


def _hostname(url: Url) -> str:
    if url.host.startswith("["):
        return url.host[1:].rpartition("]")[0]
    return url.host.rpartition(":")[0] if ":" in url.host else url.host


def _port(url: Url) -> str:
    after = url.host.rpartition("]")[2] if url.host.startswith("[") else url.host
    return after.rpartition(":")[2] if ":" in after else ""


def _of_query(text: str) -> str | None:
    """A key or value of a query, decoded; None if it is malformed."""
    text = text.replace("+", " ")
    if "%" not in text:
        return text
    decoded = _decoded(text)
    return None if decoded is None else decoded.decode("utf-8", "replace")


def _query(url: Url) -> Map:
    found: dict[Value, list[Value]] = {}
    for pair in url.query.split("&") if url.query else ():
        key, _, value = pair.partition("=")
        if not pair or ";" in pair:
            continue
        name, content = _of_query(key), _of_query(value)
        if name is not None and content is not None:
            found.setdefault(name, []).append(content)
    return Map(dict(found))


OVERLOADS: dict[str, Callable[..., Value]] = {
    "string_to_ip": _ip,
    "ip_family": lambda ip: ip.address.version,
    "ip_is_canonical": _is_canonical,
    "ip_is_unspecified": lambda ip: ip.address.is_unspecified,
    "ip_is_loopback": lambda ip: ip.address.is_loopback,
    "ip_is_link_local_multicast": _is_link_local_multicast,
    "ip_is_link_local_unicast": lambda ip: ip.address.is_link_local,
    "ip_is_global_unicast": _is_global,
    "is_ip": lambda text: not isinstance(_address(text), Err),
    "ip_to_string": lambda ip: str(ip.address),
    "string_to_cidr": _cidr,
    "cidr_contains_ip_string": _contains_ip,
    "cidr_contains_ip_ip": lambda network, ip: network.contains(ip.address),
    "cidr_contains_cidr_string": _contains_text,
    "cidr_contains_cidr": _contains,
    "cidr_ip": lambda network: IP(network.address),
    "cidr_prefix_length": lambda network: network.bits,
    "cidr_masked": _masked,
    "is_cidr": lambda text: not isinstance(_cidr(text), Err),
    "cidr_to_string": lambda network: f"{network.address}/{network.bits}",
    "string_to_url": _url,
    "url_get_scheme": lambda url: url.scheme,
    "url_get_host": lambda url: url.host,
    "url_get_hostname": _hostname,
    "url_get_port": _port,
    "url_get_escaped_path": lambda url: url.escaped_path,
    "url_get_query": _query,
    "is_url_string": lambda text: not isinstance(url_of(text), Err),
}
