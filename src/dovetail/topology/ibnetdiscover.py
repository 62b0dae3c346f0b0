# SPDX-License-Identifier: Apache-2.0
"""Reader of what `ibnetdiscover` prints (infiniband-diags), also with `-g`.

Rules
- A section describes one switch, channel adapter (`Ca`) or router, and then its linked ports. Comments carry names: the
  node description of the switch, and of the adapter at the other end.
- Names are those of `infiniband`.
- A host at a spine, such as a fabric manager, makes a leaf of it: the names of nodes keep it out.
- The speed of most links of a kind (switch to switch, switch to host) is the one expected of all.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping

from msgspec import Struct, field

from dovetail.topology.fabric import FabricError, FabricFinding, FabricReading
from dovetail.topology.infiniband import (
    MOST_SHOWN,
    SHARP,
    cabling,
    crowded,
    hosts_of,
    placed,
    switch_names,
    weak,
)

_MOST_PORT = 254
"""Of a switch, by the InfiniBand architecture."""
_SECTION = re.compile(r'(Switch|Ca|Rt)\s+\d{1,3}\s+"([SHR]-[0-9a-f]{1,16})"\s+#\s+"(.*)"')
_LINK = re.compile(
    r'\[(\d{1,3})\](?:\[ext \d+\])?(?:\([0-9a-f]+\))?\s+"([SHR]-[0-9a-f]{1,16})"\[(\d{1,3})\](?:\[ext \d+\])?'
    r'\s*(?:\([0-9a-f]+\))?\s+#\s+(?:lid \d+ lmc \d+ )?"(.*)" lid \d+ (\S+)'
)
_OTHER = re.compile(
    r"#|vendid=|devid=|sysimgguid=|switchguid=|caguid=|rtguid=|Chassis|Non-Chassis|Hostname:|ibwarn:|DR path|\s*$"
)


class _Link(Struct, frozen=True):
    peer: str
    port: int
    rate: str
    line: int


class _Network(Struct):
    """Devices are named as in the file, `S-` or `H-` and the GUID. `links` are by device and port."""

    switches: dict[str, str] = field(default_factory=dict)
    adapters: dict[str, str] = field(default_factory=dict)
    sections: set[str] = field(default_factory=set)
    links: dict[tuple[str, int], _Link] = field(default_factory=dict)
    findings: list[FabricFinding] = field(default_factory=list)


def read(text: str, nodes: Container[str] | None = None) -> FabricReading:
    """`nodes` are the hosts that count, in lower case; without it all do. Raises FabricError."""
    network = _parsed(text)
    names = switch_names(network.switches)
    hosts, findings = hosts_of(network.adapters)
    if nodes is not None:
        hosts = {adapter: host for adapter, host in hosts.items() if host in nodes}
    cabled = cabling([(device, link.peer) for device, _, link in _cables(network)], network.switches, hosts)
    if not cabled.leaves_of:
        host = "host" if nodes is None else "node of --nodes"
        raise FabricError(f"no {host} is linked to a switch here: run ibnetdiscover where the subnet manager is up")
    findings += crowded(cabled)
    findings += [*network.findings, *_one_sided(network, names), *_slow(network, names)]
    findings += [*weak(cabled, names), *_orphans(network, names, hosts, cabled.leaves_of)]
    return placed(cabled, names, findings)


def _parsed(text: str) -> _Network:
    found = _Network()
    device, of_device, number = "", 0, 0
    for number, line in enumerate(text.splitlines(), 1):
        if line[:1] == "[":
            link = _LINK.match(line)
            if link is None or not device:
                raise FabricError(_unread(number, line, text))
            port, peer, peer_port, description, rate = link.groups()
            if int(port) > _MOST_PORT or int(peer_port) > _MOST_PORT:
                raise FabricError(f"line {number}: a port is over {_MOST_PORT}, the most of a switch: correct the line")
            known = found.links.setdefault((device, int(port)), _Link(peer, int(peer_port), rate, number))
            if known.line != number and known.line > of_device:
                what = f"line {number}: port {port} of {device} is there twice, first in line {known.line}"
                found.findings.append(FabricFinding("duplicate-guid", what))
            if peer[0] == "H":
                found.adapters.setdefault(peer, description)
        elif section := _SECTION.match(line):
            kind, device, description = section.groups()
            of_device = number
            (found.switches if kind == "Switch" else found.adapters)[device] = description
            if device in found.sections:
                what = f"line {number}: {device} is described twice, now as {description!r}"
                found.findings.append(FabricFinding("duplicate-guid", what))
            found.sections.add(device)
        elif not _OTHER.match(line):
            raise FabricError(_unread(number, line, text))
    if not text.endswith("\n"):
        found.findings.append(FabricFinding("cut-file", f"line {number} does not end: the file ends within it"))
    return found


def _unread(number: int, line: str, text: str) -> str:
    if number == text.count("\n") + 1 and not text.endswith("\n"):
        return f"line {number}: the file ends within a line ({line[:60]!r}): it is cut, make it again"
    return f"line {number}: {line[:60]!r} is no line of ibnetdiscover: pass its output as it is"


def _cables(network: _Network) -> Iterator[tuple[str, int, _Link]]:
    """Each cable once, from the end that is written first."""
    for (device, port), link in network.links.items():
        other = network.links.get((link.peer, link.port))
        if other is None or (other.peer, other.port) != (device, port) or other.line > link.line:
            yield device, port, link


def _one_sided(network: _Network, names: Mapping[str, str]) -> Iterator[FabricFinding]:
    has_adapters = any(device[0] == "H" for device in network.sections)
    missing: Counter[str] = Counter()
    ends: dict[tuple[str, int], tuple[str, int]] = {}
    for (device, port), link in network.links.items():
        if link.peer not in network.sections:
            missing[link.peer] += link.peer[0] == "S" or has_adapters
        elif (link.peer, link.port) not in network.links:
            what = (
                f"line {link.line}: {names.get(device, device)} port {port} has a link that {link.peer} does not list"
            )
            yield FabricFinding("cut-file", what)
        first = ends.setdefault((link.peer, link.port), (device, port))
        if first != (device, port):
            what = f"line {link.line}: port {link.port} of {link.peer} is linked to {first[0]} and to {device}"
            yield FabricFinding("duplicate-guid", what)
    absent = [device for device, count in missing.items() if count]
    if absent:
        shown = ", ".join(absent[:MOST_SHOWN])
        yield FabricFinding("cut-file", f"{len(absent)} devices are linked but not described, such as {shown}")


def _slow(network: _Network, names: Mapping[str, str]) -> Iterator[FabricFinding]:
    kinds: dict[bool, list[tuple[str, int, _Link]]] = {}
    for device, port, link in _cables(network):
        kinds.setdefault(device[0] == link.peer[0] == "S", []).append((device, port, link))
    for cables in kinds.values():
        usual = Counter(link.rate for _, _, link in cables).most_common(1)[0][0]
        for device, port, link in cables:
            if link.rate != usual and SHARP not in network.adapters.get(link.peer, ""):
                peer = names.get(link.peer) or network.adapters.get(link.peer, link.peer)
                where = f"line {link.line}: {names.get(device, device)} port {port} to {peer}"
                yield FabricFinding("slow-link", f"{where} is {link.rate}; most such links are {usual}")


def _orphans(
    network: _Network, names: Mapping[str, str], hosts: Mapping[str, str], leaves_of: Mapping[str, Counter[str]]
) -> Iterator[FabricFinding]:
    linked = {device for device, _ in network.links} | {link.peer for link in network.links.values()}
    for device, name in names.items():
        if device not in linked:
            yield FabricFinding("orphan", f"switch {name} has no link")
    for host in dict.fromkeys(hosts.values()):
        if host not in leaves_of:
            yield FabricFinding("orphan", f"{host} has no link to a switch", host)
