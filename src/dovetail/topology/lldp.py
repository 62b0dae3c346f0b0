# SPDX-License-Identifier: Apache-2.0
"""Reader of the switches that hosts see by LLDP: a JSON value for each host, what `lldpctl -f json` prints there with a
field `host` more.

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
from typing import Any

from msgspec import Struct, convert, field
from msgspec import ValidationError as Mismatch

from dovetail.core.json_text import JsonError, decode_json
from dovetail.topology.fabric import FabricError, FabricFinding, FabricReading
from dovetail.topology.switch_tiers import reading_of

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


class LldpInterfaces(Struct):
    interface: list[dict[str, LldpInterface]] | dict[str, LldpInterface] = []


class LldpHost(Struct):
    host: str
    lldp: LldpInterfaces


class LldpLink(Struct, frozen=True):
    host: str
    interface: str
    switch: str
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
            interfaces = one.lldp.interface
            found = interfaces.items() if isinstance(interfaces, dict) else (i for x in interfaces for i in x.items())
            host = one.host.lower()
            known = hosts.setdefault(host, number)
            if known != number:
                raise FabricError(f"line {number}: {host} is there twice, first in line {known}: leave one line")
            for interface, seen in found:
                for chassis, name in _chassis(seen.chassis):
                    first = names.setdefault(chassis, name)
                    if first != name:
                        what = f"line {number}: {chassis} is called {first} and {name}"
                        findings.append(FabricFinding("renamed-switch", what))
                    speed, frame = seen.port.auto_negotiation.current, seen.port.mfs
                    links.append(LldpLink(host, interface, chassis, speed, frame))
        except (JsonError, Mismatch) as error:
            raise FabricError(
                f"line {number}: {error}: write the JSON of each host on one line, "
                "as in lldpctl -f json | jq -c '{host: \"gpu-1\"} + .'"
            ) from error
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
    findings += [*_few(leaves_of), *_uneven(links, names)]
    return reading_of({host: frozenset(found) for host, found in leaves_of.items()}, {}, names, findings)


def _chassis(fields: dict[str, Any]) -> list[tuple[str, str]]:
    """(ID, name) of the switch; none if the neighbour has no chassis."""
    if "id" in fields and isinstance(fields["id"], dict) and "type" in fields["id"]:
        found = convert(fields["id"], LldpId).value
        return [(found, found)]
    return [(convert(one.get("id"), LldpId).value, name) for name, one in fields.items() if isinstance(one, dict)]


def _few(leaves_of: Mapping[str, Counter[str]]) -> Iterator[FabricFinding]:
    usual = Counter(leaves.total() for leaves in leaves_of.values()).most_common(1)[0][0]
    for host, leaves in leaves_of.items():
        if leaves.total() < usual:
            what = f"{host} has {leaves.total()} of the {usual} links that most hosts have"
            yield FabricFinding("few-links", what, host)


def _uneven(links: list[LldpLink], names: Mapping[str, str]) -> Iterator[FabricFinding]:
    speeds = Counter(link.speed for link in links if link.speed)
    frames = Counter(link.frame_bytes for link in links if link.frame_bytes)
    for link in links:
        where = f"{link.host} {link.interface} to {names[link.switch]}"
        for code, value, counts in (("slow-link", link.speed, speeds), ("mixed-mtu", link.frame_bytes, frames)):
            usual = counts.most_common(1)[0][0] if counts else ""
            if value and value != usual:
                unit = " bytes" if code == "mixed-mtu" else ""
                yield FabricFinding(code, f"{where} is {value}{unit}; most links are {usual}{unit}", link.host)
