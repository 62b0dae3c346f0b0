# SPDX-License-Identifier: Apache-2.0
"""Uniform nodes for traces without a node list, written as `16x8` (16 nodes of 8 GPUs).

Only GPUs limit such a node: it has more CPU, memory and room for pods than any job requests.
"""

from __future__ import annotations

import re

from dovetail.core.model import CPU, GPU, MAX_GPUS, MEMORY, PODS, Node
from dovetail.sim.traces.errors import TraceError

HOSTNAME = "kubernetes.io/hostname"
NO_LIMIT_PODS = 1_000_000
MAX_NODES = 100_000

_NO_LIMIT_CPU_MILLI = 10**9
_NO_LIMIT_MEMORY_BYTES = 2**50
_SPEC = re.compile(r"([0-9]{1,6})x([0-9]{1,6})")


def parse_uniform(spec: str) -> tuple[int, int]:
    """(number of nodes, GPUs of each), from a text such as `16x8`. Raises TraceError."""
    match = _SPEC.fullmatch(spec)
    count, gpus = map(int, match.groups()) if match else (0, 0)
    if not (1 <= count <= MAX_NODES and 1 <= gpus <= MAX_GPUS):
        rule = f"nodes x GPUs of each, with 1 to {MAX_NODES} nodes and 1 to {MAX_GPUS} GPUs"
        raise TraceError(f"{spec!r} is no cluster such as 16x8: {rule}")
    return count, gpus


def uniform_nodes(count: int, gpus: int) -> tuple[Node, ...]:
    amounts = ((CPU, _NO_LIMIT_CPU_MILLI), (MEMORY, _NO_LIMIT_MEMORY_BYTES), (GPU, gpus), (PODS, NO_LIMIT_PODS))
    names = [f"node-{i:0{len(str(count - 1))}}" for i in range(count)]
    return tuple(Node(name, tuple(sorted(amounts)), ((HOSTNAME, name),)) for name in names)
