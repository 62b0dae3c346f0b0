# SPDX-License-Identifier: Apache-2.0
"""Which nodes are quarantined: never more than the budget admits, the earliest first, and none loses its place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.checkpoint import restore, take
from dovetail.core.cycle import apply_events
from dovetail.core.model import CPU, GPU, MEMORY, PODS, Node, Pod, Request
from dovetail.core.policy import Policy
from dovetail.core.reasons import Reason, When
from dovetail.core.state import State
from tests.core.driven import POLICY, Driven

OFFER = ((PODS, 50), (CPU, 64_000), (MEMORY, 2**40))


def node(name: str, since_ms: int = 0, gpus: int = 8) -> Node:
    return Node(name, ((GPU, gpus), *OFFER), quarantine_ms=since_ms)


def pod(uid: str, gpus: int = 1, **more: Any) -> Pod:
    gpu = ((GPU, gpus),) if gpus else ()
    return Pod(uid, "ns", uid, Request((*gpu, (CPU, 1000), (MEMORY, 2**30))), **more)


def test_no_pod_is_placed_on_a_quarantined_node_and_running_ones_stay() -> None:
    driven = Driven(node("a"))
    assert driven.at(10, ev.PodChanged(pod("runs", 4))) == {"runs": "a"}
    asks = ev.NodeChanged(node("a", 15))
    assert driven.at(20, asks, ev.PodChanged(pod("p")), ev.PodChanged(pod("cpu", 0))) == {}
    assert {type(decision).__name__ for decision in driven.last} == {"Hold"}
    for refusal in driven.holds().values():
        assert refusal.when is When.NOT_YET
        assert [(one.reason, one.nodes) for one in refusal.nodes] == [(Reason.QUARANTINED, 1)]
    assert driven.at(30, ev.NodeChanged(node("a"))) == {"p": "a", "cpu": "a"}


def test_nodes_beyond_the_budget_stay_in_use() -> None:
    driven = Driven()
    driven.at(10, *(ev.NodeChanged(node(f"n{i}", since_ms=100 - i)) for i in range(20)))
    assert set(driven.state.cluster.quarantines.in_force) == {"n19", "n18"}
    binds = driven.at(20, *(ev.PodChanged(pod(f"p{i}", 8)) for i in range(20)))
    assert set(binds.values()) == {f"n{i}" for i in range(18)}


@pytest.mark.parametrize(
    ("milli", "most", "gpu_nodes", "limit"),
    [(100, 0, 9, 1), (100, 0, 29, 2), (100, 0, 30, 3), (1000, 0, 5, 5), (0, 0, 50, 0), (100, 4, 50, 4), (0, 4, 50, 4)],
)
def test_the_limit(milli: int, most: int, gpu_nodes: int, limit: int) -> None:
    state = State(Policy(quarantine_milli=milli, quarantine_nodes=most))
    changes = [ev.NodeChanged(node(f"n{i}", 5)) for i in range(gpu_nodes)]
    others = [ev.NodeChanged(Node(f"c{i}", OFFER)) for i in range(100)]
    apply_events(state, [*changes, *others], 10)
    assert state.cluster.quarantines.limit == limit
    assert len(state.cluster.quarantines.in_force) == limit


def test_a_node_that_waited_for_the_budget_takes_no_pod_once_it_is_quarantined() -> None:
    driven = Driven(node("a"), node("b"))
    driven.at(10, ev.NodeChanged(node("a", 5)), ev.NodeChanged(node("b", 6)))
    # What is known of such pods from then on has to follow.
    driven.state.score_cache.of(driven.state.cluster.shape_of(pod("p")))
    driven.at(20, ev.NodeChanged(node("a")))
    assert driven.state.cluster.quarantines.in_force == ("b",)
    binds = driven.at(30, *(ev.PodChanged(pod(f"p{i}")) for i in range(9)))
    assert list(binds.values()) == 8 * ["a"]


def test_a_node_without_any_gpu_on_offer_counts_while_it_asks() -> None:
    driven = Driven(node("a", 5, gpus=0))
    assert driven.at(10, ev.PodChanged(pod("cpu", 0))) == {}


def test_an_earlier_time_takes_no_place_and_a_restart_of_the_scheduler_goes_by_times() -> None:
    driven = Driven(node("a"), node("b"))
    driven.at(10, ev.NodeChanged(node("b", 5)))
    driven.at(20, ev.NodeChanged(node("a", 3)))
    assert driven.state.cluster.quarantines.in_force == ("b",)
    again = State(POLICY)
    apply_events(again, [ev.NodeChanged(node("a", 3)), ev.NodeChanged(node("b", 5))], 30)
    assert again.cluster.quarantines.in_force == ("a",)
    assert restore(POLICY, take(driven.state)).cluster.quarantines.in_force == ("b",)
    driven.at(40, ev.NodeChanged(node("b")))
    assert driven.state.cluster.quarantines.in_force == ("a",)


STEPS = st.lists(
    st.lists(st.tuples(st.integers(0, 11), st.sampled_from(["put", "ask", "remove"]), st.integers(1, 50)), max_size=6),
    max_size=12,
)


@pytest.mark.slow
@given(STEPS, st.sampled_from([0, 100, 250, 1000]), st.sampled_from([0, 0, 2]))
def test_the_budget_holds_and_no_node_loses_its_place(steps: list[Any], milli: int, most: int) -> None:
    """As an oracle that knows all nodes does it."""
    state = State(Policy(quarantine_milli=milli, quarantine_nodes=most))
    nodes: dict[str, Node] = {}
    expected: list[str] = []
    for at, batch in enumerate(steps):
        events: list[ev.Event] = []
        for number, kind, since_ms in batch:
            name = f"n{number}"
            if kind == "remove":
                nodes.pop(name, None)
                events.append(ev.NodeRemoved(name))
            else:
                nodes[name] = node(name, since_ms if kind == "ask" else 0)
                events.append(ev.NodeChanged(nodes[name]))
        apply_events(state, events, at)
        limit = most or (max(1, len(nodes) * milli // 1000) if milli else 0)
        asking = {name: one.quarantine_ms for name, one in nodes.items() if one.quarantine_ms}
        kept = [name for name in expected if name in asking]
        others = sorted((since_ms, name) for name, since_ms in asking.items() if name not in kept)
        admitted = [name for _, name in others[: max(0, limit - len(kept))]]
        expected = kept + admitted
        cluster = state.cluster
        assert list(cluster.quarantines.in_force) == expected
        assert cluster.quarantines.limit == limit
        assert not admitted or len(expected) <= limit
        marked = {cluster.nodes.names[slot] for slot in cluster.nodes.quarantined.nonzero()[0]}
        assert marked == set(expected)
        copy = restore(state.policy, take(state))
        assert copy.cluster.quarantines.in_force == cluster.quarantines.in_force
        assert replace(take(copy), events=(), now_ms=0) == replace(take(state), events=(), now_ms=0)
