# SPDX-License-Identifier: Apache-2.0
"""Reader of the switches that hosts see by LLDP: a JSON value for each host, what `lldpctl -f json` prints there and
a field `host`.

Source: the JSON writer of lldpd/lldpd (src/client/json_writer.c, src/client/display.c).

Rules
- A neighbour is a switch, and its chassis name is the leaf; without a name, its chassis ID is. `lldpctl` writes one
  interface as an object, and several as a list.
- A host hears its own switches only: there is one level, unless leaves share hosts (rails, planes).
- Speed and frame size are those that the port of the switch reports; those of most links are expected of all.
- One chassis ID with two names is a switch that was renamed; one name with two IDs is two switches.
- Interfaces of a management network would join the racks that its switch serves: name those that count to lldpctl.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from msgspec import Struct, convert, field
from msgspec import ValidationError as Mismatch

from dovetail.core.json_text import JsonError, decode_json
from dovetail.topology.fabric import FabricError, FabricFinding, FabricReading
from dovetail.topology.switch_tiers import hosts_with_few_links, reading_of

MOST_LEAVES = 64
"""Of one host."""


class LldpId(Struct):
    value: str


class LldpSpeed(Struct):
    current: str = ""


class LldpPort(Struct, rename="kebab"):
    auto_negotiation: LldpSpeed = field(default_factory=LldpSpeed)
    mfs: str = ""
    """The largest frame, in bytes."""


class LldpInterface(Struct):
    chassis: dict[str, Any] = {}
    """The chassis by its name, or its fields if it has none."""
    port: LldpPort = field(default_factory=LldpPort)


LldpSeen: TypeAlias = list[dict[str, LldpInterface]] | dict[str, LldpInterface]
"""By the name of the interface."""


class LldpInterfaces(Struct):
    interface: LldpSeen = []


class LldpHost(Struct):
    host: str
    lldp: LldpInterfaces


class LldpLink(Struct, frozen=True):
    host: str
    interface: str
    switch: str
    """The chassis ID."""
    name: str
    """Of the switch."""
    speed: str
    frame_bytes: str


def read(text: str) -> FabricReading:
    """Raises FabricError."""
    names: dict[str, str] = {}
    findings: list[FabricFinding] = []
    links: list[LldpLink] = []
    hosts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            one = decode_json(line, LldpHost)
            host = one.host.lower()
            known = hosts.setdefault(host, number)
            if known != number:
                raise FabricError(f"line {number}: {host} is there twice, first in line {known}: leave one line")
            found = _links(host, one.lldp.interface)
        except (JsonError, Mismatch) as error:
            raise FabricError(
                f"line {number}: {error}: write the JSON of each host on one line, "
                "as in lldpctl -f json | jq -c '{host: \"gpu-1\"} + .'"
            ) from error
        for link in found:
            first = names.setdefault(link.switch, link.name)
            if first != link.name:
                what = f"line {number}: {link.switch} is called {first} and {link.name}"
                findings.append(FabricFinding("renamed-switch", what))
        links += found
    leaves_of: dict[str, Counter[str]] = {}
    for link in links:
        leaves_of.setdefault(link.host, Counter())[link.switch] += 1
    if not leaves_of:
        raise FabricError("no host sees a switch: run lldpd on the hosts, and LLDP on the ports of the switches")
    crowded = next((host for host, leaves in leaves_of.items() if len(leaves) > MOST_LEAVES), None)
    if crowded:
        raise FabricError(f"{crowded} sees more than {MOST_LEAVES} switches: name its interfaces to lldpctl")
    often = Counter(names.values())
    names = {chassis: name if often[name] == 1 else f"{name}-{chassis}" for chassis, name in names.items()}
    findings += [FabricFinding("orphan", f"{host} sees no switch", host) for host in hosts if host not in leaves_of]
    findings += [*hosts_with_few_links(leaves_of), *_uneven(links, names)]
    return reading_of({host: frozenset(found) for host, found in leaves_of.items()}, {}, names, findings)


def _links(host: str, interfaces: LldpSeen) -> list[LldpLink]:
    """Raises Mismatch."""
    return [
        LldpLink(host, interface, chassis, name, seen.port.auto_negotiation.current, seen.port.mfs)
        for group in (interfaces if isinstance(interfaces, list) else [interfaces])
        for interface, seen in group.items()
        for chassis, name in _chassis(seen.chassis)
    ]


def _chassis(fields: dict[str, Any]) -> list[tuple[str, str]]:
    """(ID, name) of the switch; none if the neighbour has no chassis."""
    if "id" in fields and isinstance(fields["id"], dict) and "type" in fields["id"]:
        found = convert(fields["id"], LldpId).value
        return [(found, found)]
    return [(convert(one.get("id"), LldpId).value, name) for name, one in fields.items() if isinstance(one, dict)]


def _uneven(links: list[LldpLink], names: Mapping[str, str]) -> Iterator[FabricFinding]:
    speeds = Counter(link.speed for link in links if link.speed)
    frames = Counter(link.frame_bytes for link in links if link.frame_bytes)
    usual_speed, usual_frame = (max(found.most_common(1), default=("", 0))[0] for found in (speeds, frames))
    for link in links:
        where = f"{link.host} {link.interface} to {names[link.switch]}"
        if link.speed and link.speed != usual_speed:
            what = f"{where} is {link.speed}; most links are {usual_speed}"
            yield FabricFinding("slow-link", what, link.host)
        if link.frame_bytes and link.frame_bytes != usual_frame:
            what = f"{where} is {link.frame_bytes} bytes; most links are {usual_frame} bytes"
            yield FabricFinding("mixed-mtu", what, link.host)
