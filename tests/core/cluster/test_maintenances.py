# SPDX-License-Identifier: Apache-2.0
"""Nodes in maintenance take no pod that would still run at the start; others start, run and wait as before."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.checkpoint import restore, take
from dovetail.core.model import (
    CPU,
    GPU,
    MAINTENANCE_TOLERATION,
    MEMORY,
    PODS,
    Maintenance,
    Node,
    Pod,
    Request,
    Toleration,
    Work,
)  # fmt: skip
from dovetail.core.policy import Policy
from dovetail.core.queues.run_times import FEWEST_OF_FAMILY
from dovetail.core.reasons import Reason, Sure, When
from tests.core.driven import POLICY, Driven, gang

OFFER = ((PODS, 50), (CPU, 64_000), (MEMORY, 2**40))
MINUTE_MS, HOUR_MS = 60_000, 3_600_000


def node(name: str, maintenance: Maintenance | None = None, gpus: int = 8) -> Node:
    return Node(name, ((GPU, gpus), *OFFER), maintenance=maintenance)


def pod(uid: str, gpus: int = 1, runs_ms: int = 0, **more: Any) -> Pod:
    gpu = ((GPU, gpus),) if gpus else ()
    request = Request((*gpu, (CPU, 1000), (MEMORY, 2**30)), tolerations=more.pop("tolerations", ()))
    return Pod(uid, "ns", uid, request, work=Work(max_runtime_ms=runs_ms, family=more.pop("family", "")), **more)


def test_without_a_start_no_pod_starts_and_running_ones_stay() -> None:
    driven = Driven(node("a"))
    assert driven.at(10, ev.PodChanged(pod("runs", 4))) == {"runs": "a"}
    short, cpu = pod("short", 1, 1000), pod("cpu", 0)
    assert driven.at(20, ev.NodeChanged(node("a", Maintenance())), ev.PodChanged(short), ev.PodChanged(cpu)) == {}
    assert {type(decision).__name__ for decision in driven.last} == {"Hold"}
    for refusal in driven.holds().values():
        assert refusal.when is When.NOT_YET
        assert [(one.reason, one.nodes) for one in refusal.nodes] == [(Reason.MAINTENANCE, 1)]
    assert driven.at(30, ev.NodeChanged(node("a"))) == {"short": "a", "cpu": "a"}


def test_a_pod_starts_where_it_ends_by_the_start() -> None:
    closing = Maintenance(start_ms=HOUR_MS)
    driven = Driven(node("a", closing))
    ends, late, unknown = pod("ends", 1, HOUR_MS - 10), pod("late", 1, HOUR_MS - 9), pod("unknown")
    assert driven.at(10, *map(ev.PodChanged, (late, unknown, ends))) == {"ends": "a"}
    assert {uid: one.nodes[0].reason for uid, one in driven.holds().items()} == dict.fromkeys(
        ("late", "unknown"), Reason.MAINTENANCE
    )
    # A minute later less fits, for an equal pod, too.
    assert driven.at(MINUTE_MS, ev.PodChanged(pod("equal", 1, HOUR_MS - 10))) == {}
    assert driven.at(MINUTE_MS + 1, ev.PodChanged(pod("shorter", 1, HOUR_MS - 2 * MINUTE_MS))) == {"shorter": "a"}
    assert driven.at(HOUR_MS, ev.PodChanged(pod("shortest", 1, 1))) == {}


def test_several_nodes_close_at_different_times() -> None:
    driven = Driven(*(node(f"n{hours}", Maintenance(start_ms=hours * HOUR_MS), 1) for hours in (1, 2, 3)))
    pods = [pod(f"p{hours}", 1, hours * HOUR_MS - 100) for hours in (3, 2, 1)]
    assert driven.at(10, *map(ev.PodChanged, pods)) == {"p3": "n3", "p2": "n2", "p1": "n1"}


def test_a_gang_uses_a_closing_node_only_with_pods_that_end_by_then() -> None:
    driven = Driven(node("a", Maintenance(start_ms=HOUR_MS), 1), node("b", gpus=1))
    members = [pod(f"g{i}", 1, 2 * HOUR_MS, gang="g") for i in range(2)]
    assert driven.at(10, gang(), *map(ev.PodChanged, members)) == {}
    shorter = [replace(one, work=Work(max_runtime_ms=MINUTE_MS)) for one in members]
    assert set(driven.at(20, *map(ev.PodChanged, shorter)).values()) == {"a", "b"}


def test_what_was_learned_of_equal_work_counts_as_its_end() -> None:
    driven = Driven(node("a", Maintenance(start_ms=HOUR_MS)))
    assert driven.at(10, ev.PodChanged(pod("p", family="f"))) == {}
    for _ in range(FEWEST_OF_FAMILY):
        driven.state.run_times.learn("f", "", MINUTE_MS)
    assert driven.at(20, ev.PodChanged(pod("q", family="f")))["q"] == "a"


@pytest.mark.parametrize(("key", "binds"), [(MAINTENANCE_TOLERATION, {"p": "a"}), ("", {})])
def test_a_pod_that_tolerates_maintenance_starts_and_one_that_tolerates_all_taints_does_not(
    key: str, binds: dict[str, str]
) -> None:
    driven = Driven(node("a", Maintenance()))
    assert driven.at(10, ev.PodChanged(pod("p", tolerations=(Toleration(key, "Exists"),)))) == binds


def test_no_room_is_held_on_a_node_in_maintenance_and_held_room_moves_off_it() -> None:
    driven = Driven(node("a"), node("b"))
    held = {name: replace(pod(f"on-{name}", 8, ends * HOUR_MS), node=name, bound_ms=1) for name, ends in
            (("a", 1), ("b", 2))}  # fmt: skip
    driven.at(10, *map(ev.PodChanged, held.values()), ev.PodChanged(pod("big", 8, MINUTE_MS)))
    [room] = driven.state.reservations
    assert driven.state.cluster.nodes.names[int(room.slots[0])] == "a"
    driven.at(20, ev.NodeChanged(node("a", Maintenance(start_ms=3 * HOUR_MS))))
    [room] = driven.state.reservations
    assert driven.state.cluster.nodes.names[int(room.slots[0])] == "b"
    assert (room.expected.sure, room.expected.start_ms) == (Sure.KNOWN, 2 * HOUR_MS + 1)
    driven.at(30, ev.NodeChanged(node("b", Maintenance())))
    assert not list(driven.state.reservations)


def test_no_pod_is_evicted_for_room_on_a_node_in_maintenance() -> None:
    driven = Driven(node("a", Maintenance(start_ms=HOUR_MS)), policy=Policy(fabric=()))
    low = replace(pod("low", 8), node="a", bound_ms=1, priority=-1, owner="ns/o")
    driven.at(10 * MINUTE_MS, ev.PodChanged(low), ev.PodChanged(pod("high", 8, MINUTE_MS, priority=5)))
    assert {type(decision).__name__ for decision in driven.last} == {"Hold"}
    driven.at(11 * MINUTE_MS, ev.NodeChanged(node("a")))
    assert "Evict" in {type(decision).__name__ for decision in driven.last}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_over_time_no_pod_starts_that_would_be_cut(seed: int) -> None:
    """Nodes come, go and get other maintenances while pods come and end."""
    dice = random.Random(seed)
    driven = Driven(policy=POLICY)
    asked: dict[str, Maintenance | None] = {}
    ends_ms: dict[str, int] = {}
    starts = 0
    for number in range(60):
        now_ms = (number + 1) * 10 * MINUTE_MS
        events: list[ev.Event] = [ev.PodRemoved(uid, at) for uid, at in ends_ms.items() if at <= now_ms]
        ends_ms = {uid: at for uid, at in ends_ms.items() if at > now_ms}
        name = f"n{dice.randrange(5)}"
        start_ms = now_ms + dice.randrange(1, 5) * HOUR_MS
        asked[name] = dice.choice((None, Maintenance(), *[Maintenance(start_ms=start_ms)] * 3))
        events.append(ev.NodeChanged(node(name, asked[name], 4)))
        for i in range(dice.randrange(4)):
            runs_ms = dice.choice((0, 30 * MINUTE_MS, HOUR_MS, 2 * HOUR_MS, 4 * HOUR_MS))
            events.append(ev.PodChanged(pod(f"p{number}-{i}", dice.choice((1, 2, 4)), runs_ms, created_ms=now_ms)))
        for uid, where in driven.at(now_ms, *events).items():
            starts += 1
            run_ms, closing = driven.state.workloads.pods[uid].work.max_runtime_ms, asked[where]
            if run_ms:
                ends_ms[uid] = now_ms + run_ms
            assert closing is None or (run_ms and now_ms + run_ms <= closing.start_ms)
        again = restore(POLICY, take(driven.state))
        assert take(again).events == take(driven.state).events
        assert again.cluster.nodes.closings_ms == driven.state.cluster.nodes.closings_ms
    assert starts > 10
