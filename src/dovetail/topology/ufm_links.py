# SPDX-License-Identifier: Apache-2.0
"""Reader of the links of UFM Enterprise (`GET /ufmRest/resources/links`), JSON.

Source: the Links REST API of UFM Enterprise 6.20.

Rules
- A link has two ends, each with a GUID, a port and its node description. Of a switch the description is `NAME:PORT`,
  of an adapter `HOST DEVICE`; names are those of `infiniband`. Switches are known by GUID. An adapter's GUID is that of
  its system, so it is known by its description.
- UFM lists each link once, and only links that are up: a host or a switch without any is not in the answer.
- The width of most links of a kind (switch to switch, switch to host) is the one expected of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence

from msgspec import Struct

from dovetail.core.json_text import JsonError, decode_json
from dovetail.topology.fabric import FabricError, FabricFinding, FabricReading
from dovetail.topology.infiniband import cabling, crowded, hosts_of, placed, switch_names, weak


class UfmLink(Struct):
    """`name` is that of the link. Descriptions are "" where UFM is too old to write them."""

    source_guid: str
    source_port: str
    destination_guid: str
    destination_port: str
    width: str = ""
    source_port_node_description: str = ""
    destination_port_node_description: str = ""
    name: str = ""


class _End(Struct, frozen=True):
    """One end of a link. `device` is `S-` and the GUID of a switch, else the description of the adapter."""

    device: str
    description: str
    port: str
    is_switch: bool


_Ends = tuple[_End, _End]


def read(text: str, nodes: Container[str] | None = None) -> FabricReading:
    """`nodes` are the hosts that count, in lower case; without it all do. Raises FabricError."""
    try:
        links = decode_json(text, list[UfmLink])
    except JsonError as error:
        raise FabricError(f"no links of UFM: {error}: make the file again with GET /ufmRest/resources/links") from error
    cables = [_ends(number, link) for number, link in enumerate(links)]
    descriptions: dict[str, set[str]] = {}
    for end in (end for cable in cables for end in cable if end.is_switch):
        descriptions.setdefault(end.device, set()).add(end.description)
    switches = {device: min(found) for device, found in descriptions.items()}
    names = switch_names(switches)
    hosts, findings = hosts_of({end.device: end.device for cable in cables for end in cable if not end.is_switch})
    if nodes is not None:
        hosts = {adapter: host for adapter, host in hosts.items() if host in nodes}
    findings += [*_contradictions(links, cables, descriptions, hosts), *_narrow(links, cables, hosts)]
    twice = {one.node for one in findings if one.code == "unclear-host"}
    hosts = {adapter: host for adapter, host in hosts.items() if host not in twice}
    cabled = cabling([(one.device, other.device) for one, other in cables], switches, hosts)
    if not cabled.leaves_of:
        host = "host" if nodes is None else "node of --nodes"
        raise FabricError(f"no {host} is linked to a switch here: get all links of UFM, not those of one system")
    findings += crowded(cabled)
    return placed(cabled, names, [*findings, *weak(cabled, names)])


def _ends(number: int, link: UfmLink) -> _Ends:
    source = _end(number, link.source_guid, link.source_port, link.source_port_node_description)
    return source, _end(number, link.destination_guid, link.destination_port, link.destination_port_node_description)


def _end(number: int, guid: str, port: str, description: str) -> _End:
    if not description.strip():
        raise FabricError(f"[{number}] has no node description of {guid}: a newer UFM writes it into each link")
    name, colon, _ = description.rpartition(":")
    return _End(f"S-{guid}", name, port, True) if colon else _End(description, description, port, False)


def _contradictions(
    links: Sequence[UfmLink],
    cables: Sequence[_Ends],
    descriptions: Mapping[str, set[str]],
    hosts: Mapping[str, str],
) -> Iterator[FabricFinding]:
    """GUIDs and names of several devices."""
    for device, found in descriptions.items():
        if len(found) > 1:
            what = f"{device} is described as {' and as '.join(map(repr, sorted(found)))}"
            yield FabricFinding("duplicate-guid", what)
    first: dict[tuple[str, str], int] = {}
    for number, cable in enumerate(cables):
        for end in cable:
            known = first.setdefault((end.device, end.port), number)
            if known == number or links[known] == links[number]:
                continue
            what = f"[{number}]: port {end.port} of {end.device} is linked twice, first in [{known}]"
            if end.is_switch:
                yield FabricFinding("duplicate-guid", what)
            elif end.device in hosts:
                yield FabricFinding("unclear-host", what, hosts[end.device])


def _narrow(links: Sequence[UfmLink], cables: Sequence[_Ends], hosts: Mapping[str, str]) -> Iterator[FabricFinding]:
    kinds: dict[bool, list[int]] = {}
    for number, (one, other) in enumerate(cables):
        if links[number].width and all(end.is_switch or end.device in hosts for end in (one, other)):
            kinds.setdefault(one.is_switch and other.is_switch, []).append(number)
    for numbers in kinds.values():
        usual = Counter(links[number].width for number in numbers).most_common(1)[0][0]
        for number in numbers:
            if links[number].width != usual:
                one, other = cables[number]
                where = f"{one.description} port {one.port} to {other.description}"
                yield FabricFinding("slow-link", f"{where} is {links[number].width}; most such links are {usual}")
