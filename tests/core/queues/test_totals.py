# SPDX-License-Identifier: Apache-2.0
"""What nodes have in all is the sum of what each has alone, however little distinguishes them."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from dovetail.core import events as ev
from dovetail.core.cycle import step
from dovetail.core.devices.gpu_sharing import Sharing
from dovetail.core.devices.mig.products import of_product
from dovetail.core.devices.mig.static import Card
from dovetail.core.model import CPU, GPU, PODS, SHARED_GPU, Node
from dovetail.core.policy import Policy
from dovetail.core.state import State

MODEL = "nvidia.com/gpu.product"
SLICE = "nvidia.com/mig-1g.10gb"
CARDS = [of_product(name) for name in ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB")]
OFFERED = [
    ((CPU, 8_000), (PODS, 110), (GPU, 4)),
    ((CPU, 8_000), (PODS, 110), (GPU, 8)),
    ((CPU, 8_000), (PODS, 110), (GPU, 4), (SHARED_GPU, 8), (SLICE, 7)),
]
LABELS = [(), ((MODEL, "NVIDIA-H100-80GB-HBM3"),), ((MODEL, "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"),)]
SHARED = [None, Sharing(SHARED_GPU, cards=2, replicas=4), Sharing(SHARED_GPU, cards=4, replicas=2)]


def kinds() -> list[Node]:
    found = []
    for offered, labels, sharing, memory_mib, sliced, card in product(
        OFFERED, LABELS, SHARED, (0, 40_960), (False, True), (None, *CARDS)
    ):
        mig = (Card(0, card, ()),) if card is not None else ()
        found.append(
            Node(
                f"node-{len(found)}", offered, labels, sharing=sharing, gpu_memory_mib=memory_mib, sliced=sliced,
                mig=mig,
            )
        )  # fmt: skip
    return found


def capacity(nodes: list[Node]) -> dict[str, int]:
    state = State(Policy())
    step(state, [ev.NodeChanged(node) for node in nodes], 1)
    return {name: amount for name, amount in state.shares.accounting.capacity().items() if amount}


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.slow
def test_every_node_counts_as_if_it_were_alone(backwards: bool) -> None:
    nodes = kinds()
    alone: Counter[str] = Counter()
    for node in nodes:
        alone.update(capacity([node]))
    together = capacity(nodes[::-1] if backwards else nodes)
    assert len({tuple(capacity([node]).items()) for node in nodes}) > len(OFFERED) * len(LABELS)
    assert together == dict(alone)


def test_a_node_that_changes_counts_as_it_is_now() -> None:
    nodes = kinds()[:60]
    state = State(Policy())
    step(state, [ev.NodeChanged(node) for node in nodes], 1)
    changed = [
        ev.NodeChanged(Node(node.name, other.allocatable, other.labels, gpu_memory_mib=other.gpu_memory_mib))
        for node, other in zip(nodes, reversed(nodes), strict=True)
    ]
    step(state, changed, 2)
    now = {name: amount for name, amount in state.shares.accounting.capacity().items() if amount}
    assert now == capacity([event.node for event in changed])
