# SPDX-License-Identifier: Apache-2.0
"""The native kernel finds what numpy finds, whatever happens to the cluster."""

import random
from dataclasses import replace

import numpy as np
import pytest

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.shapes import Shape
from dovetail.core.devices.kubelet.inventory import Cpu, Device, DevicePool, Inventory
from dovetail.core.devices.kubelet.pods import Container
from dovetail.core.devices.kubelet.pods import Pod as ManagedPod
from dovetail.core.devices.layout import BOARD, NODE, Layout
from dovetail.core.devices.sharing import Sharing
from dovetail.core.model import (
    CPU,
    GPU,
    MEMORY,
    PODS,
    SHARED_GPU,
    Node,
    NodeTerm,
    Pod,
    PreferredNodes,
    Request,
    Requirement,
    Taint,
)
from dovetail.core.placing import kernel
from dovetail.core.placing.rows import Row
from dovetail.core.placing.scores import INFEASIBLE, Tightest

pytestmark = pytest.mark.skipif(not kernel.BUILT, reason="the kernel was not built, or DOVETAIL_NATIVE=0 is set")

LINKS = ("01100000", "10010000", "10010000", "01100000", "00000220", "00002002", "00002002", "00000220")
WIRED = Layout(
    (0,) * 4 + (1,) * 4,
    tuple(tuple(BOARD if i == j else NODE for j in range(8)) for i in range(8)),
    tuple(tuple(map(int, row)) for row in LINKS),
)
HALF = Layout((0,) * 4, tuple(row[:4] for row in WIRED.pcie[:4]), tuple(row[:4] for row in WIRED.nvlinks[:4]))
MANAGED = Inventory(
    numa=(0, 1),
    topology_policy="single-numa-node",
    cpus=tuple(Cpu(i, i, i // 4, i // 4, i // 4) for i in range(8)),
    devices=(DevicePool(GPU, tuple(Device(str(i), (i // 4,)) for i in range(8)), prefers=True),),
)
SHARINGS = (
    Sharing(SHARED_GPU, cards=4, replicas=4),
    Sharing(GPU, cards=2, replicas=3),
    Sharing(SHARED_GPU, cards=2, replicas=8, isolation="memory"),
)
WISH = PreferredNodes(7, NodeTerm((Requirement("zone", "In", ("a",)),)))


class Dice(random.Random):
    def node(self, name: str) -> Node:
        gpus = self.choice((0, 1, 4, 8, 8))
        amounts = {
            CPU: self.randrange(0, 64_000),
            MEMORY: self.randrange(0, 2**40),
            PODS: self.randrange(1, 9),
            GPU: gpus,
        }
        more: dict[str, object] = {"gpu_memory_mib": self.choice((0, 16_384, 40_960))}
        kind = self.randrange(6)
        if kind == 0:
            more["layout"] = {8: WIRED, 4: HALF}.get(gpus)
        elif kind == 1:
            sharing = self.choice(SHARINGS)
            amounts[sharing.resource] = sharing.cards * sharing.replicas
            more["sharing"] = sharing
        elif kind == 2 and gpus == 8:
            more["inventory"] = MANAGED
        elif kind == 3:
            more["sliced"] = self.random() < 0.3
        if self.random() < 0.1:
            more["taints"] = (Taint("k", "", self.choice(("NoSchedule", "PreferNoSchedule"))),)
        if self.random() < 0.3:
            amounts["example.com/nic"] = self.randrange(1, 4)
        return replace(Node(name, tuple(sorted(amounts.items())), (("zone", self.choice("ab")),)), **more)

    def request(self) -> Request:
        amounts = {CPU: self.randrange(0, 9_000), MEMORY: self.choice((0, 2**28, 2**33 + 1))}
        more: dict[str, object] = {}
        kind = self.randrange(6)
        if kind == 0:
            more["gpu_milli"] = self.randrange(1, 1000)
        elif kind == 1:
            more["gpu_memory_mib"] = self.randrange(1, 20_000)
        elif kind == 2:
            amounts[SHARED_GPU] = self.choice((1, 1, 2))
            more["gpu_memory_mib"] = self.choice((0, 5_000))
        elif kind < 5:
            amounts[GPU] = self.choice((1, 2, 3, 4, 8))
            more |= {"nvlink_required": self.random() < 0.3, "gpu_milli": self.choice((0, 0, 0, 400))}
        if self.random() < 0.2:
            amounts["example.com/nic"] = 1
        if self.random() < 0.3:
            more["preferred_nodes"] = (WISH,)
        request = replace(Request(tuple(sorted(amounts.items()))), **more)
        if GPU in amounts and self.random() < 0.5:
            gpus = ((GPU, amounts[GPU]),)
            request = replace(request, managed=ManagedPod((Container(request.resources, gpus),)))
        return request


def disturb(dice: Dice, cluster: Cluster, requests: list[Request], step: int) -> None:
    what = dice.randrange(10)
    if what < 6 or not cluster.placements:
        slot = dice.randrange(len(cluster.nodes.names))
        cluster.place(Pod(f"p{step}", "ns", f"p{step}", dice.choice(requests)), slot)
    elif what < 9:
        cluster.unplace(dice.choice(list(cluster.placements)))
    else:
        number = dice.randrange(len(cluster.nodes.names) + 3)
        cluster.put_node(dice.node(f"n{number}"))


def agree(row: Row, pure: Row) -> int:
    """Both up to date, the second by numpy alone."""
    row.refresh()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "BUILT", False)
        pure.refresh()
    assert pure._kernel is None
    assert np.array_equal(row.score, pure.score)
    best = pure.best()
    assert row.best() == best
    return best


@pytest.mark.parametrize("seed", range(30))
def test_the_kernel_scores_as_numpy_does(seed: int) -> None:
    dice = Dice(seed)
    cluster = Cluster(Tightest())
    for i in range(dice.choice((3, 40, 127, 300))):
        cluster.put_node(dice.node(f"n{i}"))
    requests = [dice.request() for _ in range(12)]
    shapes: list[Shape] = [cluster.shapes.of(request) for request in requests]
    rows = [(Row(cluster, Tightest(), shape), Row(cluster, Tightest(), shape)) for shape in shapes]
    for step in range(150):
        disturb(dice, cluster, requests, step)
        row, pure = dice.choice(rows)
        best = agree(row, pure)
        if row.score[best] != INFEASIBLE and cluster.kubelets.books and dice.random() < 0.2:
            row.refuse(best)
            pure.refuse(best)
            agree(row, pure)
        if dice.random() < 0.05:
            assert np.array_equal(row.copies(), pure.copies())
    for row, pure in rows:
        agree(row, pure)
    assert any(row._kernel is not None for row, _ in rows)


def test_a_kernel_over_arrays_that_do_not_belong_together_is_refused() -> None:
    cluster = Cluster(Tightest())
    cluster.put_node(Node("n", ((CPU, 1000), (PODS, 9))))
    row = Row(cluster, Tightest(), cluster.shapes.of(Request(((CPU, 500),))))
    row.refresh()
    short = np.zeros(64, dtype=np.int64)
    with pytest.raises(ValueError, match="not of one size"):
        kernel.over(cluster.nodes, row.shape, None, row.score, row._tops, row._stale, row.suitable, short, row._refused)
    with pytest.raises(TypeError, match="items of 4 bytes"):
        narrow = row.preference.astype(np.int32)
        kernel.over(
            cluster.nodes, row.shape, None, row.score, row._tops, row._stale, row.suitable, narrow, row._refused
        )
    assert row._kernel is not None
    with pytest.raises(IndexError, match="slot 128 of 128"):
        row._kernel.redo([128], 0, False)
