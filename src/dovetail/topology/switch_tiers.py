# SPDX-License-Identifier: Apache-2.0
"""From switches and their cables to domains: which nodes are behind the same switches.

Rules
- Switches with hosts are leaves. Each further tier is one link further away from all hosts.
- Two leaves are one domain if they share at least half of the hosts of the smaller: the rails of a rail-optimised
  fabric, or the two planes of a redundant one. One host that is connected to both, such as a fabric manager, does not
  join them.
- Two domains are one wider domain if they share at least half of the switches above the smaller, and so on upwards.
- A domain has the first name, in order, of its highest switches.
- A host whose leaves are in two domains has no place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import TypeAlias

from dovetail.topology.fabric import FabricFinding, FabricPlacement, FabricReading, switch_keys

Switches: TypeAlias = frozenset[str]


def reading_of(
    leaves_of: Mapping[str, Switches],
    neighbours: Mapping[str, set[str]],
    names: Mapping[str, str],
    findings: Iterable[FabricFinding],
) -> FabricReading:
    """`leaves_of` are the leaves of each host, `neighbours` the switches that a switch is linked to, and `names` those
    of all switches by GUID."""
    placements, found = [], list(findings)
    path_of = _paths(leaves_of, neighbours, names)
    for host, leaves in leaves_of.items():
        paths = {path_of[leaf] for leaf in leaves}
        if len(paths) == 1:
            placements.append(FabricPlacement(host, paths.pop()))
        else:
            places = ", ".join(sorted(names[leaf] for leaf in leaves))
            found.append(FabricFinding("two-places", f"{host} is linked to {places}: {len(paths)} domains", host))
    levels = max((len(one.path) for one in placements), default=0)
    return FabricReading(tuple(placements), switch_keys(levels), tuple(found), names)


def hosts_with_few_links(leaves_of: Mapping[str, Counter[str]]) -> Iterator[FabricFinding]:
    """`leaves_of` has the links of each host by leaf."""
    links = {host: leaves.total() for host, leaves in leaves_of.items()}
    usual = max(Counter(links.values()).most_common(1), default=(0, 0))[0]
    for host, count in links.items():
        if count < usual:
            yield FabricFinding("few-links", f"{host} has {count} of the {usual} links that most hosts have", host)


def _paths(
    leaves_of: Mapping[str, Switches], neighbours: Mapping[str, set[str]], names: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """The path of each leaf, the widest domain first.

    `tops` has the highest switches so far of each domain, by its leaves."""
    hosts_of: dict[str, set[str]] = {}
    for host, leaves in leaves_of.items():
        for leaf in leaves:
            hosts_of.setdefault(leaf, set()).add(host)
    tier = _tiers(hosts_of, neighbours)
    paths = dict[str, tuple[str, ...]]()
    tops = {
        tuple(group): frozenset(group) for group in similar({leaf: frozenset(own) for leaf, own in hosts_of.items()})
    }
    while True:
        for group, name in _names(tops, names).items():
            for leaf in group:
                paths[leaf] = (name, *paths.get(leaf, ()))
        ordered = list(tops)
        above = {
            str(at): frozenset(up for one in top for up in neighbours.get(one, ()) if tier[up] > tier[one])
            for at, top in enumerate(tops.values())
        }
        if not any(above.values()):
            return paths
        joined: dict[tuple[str, ...], Switches] = {}
        for ats in similar(above):
            members = [ordered[int(at)] for at in ats]
            own = frozenset().union(*(tops[one] for one in members))
            joined[tuple(leaf for one in members for leaf in one)] = (
                frozenset().union(*(above[at] for at in ats)) or own
            )
        tops = joined


def _tiers(leaves: Iterable[str], neighbours: Mapping[str, set[str]]) -> dict[str, int]:
    """The number of links from the nearest leaf."""
    tier = dict.fromkeys(leaves, 0)
    edge = list(tier)
    while edge:
        further = []
        for switch in edge:
            for other in neighbours.get(switch, ()):
                if other not in tier:
                    tier[other] = tier[switch] + 1
                    further.append(other)
        edge = further
    return tier


def similar(sets: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """The names in groups: two are together if they share at least half of the smaller set, or if others join them so.
    An empty set is alone."""
    same: dict[frozenset[str], list[str]] = {}
    for name, one in sets.items():
        same.setdefault(one, []).append(name)
    alone = [[name] for name in same.pop(frozenset(), [])]
    distinct = list(same)
    holding: dict[str, list[int]] = {}
    for at, one in enumerate(distinct):
        for element in one:
            holding.setdefault(element, []).append(at)
    shared = Counter(pair for ats in holding.values() for pair in combinations(ats, 2))
    root = list(range(len(distinct)))

    def find(at: int) -> int:
        while root[at] != at:
            root[at] = at = root[root[at]]
        return at

    for (a, b), count in shared.items():
        if 2 * count >= min(len(distinct[a]), len(distinct[b])):
            root[max(find(a), find(b))] = min(find(a), find(b))
    groups: dict[int, list[str]] = {}
    for at, one in enumerate(distinct):
        groups.setdefault(find(at), []).extend(same[one])
    return [*groups.values(), *alone]


def _names(tops: Mapping[tuple[str, ...], Switches], names: Mapping[str, str]) -> dict[tuple[str, ...], str]:
    """A name of its own for each domain."""
    candidates = {group: sorted(names[one] for one in top) for group, top in tops.items()}
    taken: set[str] = set()
    found = {}
    for group, own in sorted(candidates.items(), key=lambda item: (item[1], item[0])):
        name = next((one for one in own if one not in taken), None) or f"{own[0]}-{len(taken)}"
        taken.add(name)
        found[group] = name
    return found
