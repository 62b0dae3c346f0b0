# SPDX-License-Identifier: Apache-2.0
"""The health of nodes: the worst GPU counts, and a node that asks for quarantine is in force or beyond the budget."""

from __future__ import annotations

from datetime import UTC, datetime

from dovetail.core import events as ev
from dovetail.core.cycle import apply_events
from dovetail.core.model import CPU, GPU, PODS, Node
from dovetail.core.policy import Policy
from dovetail.core.state import State
from dovetail.kube.objects.base import ObjectMeta
from dovetail.kube.objects.topology import (
    GpuHealth,
    GPUNode,
    GPUNodeSpec,
    GPUNodeStatus,
    GpuStatus,
    NodeMaintenance,
    NodeQuarantine,
)
from dovetail.views.nodes import node_healths

SINCE = datetime(2026, 11, 22, tzinfo=UTC)
SINCE_MS = int(SINCE.timestamp() * 1000)
OK = GpuHealth("healthy")


def quarantined(code: str, hour: int = 0) -> GpuHealth:
    return GpuHealth("quarantined", code, f"the reason of {code}", SINCE.replace(hour=hour), f"the remedy of {code}")


def gpu_node(*healths: GpuHealth | None, asks: NodeQuarantine | None = None) -> GPUNode:
    gpus = tuple(GpuStatus(i, f"GPU-{i}", "H100", health=health) for i, health in enumerate(healths))
    return GPUNode(ObjectMeta(name="x"), status=GPUNodeStatus(gpus=gpus, quarantine=asks))


def state_of(*names: str, asks: dict[str, int] | None = None) -> State:
    state = State(Policy())
    nodes = [Node(name, ((GPU, 8), (PODS, 9)), quarantine_ms=(asks or {}).get(name, 0)) for name in names]
    apply_events(state, [*map(ev.NodeChanged, nodes), ev.NodeChanged(Node("cpu", ((CPU, 1000), (PODS, 9))))], 1)
    return state


def test_the_worst_gpu_counts_and_of_equal_ones_the_first() -> None:
    draining = GpuHealth("draining", "xid-95", "uncontained", SINCE, "reset it")
    reported = {
        "b": gpu_node(OK, quarantined("xid-48", 3), draining, quarantined("xid-79", 2)),
        "a": gpu_node(OK, GpuHealth("degraded", "throttling", "it is slow", SINCE, "nothing")),
        "d": gpu_node(OK, OK),
    }
    answer = node_healths(state_of("b", "a", "c", "d"), reported.get)
    assert [(one.node, one.state) for one in answer] == [
        ("a", "degraded"), ("b", "quarantined"), ("c", "unknown"), ("d", "healthy"),
    ]  # fmt: skip
    degraded, worst, unknown, healthy = answer
    assert worst.by_state == {"healthy": 1, "degraded": 0, "draining": 1, "quarantined": 2}
    assert worst.why == "GPU 3: xid-79: the reason of xid-79; and 2 more" and worst.next == "the remedy of xid-79"
    assert worst.since_ms == SINCE_MS + 2 * 3_600_000
    assert degraded.why == "GPU 1: throttling: it is slow" and degraded.since_ms == SINCE_MS
    assert (unknown.gpus, unknown.by_state) == (8, {}) and "no agent" in unknown.why
    assert (healthy.why, healthy.since_ms, healthy.quarantine) == ("", 0, "")


def test_filters() -> None:
    reported = {"gpu-1": gpu_node(OK), "gpu-2": gpu_node(quarantined("xid-48")), "big-1": gpu_node(OK)}
    state = state_of(*reported)
    assert [one.node for one in node_healths(state, reported.get, "gpu-?")] == ["gpu-1", "gpu-2"]
    assert [one.node for one in node_healths(state, reported.get, unhealthy=True)] == ["gpu-2"]
    assert node_healths(state, reported.get, "gpu-1", unhealthy=True) == ()


def test_an_agent_that_reports_no_states() -> None:
    gpus = (GpuStatus(0, "GPU-0"), GpuStatus(1, "GPU-1", healthy=False))
    reported = {"a": GPUNode(ObjectMeta(name="a"), status=GPUNodeStatus(gpus=gpus))}
    (found,) = node_healths(state_of("a"), reported.get)
    assert (found.state, found.by_state["healthy"]) == ("quarantined", 1)


def test_quarantine_in_force_and_beyond_the_budget() -> None:
    early, late = NodeQuarantine("GPU-0: off the bus", SINCE), NodeQuarantine("GPU-0: no power", SINCE)
    reported = {"a": gpu_node(quarantined("xid-54"), asks=late), "b": gpu_node(quarantined("xid-79"), asks=early)}
    answer = node_healths(state_of("a", "b", asks={"a": SINCE_MS + 1, "b": SINCE_MS}), reported.get)
    assert [(one.node, one.quarantine, one.why) for one in answer] == [
        ("a", "beyond the budget", "GPU-0: no power"),
        ("b", "in force", "GPU-0: off the bus"),
    ]


def test_a_node_in_maintenance_is_shown_with_its_author_and_reason() -> None:
    def asked(**fields: str) -> GPUNode:
        return GPUNode(ObjectMeta(name="x"), GPUNodeSpec(maintenance=NodeMaintenance(**fields)))

    reported = {"a": asked(by="user/ada", reason="new power supply"), "b": asked(by="rollout/gpus"), "c": gpu_node(OK)}
    answer = node_healths(state_of(*reported), reported.get)
    assert [one.maintenance for one in answer] == ["user/ada: new power supply", "rollout/gpus", ""]
