# SPDX-License-Identifier: Apache-2.0
"""Uniform nodes for traces without a node list, written as `16x8` (16 nodes of 8 GPUs), or with the levels of a fabric
above them: `4x32x8` is 4 switches with 32 nodes of 8 GPUs each.

Only GPUs limit such a node: it has more CPU, memory and room for pods than any job requests.
"""

from __future__ import annotations

import re
from math import prod

from dovetail.core.model import CPU, GPU, MAX_GPUS, MEMORY, PODS, Node
from dovetail.sim.traces.errors import TraceError

HOSTNAME = "kubernetes.io/hostname"
NO_LIMIT_PODS = 1_000_000
MAX_NODES = 100_000
LEVELS = tuple(f"fabric.topograph.run/tier-{tier}" for tier in range(4))
"""The label keys of the levels, the narrowest first; they are of the default fabric."""

_NO_LIMIT_CPU_MILLI = 10**9
_NO_LIMIT_MEMORY_BYTES = 2**50
_SPEC = re.compile(rf"(?:[0-9]{{1,6}}x){{1,{len(LEVELS) + 1}}}[0-9]{{1,6}}")


def parse_uniform(spec: str) -> tuple[int, ...]:
    """The numbers of a text such as `16x8` or `4x32x8`. Raises TraceError."""
    *below, gpus = map(int, spec.split("x")) if _SPEC.fullmatch(spec) else (0, 0)
    if not (1 <= prod(below) <= MAX_NODES and 1 <= gpus <= MAX_GPUS):
        rule = f"nodes x GPUs of each, with 1 to {MAX_NODES} nodes and 1 to {MAX_GPUS} GPUs"
        levels = f"before them up to {len(LEVELS)} numbers of domains, such as 4x32x8"
        raise TraceError(f"{spec!r} is no cluster such as 16x8: {rule}; {levels}")
    return *below, gpus


def uniform_nodes(*size: int) -> tuple[Node, ...]:
    """The nodes of a cluster of this size: how many domains or nodes are in each domain, the widest level first, then
    the GPUs of each node."""
    *below, gpus = size
    amounts = ((CPU, _NO_LIMIT_CPU_MILLI), (MEMORY, _NO_LIMIT_MEMORY_BYTES), (GPU, gpus), (PODS, NO_LIMIT_PODS))
    count = prod(below)
    names = [f"node-{i:0{len(str(count - 1))}}" for i in range(count)]
    return tuple(
        Node(name, tuple(sorted(amounts)), ((HOSTNAME, name), *_places(i, below))) for i, name in enumerate(names)
    )


def _places(node: int, below: list[int]) -> list[tuple[str, str]]:
    """The labels of the domains of a node."""
    labels, domain = [], node
    for key, size in zip(LEVELS, below[:0:-1], strict=False):
        domain //= size
        labels.append((key, f"switch-{domain}"))
    return labels
