# SPDX-License-Identifier: Apache-2.0
"""Hostile pods that an API server accepts. Their long fields differ from pod to pod."""

from collections.abc import Callable, Iterator
from itertools import cycle

Document = dict[str, object]
Parts = tuple[Document, Document]
"""Additions to the metadata and to the spec."""
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def _keys(i: int) -> Parts:
    return {"annotations": {f"dovetail.dev/gnag-{i}-{n}": "x" * 40 for n in range(3_000)}}, {}


def _terms(i: int) -> Parts:
    def term(n: int) -> Document:
        expression = {"key": f"k{n}", "operator": "In", "values": [f"v{i}-{n}"]}
        return {"topologyKey": f"t{i}-{n % 1000}", "labelSelector": {"matchExpressions": [expression]}}

    return {}, {"affinity": {"podAntiAffinity": {REQUIRED: [term(n) for n in range(6_000)]}}}


def _nodes(i: int) -> Parts:
    terms = [{"matchExpressions": [{"key": f"k{i}-{n}", "operator": "In", "values": [f"v{n}"]}]} for n in range(8_000)]
    return {}, {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}}


def _tolerations(i: int) -> Parts:
    return {}, {"tolerations": [{"key": f"k{i}-{n}", "operator": "Exists"} for n in range(10_000)]}


def _containers(i: int) -> Parts:
    def limits(n: int) -> Document:
        return {"cpu": f"{1 + n}m", f"example.com/r{i}-{n}": 1}

    return {}, {
        "containers": [{"name": f"c{n}", "image": "a", "resources": {"limits": limits(n)}} for n in range(4_000)]
    }


def _ports(i: int) -> Parts:
    ports = [{"hostPort": 1 + n, "containerPort": 1 + n} for n in range(10_000)]
    return {}, {"containers": [{"name": "main", "image": "a", "ports": ports}]}


def _gang(i: int) -> Parts:
    return {"annotations": {"dovetail.dev/gang": f"g{i}", "dovetail.dev/gang-min": "999999"}}, {}


KINDS: tuple[Callable[[int], Parts], ...] = (_keys, _terms, _nodes, _tolerations, _containers, _ports, _gang)


def parts() -> Iterator[Parts]:
    """An infinite sequence of hostile parts."""
    for i, kind in enumerate(cycle(KINDS)):
        yield kind(i)
