# SPDX-License-Identifier: Apache-2.0
"""The GPUs that an answer is about, with all that their price depends on. Prices are joined by the command.

Rules
- Nodes with equal GPUs, bought on equal terms, are one row.
- What a submitted pod holds counts as its queue counts it. It runs for as long as its run-time limit; without one, and
  for a lease, the run time is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dovetail.core.queues.node_gpus import gpus_on
from dovetail.core.queues.types import GPU
from dovetail.core.state import State
from dovetail.kube.nodes.purchase import purchase_of
from dovetail.views.forecast_types import Start
from dovetail.views.priced_types import ChangedNodes, PricedNode, SubmittedGpus


def priced_node(state: State, name: str) -> PricedNode | None:
    """None for a node without GPUs."""
    slot = state.cluster.nodes.slots[name]
    gpus = gpus_on(state, slot, ())
    if not gpus:
        return None
    return PricedNode(gpus[0].model, len(gpus), purchase_of(state.cluster.nodes.labels[slot]))


def changed_nodes(state: State, added: Iterable[str], removed: Iterable[str]) -> Iterator[ChangedNodes]:
    for names, adds in ((added, True), (removed, False)):
        found: dict[PricedNode, list[str]] = {}
        for name in names:
            kind = priced_node(state, name)
            if kind is not None:
                found.setdefault(kind, []).append(name)
        for kind, some in found.items():
            yield ChangedNodes(kind, tuple(some), adds)


def submitted_gpus(state: State, starts: Iterable[Start]) -> Iterator[SubmittedGpus]:
    for start in starts:
        nodes = {place.pod: place.node for place in start.places}
        sums: dict[tuple[str, int], int] = {}
        for pod in start.job.waiting:
            milli = state.shares.wanted([pod]).get(GPU, 0)
            if milli:
                key = nodes.get(pod.key, ""), pod.work.max_runtime_ms
                sums[key] = sums.get(key, 0) + milli
        for (node, run_ms), milli in sums.items():
            kind = priced_node(state, node) if node else None
            yield SubmittedGpus(start.job.name, milli, run_ms, node, kind)
