# SPDX-License-Identifier: Apache-2.0
"""What a Fabric states of the network, and that gangs use what was measured as slow last."""

from __future__ import annotations

import pytest

from dovetail.core import events as ev
from dovetail.core.checkpoint import restore, take
from dovetail.core.cycle import apply_events, step
from dovetail.core.decisions import Bind
from dovetail.core.fabric import FABRIC_NAME, FabricSpeeds, LevelSpeed, SlowPart
from dovetail.core.model import GPU, PODS, Gang, Node, Pod, Request
from dovetail.core.policy import Policy
from dovetail.core.state import State

BLOCK, RACK = "block", "rack"
LATER = 10_000


def state_of(racks: dict[str, int], speeds: FabricSpeeds | None) -> State:
    """Nodes of 8 GPUs named r0-0, r0-1, ... in racks of one block."""
    state = State(Policy(fabric=(BLOCK, RACK)))
    nodes = [
        ev.NodeChanged(Node(f"{rack}-{i}", ((GPU, 8), (PODS, 99)), ((BLOCK, "b"), (RACK, rack))))
        for rack, count in racks.items()
        for i in range(count)
    ]
    apply_events(state, [*nodes, *([ev.FabricChanged(speeds)] if speeds is not None else [])], 0)
    return state


def slow(*parts: SlowPart) -> FabricSpeeds:
    return FabricSpeeds(FABRIC_NAME, slow=parts)


def gang(count: int) -> list[ev.Event]:
    pods = [Pod(f"p{i}", "ns", f"p{i}", Request(((GPU, 8), (PODS, 1))), gang="g") for i in range(count)]
    return [ev.GangChanged(Gang("g", "ns", "g", min_count=count)), *map(ev.PodChanged, pods)]


def places(state: State, count: int, now_ms: int = 1) -> list[str]:
    return sorted(one.node for one in step(state, gang(count), now_ms) if isinstance(one, Bind))


def test_a_gang_leaves_a_slow_node_out_even_for_another_rack() -> None:
    racks = {"r0": 2, "r1": 2}
    assert places(state_of(racks, slow(SlowPart("r0-1", LATER))), 2) == ["r1-0", "r1-1"]
    assert places(state_of(racks, None), 2) == ["r0-0", "r0-1"]


def test_it_is_used_where_there_is_no_other_room_and_again_after_its_time() -> None:
    marked = slow(SlowPart("r0-1", LATER))
    assert places(state_of({"r0": 2, "r1": 1}, marked), 3) == ["r0-0", "r0-1", "r1-0"]
    assert places(state_of({"r0": 2, "r1": 2}, marked), 2, LATER) == ["r0-0", "r0-1"]


def test_a_lone_pod_takes_it_as_any_other_node() -> None:
    marked = state_of({"r0": 1, "r1": 1}, slow(SlowPart("r0-0", LATER)))
    pod = Pod("p", "ns", "p", Request(((GPU, 8), (PODS, 1))))
    assert [one.node for one in step(marked, [ev.PodChanged(pod)], 1) if isinstance(one, Bind)] == ["r0-0"]


def test_a_rack_with_slow_links_is_left_out_but_holds_a_gang_that_fits_nowhere_else() -> None:
    marked = slow(SlowPart("b/r0", LATER, RACK))
    assert places(state_of({"r0": 2, "r1": 2}, marked), 2) == ["r1-0", "r1-1"]
    assert places(state_of({"r0": 2, "r1": 1}, marked), 2) == ["r0-0", "r0-1"]


@pytest.mark.parametrize("part", [SlowPart("gone", LATER), SlowPart("b/r9", LATER, RACK), SlowPart("r0", LATER, "row")])
def test_what_is_not_there_is_not_slow(part: SlowPart) -> None:
    assert places(state_of({"r0": 2, "r1": 2}, slow(part)), 2) == ["r0-0", "r0-1"]


def test_what_is_slow_is_found_again_only_after_a_change_of_nodes_of_the_fabric_or_at_a_time() -> None:
    state = state_of({"r0": 2, "r1": 2}, slow(SlowPart("r0-1", LATER), SlowPart("b/r1", 2 * LATER, RACK)))
    speeds = state.cluster.link_speeds

    def answer(now_ms: int) -> list[list[int]]:
        return [found.tolist() for found in speeds.without_slow(now_ms)]

    assert answer(1) == [[0], [0, 2, 3]] and speeds.without_slow(1) is speeds.without_slow(LATER - 1)
    assert answer(LATER) == [[0, 1]] and speeds.without_slow(LATER) is speeds.without_slow(2 * LATER - 1)
    assert answer(2 * LATER) == answer(3 * LATER) == []
    apply_events(state, [ev.FabricChanged(slow(SlowPart("new", LATER)))], 3)
    assert answer(3) == []
    apply_events(state, [ev.NodeChanged(Node("new", ((GPU, 8), (PODS, 99))))], 4)
    assert answer(4) == [[0, 1, 2, 3]]


def test_a_job_crosses_its_own_level_and_all_below() -> None:
    levels = LevelSpeed("", 10_000), LevelSpeed(BLOCK, 30_000), LevelSpeed(RACK, 20_000, 9_000)
    speeds = state_of({"r0": 1}, FabricSpeeds(FABRIC_NAME, levels)).cluster.link_speeds
    assert [speeds.most_mbps(level) for level in (RACK, BLOCK, "", "row")] == [20_000, 20_000, 10_000, 0]
    assert [speeds.hop_ns(level) for level in (RACK, BLOCK)] == [9_000, None]


def test_only_the_fabric_of_the_cluster_counts_until_it_is_gone() -> None:
    state = state_of({"r0": 1}, FabricSpeeds("other", (LevelSpeed("", 1),)))
    assert state.cluster.link_speeds.most_mbps("") == 0
    own = FabricSpeeds(FABRIC_NAME, (LevelSpeed("", 2),))
    apply_events(state, [ev.FabricChanged(own), ev.FabricRemoved("other")], 1)
    assert state.cluster.link_speeds.most_mbps("") == 2
    assert restore(state.policy, take(state)).cluster.link_speeds.record == own
    apply_events(state, [ev.FabricRemoved(FABRIC_NAME)], 2)
    assert state.cluster.link_speeds.record is None


def test_a_mark_does_not_use_up_the_limit_of_the_search() -> None:
    """By count each rack holds both pods without its slow node, but not at once: the search tries that in vain."""
    racks = {"r0": 2, "r1": 2}
    speeds = slow(SlowPart("r0-1", LATER), SlowPart("r1-1", LATER))
    state = State(Policy(fabric=(RACK,), search_limit=1))
    nodes = [
        ev.NodeChanged(Node(f"{rack}-{i}", ((GPU, 8), (PODS, 99)), ((RACK, rack),)))
        for rack, count in racks.items()
        for i in range(count)
    ]
    apply_events(state, [*nodes, ev.FabricChanged(speeds)], 0)
    pods = [Pod(f"p{i}", "ns", f"p{i}", Request(((GPU, gpus), (PODS, 1))), gang="g") for i, gpus in enumerate((8, 4))]
    required = ev.GangChanged(Gang("g", "ns", "g", min_count=2, required=(RACK,)))
    found = step(state, [required, *map(ev.PodChanged, pods)], 1)
    assert sorted(one.node for one in found if isinstance(one, Bind)) == ["r0-0", "r0-1"]
