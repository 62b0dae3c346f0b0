# SPDX-License-Identifier: Apache-2.0
"""The state of a device follows from its faults, its findings, and the pods that hold it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dovetail.agent.health.health import Finding, Unhealthy
from dovetail.agent.health.states import DeviceState, health_of, node_quarantine
from dovetail.agent.health.xids import Action

RESET = Unhealthy("GPU-0", "xid-95", "uncontained", 20, Action.QUARANTINE_GPU, "reset it")
REBOOT = Unhealthy("GPU-0", "xid-79", "off the bus", 30, Action.QUARANTINE_NODE, "reboot")
PART = Unhealthy("MIG-0", "xid-94", "contained", 10, Action.RESTART_APPLICATION, "restart it")
HOT = Finding("GPU-0", "throttling", Action.NOTE, "slow for 10 % of 15 min", 5)


def test_the_states() -> None:
    assert health_of("GPU-0", ["MIG-0"], [], [], []).state is DeviceState.HEALTHY
    assert health_of("GPU-0", ["MIG-0"], [], [HOT], ["GPU-0"]).state is DeviceState.DEGRADED
    assert health_of("GPU-0", ["MIG-0"], [RESET], [HOT], []).state is DeviceState.QUARANTINED
    assert health_of("GPU-0", ["MIG-0"], [RESET], [], ["MIG-0"]).state is DeviceState.DRAINING
    assert health_of("GPU-1", (), [RESET], [HOT], ["GPU-1"]).state is DeviceState.HEALTHY


def test_the_most_severe_fault_is_named() -> None:
    found = health_of("GPU-0", (), [RESET, REBOOT], [HOT], [])
    assert (found.code, found.reason, found.since_ms, found.next) == ("xid-79", "off the bus", 30, "reboot")


def test_a_gpu_with_an_unhealthy_instance_is_degraded() -> None:
    found = health_of("GPU-0", ["MIG-0"], [PART], [], ["MIG-0"])
    assert (found.state, found.reason) == (DeviceState.DEGRADED, "MIG-0: contained")
    assert health_of("MIG-0", (), [PART], [], ["MIG-0"]).state is DeviceState.DRAINING


FAULTS = st.lists(
    st.builds(
        Unhealthy,
        st.sampled_from(["GPU-0", "GPU-1", "MIG-0"]),
        st.sampled_from(["xid-94", "xid-95"]),
        st.just("m"),
        st.integers(0, 9),
        st.sampled_from([*Action][1:]),
    ),
    max_size=5,
)


@given(FAULTS, st.sets(st.sampled_from(["GPU-0", "GPU-1", "MIG-0"])))
def test_only_devices_without_a_fault_of_their_own_are_offered(faults: list[Unhealthy], held: set[str]) -> None:
    for uuid, instances in (("GPU-0", ["MIG-0"]), ("GPU-1", [])):
        found = health_of(uuid, instances, faults, [HOT], held)
        own = [one for one in faults if one.uuid == uuid]
        assert found.closed == bool(own)
        assert (found.state is DeviceState.DRAINING) == bool(own and held & {uuid, *instances})
        if own:
            assert found.since_ms in {one.since_ms for one in own}
    asked = [one for one in faults if one.action is Action.QUARANTINE_NODE]
    found_node = node_quarantine(faults)
    assert (found_node is not None) == bool(asked)
    if found_node is not None:
        assert found_node.since_ms == min(one.since_ms for one in asked)
