# SPDX-License-Identifier: Apache-2.0
"""InfiniBand as its tools describe it: whose adapters and switches these are, and how they are cabled.

Rules
- The node description of an adapter is `HOST DEVICE` (`gpu-1 mlx5_0`, `gpu-1 HCA-1`) or `HOST`: the host is the node,
  in lower case. Aggregation nodes of switches (SHARP) are no hosts. An adapter with another description, or with the
  name of another adapter, belongs to no known host.
- A switch has the name of its description (of `MF0;leaf-1:MQM9700/U1` what is between `;` and `:`), or where several
  have one name, `S-` and its GUID.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from dovetail.topology.fabric import FabricFinding, FabricReading
from dovetail.topology.switch_tiers import hosts_with_few_links, reading_of

MOST_LEAVES = 64
"""Of one host. More, and several hosts share a name."""
MOST_SHOWN = 3
SHARP = "Aggregation Node"
_HOST = re.compile(r"([A-Za-z0-9][A-Za-z0-9.-]{0,252})(?: +(\S*\d\S*))?")
_SYSTEM_NAME = re.compile(r"MF0;([^:;]+):")


class Cabling(Struct):
    """`leaves_of` has the links of each host by switch, `between` those of each switch to other switches."""

    leaves_of: dict[str, Counter[str]]
    between: dict[str, Counter[str]]


def switch_names(switches: Mapping[str, str]) -> dict[str, str]:
    """The name of each switch by its description."""
    short = {}
    for device, description in switches.items():
        system = _SYSTEM_NAME.match(description)
        short[device] = system[1] if system else description
    often = Counter(short.values())
    return {device: name if name.strip() and often[name] == 1 else device for device, name in short.items()}


def hosts_of(adapters: Mapping[str, str]) -> tuple[dict[str, str], list[FabricFinding]]:
    """The host of each adapter by its description."""
    parsed = {device: _HOST.fullmatch(text.strip()) for device, text in adapters.items() if SHARP not in text}
    nameless = [device for device, match in parsed.items() if match is None]
    findings = []
    if nameless:
        what = f"{len(nameless)} adapters do not name their host, such as {nameless[0]} ({adapters[nameless[0]]!r})"
        findings.append(FabricFinding("unclear-host", what))
    by_name: dict[tuple[str, str], list[str]] = {}
    for device, match in parsed.items():
        if match is not None and match[2]:
            by_name.setdefault((match[1].lower(), match[2]), []).append(device)
    twice = {host: (name, devices) for (host, name), devices in by_name.items() if len(devices) > 1}
    for host, (name, devices) in twice.items():
        what = f"{len(devices)} adapters are called {host} {name}: {', '.join(devices[:MOST_SHOWN])}"
        findings.append(FabricFinding("unclear-host", what, host))
    named = {device: match[1].lower() for device, match in parsed.items() if match is not None}
    return {device: host for device, host in named.items() if host not in twice}, findings


def cabling(cables: Iterable[tuple[str, str]], switches: Container[str], hosts: Mapping[str, str]) -> Cabling:
    """`cables` are the two devices of each, `hosts` those of the adapters that count."""
    found = Cabling({}, {})
    for one, other in cables:
        if one in switches and other in switches:
            found.between.setdefault(one, Counter())[other] += 1
            found.between.setdefault(other, Counter())[one] += 1
        for adapter, switch in ((one, other), (other, one)):
            if adapter in hosts and switch in switches:
                found.leaves_of.setdefault(hosts[adapter], Counter())[switch] += 1
    return found


def crowded(cabled: Cabling) -> list[FabricFinding]:
    """Take out the hosts with more leaves than one can have."""
    findings = []
    for host in [host for host, leaves in cabled.leaves_of.items() if len(leaves) > MOST_LEAVES]:
        what = f"{host} is linked to {len(cabled.leaves_of.pop(host))} switches: several hosts have this name"
        findings.append(FabricFinding("unclear-host", what, host))
    return findings


def placed(cabled: Cabling, names: Mapping[str, str], findings: Sequence[FabricFinding]) -> FabricReading:
    """The places of the hosts. `names` are those of the switches."""
    leaves_of = {host: frozenset(found) for host, found in cabled.leaves_of.items()}
    return reading_of(leaves_of, {switch: set(others) for switch, others in cabled.between.items()}, names, findings)


def weak(cabled: Cabling, names: Mapping[str, str]) -> Iterator[FabricFinding]:
    """Hosts and leaves with fewer links than most, leaves with one, and leaves that are linked to leaves."""
    leaves_of, cables = cabled.leaves_of, cabled.between
    yield from hosts_with_few_links(leaves_of)
    ups = {leaf: cables.get(leaf, Counter[str]()).total() for leaves in leaves_of.values() for leaf in leaves}
    linked = [leaf for leaf in ups if not ups.keys().isdisjoint(cables.get(leaf, ()))]
    if linked:
        shown = ", ".join(sorted(names[leaf] for leaf in linked)[:MOST_SHOWN])
        yield FabricFinding(
            "linked-leaves", f"{len(linked)} switches with hosts are linked to each other, such as {shown}"
        )
    usual = Counter(ups.values()).most_common(1)[0][0] if ups else 0
    for leaf, count in ups.items():
        if count == 1:
            yield FabricFinding("single-link", f"{names[leaf]} has one link to other switches")
        elif count < usual:
            what = (
                f"{names[leaf]} has {count} of the {usual} links to other switches that most switches with hosts have"
            )
            yield FabricFinding("few-links" if count else "orphan", what)
