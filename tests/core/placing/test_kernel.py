# SPDX-License-Identifier: Apache-2.0
"""The native kernel finds what numpy finds, whatever happens to the cluster, and so the same is decided."""

import os
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from msgspec.structs import replace

import dovetail
from dovetail.core import events as ev
from dovetail.core.cluster import Cluster
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Decision
from dovetail.core.devices.gpu_sharing import Sharing
from dovetail.core.devices.kubelet.inventory import Cpu, DevicePool, Inventory, ManagedDevice
from dovetail.core.devices.kubelet.pods import ManagedContainer
from dovetail.core.devices.kubelet.pods import ManagedPod as ManagedPod
from dovetail.core.devices.layout import BOARD, NODE, Layout
from dovetail.core.devices.mig.products import GEOMETRIES
from dovetail.core.devices.mig.static import Card
from dovetail.core.event_handlers import apply
from dovetail.core.model import (
    CPU,
    GPU,
    MEMORY,
    PODS,
    SHARED_GPU,
    Gang,
    Node,
    NodeTerm,
    Pod,
    PreferredNodes,
    Problem,
    Request,
    Requirement,
    Taint,
)
from dovetail.core.placing import kernel
from dovetail.core.placing.expected_fill import ExpectedFill
from dovetail.core.placing.layout import CELLS, LEVELS, MOST_BUSY, UNITS, LearnedArrays
from dovetail.core.placing.score_cache import ScoreRow
from dovetail.core.placing.scores import INFEASIBLE, Scoring, Tightest
from dovetail.core.policy import Policy
from dovetail.core.state import State
from tests.breadth import seeds


@pytest.fixture(autouse=True)
def built() -> None:
    if not kernel.BUILT:
        forbidden = os.environ.get("DOVETAIL_NATIVE") == "0"
        outcome = pytest.fail if os.environ.get("CI") == "true" and not forbidden else pytest.skip
        outcome(f"there is no kernel to compare: {dovetail.__runs__()}")


MIG = "nvidia.com/mig-"
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
    devices=(DevicePool(GPU, tuple(ManagedDevice(str(i), (i // 4,)) for i in range(8)), prefers=True),),
)
SHARINGS = (
    Sharing(SHARED_GPU, cards=4, replicas=4),
    Sharing(GPU, cards=2, replicas=3),
    Sharing(SHARED_GPU, cards=2, replicas=8, isolation="memory"),
)
A100 = GEOMETRIES[1]
CARDS = tuple(
    Card(
        gpu,
        A100,
        A100.bits((("3g.20gb", 0), ("2g.10gb", 4), ("1g.5gb", 6)) if gpu % 2 else (("1g.5gb", 0), ("1g.5gb", 6))),
    )
    for gpu in range(4)
)
PREFERENCE = PreferredNodes(7, NodeTerm((Requirement("zone", "In", ("a",)),)))


class Dice(random.Random):
    """Nodes and requests as no cluster has them side by side."""

    def node(self, name: str) -> Node:
        gpus = self.choice((0, 1, 4, 4, 8, 8, 8, 11))
        amounts = {
            CPU: self.choice((self.randrange(0, 64_000), 2**33)),
            MEMORY: self.choice((0, 2**62, *(self.randrange(0, 2**40) for _ in range(6)))),
            PODS: self.choice((0, 2, 5, 9)),
            GPU: gpus,
        }
        more: dict[str, object] = {"gpu_memory_mib": self.choice((0, 16_384, 40_960))}
        kind = self.randrange(8)
        if kind in (0, 7):
            more["layout"] = {8: WIRED, 4: HALF}.get(gpus)
        elif kind == 1:
            sharing = self.choice(SHARINGS)
            amounts[sharing.resource] = sharing.cards * sharing.replicas
            more["sharing"] = sharing
        elif kind == 2 and gpus == 8:
            more["inventory"] = MANAGED
        elif kind == 3:
            more["sliced"] = self.random() < 0.3
        elif kind == 5:
            amounts |= {GPU: 0, f"{MIG}1g.5gb": 6, f"{MIG}2g.10gb": 2, f"{MIG}3g.20gb": 2}
            more["mig"] = CARDS
        elif kind == 4 and gpus == 8:
            more |= {"layout": WIRED, "gpus_out": self.choice((1, 0b1010_0000))}
        if self.random() < 0.1:
            more["taints"] = (Taint("k", "", self.choice(("NoSchedule", "PreferNoSchedule"))),)
        if self.random() < 0.05:
            more |= self.choice(({"unschedulable": True}, {"problem": Problem("status", "x", "is bad")}))
        if self.random() < 0.3:
            amounts[self.device()] = self.randrange(1, 4)
        return replace(Node(name, tuple(sorted(amounts.items())), (("zone", self.choice("ab")),)), **more)

    def device(self) -> str:
        """So many that the table of the nodes becomes wider."""
        return f"example.com/{self.choice('aaaaaaabcdefgh')}"

    def request(self) -> Request:
        amounts = {CPU: self.choice((0, self.randrange(0, 9_000))), MEMORY: self.choice((0, 2**28, 2**33 + 1))}
        more: dict[str, object] = {}
        kind = self.randrange(8)
        if kind == 0:
            more["gpu_milli"] = self.choice((1, 1000, self.randrange(1, 1000)))
        elif kind == 1:
            more["gpu_memory_mib"] = self.choice((16_384, self.randrange(1, 20_000)))
        elif kind == 2:
            amounts[SHARED_GPU] = self.choice((1, 1, 2))
            more["gpu_memory_mib"] = self.choice((0, 5_000))
        elif kind < 5:
            amounts[GPU] = self.choice((1, 2, 2, 2, 3, 4, 8, 11))
            links = {"nvlink_required": self.random() < 0.5, "near_nics": self.random() < 0.2}
            more |= {**links, "gpu_milli": self.choice((0, 0, 0, 400))}
        elif kind == 5:
            amounts = {}
        elif kind == 6:
            for profile in self.sample(("1g.5gb", "2g.10gb", "3g.20gb"), self.choice((1, 1, 2))):
                amounts[MIG + profile] = self.choice((1, 1, 2))
        if self.random() < 0.2:
            amounts[self.device()] = self.choice((0, 1, 1))
        if self.random() < 0.1:
            more["isolation"] = "memory"
        if self.random() < 0.3:
            more["preferred_nodes"] = (PREFERENCE,)
        if self.random() < 0.1:
            more["node_selector"] = (("zone", "b"),)
        request = replace(Request(tuple(sorted(amounts.items()))), **more)
        if GPU in amounts and self.random() < 0.5:
            gpus = ((GPU, amounts[GPU]),)
            request = replace(request, managed=ManagedPod((ManagedContainer(request.resources, gpus),)))
        return request


def disturb(dice: Dice, cluster: Cluster, requests: list[Request], step: int) -> None:
    """Pods may hold more than a node has, as those do that others put there."""
    what, slots = dice.randrange(100), len(cluster.nodes.names)
    if what < 60 or not cluster.placements:
        cluster.place(Pod(f"p{step}", "ns", f"p{step}", dice.choice(requests)), dice.randrange(slots))
    elif what < 88:
        cluster.unplace(dice.choice(list(cluster.placements)))
    elif what < 96:
        cluster.put_node(dice.node(f"n{dice.randrange(slots + 3)}"))
    elif what < 99:
        cluster.remove_node(f"n{dice.randrange(slots)}")
    else:
        # More than the journal keeps.
        cluster.nodes.amounts_journal.extend([dice.randrange(slots) for _ in range(8_200)])


def agree(row: ScoreRow, pure: ScoreRow) -> int:
    """Both up to date, the second by numpy alone."""
    row.refresh()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "BUILT", False)
        pure.refresh()
    assert pure._kernel is None
    assert np.array_equal(row.score, pure.score)
    if row._copies is not None:
        assert np.array_equal(row._copies, pure._copies)
        assert row._tallies.keys() == pure._tallies.keys()
        assert all(np.array_equal(row.tally(key), pure.tally(key)) for key in row._tallies)
    best = pure.best()
    assert row.best() == best
    return best


SCORINGS = [pytest.param(Tightest, id="tightest"), pytest.param(lambda: ExpectedFill(learn_from=5), id="expected-fill")]
"""What scores the nodes: a new one for each cluster."""


@pytest.mark.slow
@pytest.mark.parametrize("scoring_of", SCORINGS)
@pytest.mark.parametrize("seed", seeds(6))
def test_the_kernel_scores_as_numpy_does(seed: int, scoring_of: Callable[[], Scoring]) -> None:
    dice, scoring = Dice(seed), scoring_of()
    cluster = Cluster(scoring)
    for i in range(dice.choice((3, 8, 40, 127, 300))):
        cluster.put_node(dice.node(f"n{i}"))
    rows: list[tuple[ScoreRow, ScoreRow]] = []
    requests: list[Request] = []
    for number in range(150):
        if number % 10 == 0:
            requests.append(dice.request())
            shape = cluster.shapes.of(requests[-1])
            rows.append((ScoreRow(cluster, scoring, shape), ScoreRow(cluster, scoring, shape)))
        if dice.random() < 0.3:
            cluster.mix.see(Pod(f"w{number}", "ns", f"w{number}", dice.choice(requests)))
        disturb(dice, cluster, requests, number)
        row, pure = dice.choice(rows)
        best = agree(row, pure)
        if row.score[best] != INFEASIBLE and cluster.kubelets.books and dice.random() < 0.2:
            row.refuse(best)
            pure.refuse(best)
            agree(row, pure)
        if dice.random() < 0.05:
            assert np.array_equal(row.copies(), pure.copies())
        if dice.random() < 0.05:
            assert np.array_equal(row.tally("zone"), pure.tally("zone"))
    for row, pure in rows:
        agree(row, pure)
        assert np.array_equal(row.copies(), pure.copies())
    assert sum(row._kernel is not None for row, _ in rows) > 3


def reported(dice: Dice, steps: int) -> Iterator[list[ev.Event]]:
    """The events before each step: nodes, lone pods and gangs come and go."""
    requests = [dice.request() for _ in range(10)]
    yield [ev.NodeChanged(dice.node(f"n{i}")) for i in range(20)]
    for number in range(steps):
        events: list[ev.Event] = []
        gang = f"g{number}" if dice.random() < 0.3 else ""
        if gang:
            events.append(ev.GangChanged(Gang(gang, "ns", gang, 3, created_ms=number + 1)))
        request, priority = dice.choice(requests), dice.choice((0, 0, 5))
        for i in range(3):
            pod = Pod(f"p{number}-{i}", "ns", f"p{number}-{i}", request, gang=gang, priority=priority)
            events.append(ev.PodChanged(replace(pod, created_ms=number + 1)))
        if dice.random() < 0.3:
            events.append(ev.NodeChanged(dice.node(f"n{dice.randrange(24)}")))
        if dice.random() < 0.6:
            events.append(ev.PodRemoved(f"p{dice.randrange(number + 1)}-{dice.randrange(3)}"))
        yield events


def decided(seed: int, scoring: Scoring) -> list[list[Decision]]:
    """What is bound is bound at once."""
    dice, state, found, pods = Dice(seed), State(Policy(scoring=scoring)), [], {}
    for number, events in enumerate(reported(dice, 40)):
        pods |= {event.pod.uid: event.pod for event in events if isinstance(event, ev.PodChanged)}
        found.append(step(state, events, 1000 * number))
        for one in found[-1]:
            if isinstance(one, Bind):
                apply(state, ev.PodChanged(replace(pods[one.uid], node=one.node, bound_ms=1000 * number + 1)))
    assert state.cluster.check() == []
    return found


@pytest.mark.slow
@pytest.mark.parametrize("scoring_of", SCORINGS)
@pytest.mark.parametrize("seed", seeds(3))
def test_with_the_kernel_the_same_is_decided(
    seed: int, scoring_of: Callable[[], Scoring], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    monkeypatch.setattr(kernel, "over", lambda *rest, over=kernel.over: made.append(over(*rest)) or made[-1])
    native = decided(seed, scoring_of())
    assert sum(one is not None for one in made) > 3
    monkeypatch.setattr(kernel, "BUILT", False)
    assert decided(seed, scoring_of()) == native
    assert sum(isinstance(one, Bind) for some in native for one in some) > 10


def test_a_kernel_over_arrays_that_do_not_belong_together_is_refused() -> None:
    cluster = Cluster(Tightest())
    cluster.put_node(Node("n", ((CPU, 1000), (PODS, 9))))
    row = ScoreRow(cluster, Tightest(), cluster.shapes.of(Request(((CPU, 500),))))
    row.refresh()
    own = kernel.RowArrays(row.score, row._tops, row._stale, row.suitable, row.preference, row._refused, None)
    same = cluster.nodes, row.shape, None, None, None
    with pytest.raises(ValueError, match="not of one size"):
        kernel.over(*same, own._replace(preference=np.zeros(64, dtype=np.int64)), ())
    with pytest.raises(TypeError, match="items of 4 bytes"):
        kernel.over(*same, own._replace(preference=row.preference.astype(np.int32)), ())
    with pytest.raises(ValueError, match="not of one size"):
        kernel.over(*same, own._replace(copies=row._refused[:64]), ())
    short = (np.zeros(64, dtype=np.int32), np.zeros(3, dtype=np.int64))
    with pytest.raises(ValueError, match="not of one size"):
        kernel.over(*same, own._replace(copies=row._refused), (short,))
    sizes = (cluster.nodes.size,) * 2 + (CELLS * LEVELS * (UNITS + 1), 1, 1, 1, 1, 1, MOST_BUSY + 1)
    learned = LearnedArrays(*(np.zeros(size, dtype=np.int64) for size in sizes))
    for field, size in (("kinds", 64), ("table", 271), ("prices", 2), ("chances", 16)):
        short = learned._replace(**{field: np.zeros(size, dtype=np.int64)})
        with pytest.raises(ValueError, match="a worth do not belong together"):
            kernel.worth(cluster.nodes, short)
    worth = kernel.worth(cluster.nodes, learned)
    assert worth is not None
    with pytest.raises(IndexError, match="slot 128 of 128"):
        worth.share_gpu(128, 1)
    assert worth.share_gpu(0, 1) == -1
    assert row._kernel is not None
    with pytest.raises(IndexError, match="slot 128 of 128"):
        row._kernel.redo([128], 0, False)
