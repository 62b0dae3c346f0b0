# SPDX-License-Identifier: Apache-2.0
"""Which of the nodes that suit a pod it gets: what it prefers, then the tightest fit, then the node reported first."""

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.decisions import Bind
from dovetail.core.model import (
    CPU,
    GPU,
    MEMORY,
    PODS,
    LabelSelector,
    Node,
    NodeTerm,
    PeerTerm,
    Pod,
    PreferredNodes,
    PreferredPeers,
    Request,
    Requirement,
    Spread,
    Taint,
    Toleration,
)
from tests.core.driven import Driven

GIB = 2**30
WEB = PeerTerm(LabelSelector((Requirement("app", "In", ("web",)),)), frozenset(("ns",)), "rack")
PREFERRED = Taint("w", "", "PreferNoSchedule")


def node(name: str, gpus: int = 0, cpu: int = 64_000, memory: int = 256 * GIB, **more: object) -> Node:
    amounts = ((CPU, cpu), (MEMORY, memory), (GPU, gpus), (PODS, 99))
    return replace(Node(name, amounts, (("rack", name),)), **more)


def place(nodes: list[Node], request: Request, *there: Pod, **more: object) -> Bind:
    driven = Driven(*nodes)
    driven.apply_events(*(ev.PodChanged(pod) for pod in there))
    pod = replace(Pod("p", "ns", "p", request), **more)
    driven.at(0, ev.PodChanged(pod))
    [bind] = driven.last
    assert isinstance(bind, Bind)
    return bind


def web(uid: str, node: str, **more: object) -> Pod:
    return replace(Pod(uid, "ns", uid, Request(), (("app", "web"),), node=node), **more)


def near(value: str, weight: int) -> PreferredNodes:
    return PreferredNodes(weight, NodeTerm((Requirement("rack", "In", (value,)),)))


CPU_POD, GPU_POD = Request(((CPU, 1000), (MEMORY, GIB))), Request(((CPU, 1000), (GPU, 1)))
CHOICES = [
    ("of equals the first reported", [node("a"), node("b")], CPU_POD, "a"),
    ("no GPUs wanted: a node without", [node("a", 8), node("b", 4), node("c")], CPU_POD, "c"),
    ("the fewest GPUs left", [node("a", 8), node("b", 2), node("c", 4)], GPU_POD, "b"),
    ("then the least CPU left", [node("a", cpu=64_000), node("b", cpu=8_000), node("c", cpu=9_000)], CPU_POD, "b"),
    ("then the least memory left", [node("a"), node("b", memory=8 * GIB), node("c", memory=9 * GIB)], CPU_POD, "b"),
    ("GPUs before CPU", [node("a", 2, cpu=2_000), node("b", 1, cpu=64_000)], GPU_POD, "b"),
    ("a tight node that is full is none", [node("a", 0), node("b", 4)], GPU_POD, "b"),
    ("a preferred node", [node("a"), node("b", 8)], replace(CPU_POD, preferred_nodes=(near("b", 1),)), "b"),
    (
        "the greater sum of preferences",
        [node("a"), node("b"), node("c")],
        replace(CPU_POD, preferred_nodes=(near("b", 40), near("c", 30), near("c", 20))),
        "c",
    ),
    ("a taint to stay away from", [node("a", taints=(PREFERRED,)), node("b", 8)], CPU_POD, "b"),
    (
        "a taint that is tolerated",
        [node("a", taints=(PREFERRED,)), node("b", 8)],
        replace(CPU_POD, tolerations=(Toleration("w", "Exists"),)),
        "a",
    ),
]


@pytest.mark.parametrize(("nodes", "request_", "best"), [c[1:] for c in CHOICES], ids=[c[0] for c in CHOICES])
def test_the_best_node(nodes: list[Node], request_: Request, best: str) -> None:
    assert place(nodes, request_).node == best


def test_peers_draw_a_pod_near_or_push_it_away() -> None:
    nodes = [node("a"), node("b"), node("c")]
    there = web("x", "b")
    assert place(nodes, replace(CPU_POD, preferred_peers=(PreferredPeers(5, WEB),)), there).node == "b"
    pushed = replace(CPU_POD, preferred_peers=(PreferredPeers(-5, WEB),))
    assert place(nodes, pushed, there, web("y", "a")).node == "c"


def test_a_preferred_spread_takes_the_emptiest_domain() -> None:
    nodes = [node("a"), node("b"), node("c")]
    evenly = replace(CPU_POD, spread=(Spread(WEB, 1, required=False),))
    pods = [web("x", "a"), web("y", "b"), web("z", "c", deleting=True)]
    assert place(nodes, evenly, *pods).node == "c"


def test_a_pod_goes_to_the_node_that_it_was_nominated_to() -> None:
    assert place([node("a"), node("b", 8)], CPU_POD, nominated_node="b").node == "b"
    assert place([node("a"), node("b", 8, cpu=10)], CPU_POD, nominated_node="b").node == "a"


def test_a_share_takes_the_tightest_open_gpu_before_a_whole_one() -> None:
    open_gpus = {"a": 300, "b": 600}
    shares = [Pod(name, "ns", name, Request(gpu_milli=milli), node=name) for name, milli in open_gpus.items()]
    nodes = [node("a", 3), node("b", 3), node("c", 1)]
    assert place(nodes, Request(gpu_milli=400), *shares).node == "b"
    assert place(nodes, Request(gpu_milli=500), *shares).node == "a"
    assert place(nodes, Request(gpu_milli=800), *shares).node == "c"


def test_the_lowest_free_gpus_are_held_and_reported() -> None:
    driven = Driven(node("a", 4))
    held = {}
    for uid, gpus in (("p", 1), ("q", 2)):
        driven.at(0, ev.PodChanged(Pod(uid, "ns", uid, Request(((GPU, gpus),)))))
        held |= {d.uid: d.devices for d in driven.last if isinstance(d, Bind)}
    driven.at(1, ev.PodRemoved("p"), ev.PodChanged(Pod("r", "ns", "r", Request(((GPU, 2),)))))
    held |= {d.uid: d.devices for d in driven.last if isinstance(d, Bind)}
    assert held == {"p": (0,), "q": (1, 2), "r": (0, 3)}
