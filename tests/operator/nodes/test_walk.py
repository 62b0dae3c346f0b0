# SPDX-License-Identifier: Apache-2.0
"""The walk: for each blocker the facts that show it, the order of the steps, and what is kept from one write to the
next."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.kube.objects.stack import NodePool
from dovetail.kube.objects.topology import Evidence, Validation
from dovetail.operator.nodes.blockers import BLOCKERS, READY, STEPS
from dovetail.operator.nodes.facts import AgentReport, NodeComponent, ValidationProgress, WalkFacts, validation_key
from dovetail.operator.nodes.walk import WITHOUT, WalkVerdict, readiness, validates, walk
from tests.operator.nodes.facts_made import AGENT_POD, DONE, NOW, PASSED, POOL, REPORT, spec, trouble

Change = Callable[[WalkFacts], WalkFacts]


def facts(**fields: Any) -> Change:
    return lambda one: replace(one, **fields)


def agent(**fields: Any) -> Change:
    return lambda one: replace(one, agent=replace(one.agent, **fields))


def agent_pod(**fields: Any) -> Change:
    """The pod of an agent that does not run."""
    silent = replace(REPORT, fresh=False)
    return lambda one: replace(one, agent=silent, agent_pod=replace(AGENT_POD, ready=False, **fields))


def spec_of(**fields: Any) -> Change:
    return lambda one: replace(one, spec=spec(**fields))


def pool(**fields: Any) -> Change:
    return lambda one: replace(one, pool=replace(POOL, **fields))


def both(*changes: Change) -> Change:
    def all_of(one: WalkFacts) -> WalkFacts:
        for change in changes:
            one = change(one)
        return one

    return all_of


DRIVER_POD = NodeComponent("dovetail-driver", "dovetail-agent")
TOOLKIT_POD = NodeComponent("dovetail-toolkit", "dovetail-agent")
CONTAINER = both(spec_of(driver={"mode": "Container", "image": "driver@sha256:0"}), facts(driver=DRIVER_POD))
TOOLKIT = both(spec_of(runtime={"configure": "toolkit@sha256:0"}), facts(toolkit=TOOLKIT_POD))
ENDED = both(agent(plugin=("False", "AgentEnds", "")), facts(agent_pod=replace(AGENT_POD, ready=False)))
LAYOUT = pool(mig=replace(POOL.mig, layout="all-1g.5gb"))
TRIAL = {"GpusBusy", "ValidationQueued", "ValidationPending", "ValidationRunning", "DevicesDiffer", "NoScheduler"}
CASES: list[tuple[str, str, Change]] = [
    ("driver", "NoGpuFound", facts(gpu_signs=())),
    ("driver", "RebootLoop", facts(reboots=True, kubelet=("Unknown", "stopped"))),
    ("driver", "NodeNotReady", facts(kubelet=("False", "PLEG is not healthy"))),
    ("driver", "DaemonSetMissing", CONTAINER),
    ("driver", "PodMissing", both(CONTAINER, facts(driver=replace(DRIVER_POD, daemon_set=True)))),
    ("driver", "PodNotReady", both(CONTAINER, facts(driver=replace(DRIVER_POD, trouble=trouble("PodNotReady"))))),
    ("driver", "DriverMissing", agent(driver=("False", "NvmlFailed", "libnvidia-ml.so.1 is not found: install it"))),
    ("driver", "DriverMissing", agent_pod(trouble=trouble("DriverMissing", "driver"))),
    ("driver", "DriverMismatch", agent(driver=("False", "NvmlFailed", "Driver/library version mismatch"))),
    ("driver", "DriverNotAnswering", agent(driver=("False", "NvmlFailed", "Unknown Error"))),
    ("driver", "DriverTooOld", spec_of(driver={"minimumVersion": "550.90"})),
    ("runtime", "DaemonSetMissing", TOOLKIT),
    ("runtime", "ContainerFails", both(TOOLKIT, facts(toolkit=NodeComponent(trouble=trouble("ContainerFails"))))),
    ("runtime", "RuntimeClassMissing", both(agent_pod(), facts(runtime_class=False))),
    ("runtime", "RuntimeClassMissing", agent_pod(refused='pod rejected: RuntimeClass "nvidia" not found')),
    ("runtime", "RuntimeNotConfigured", agent_pod(trouble=trouble("RuntimeNotConfigured", "runtime"))),
    ("agent", "NoPool", both(facts(pool=None), agent(fresh=False))),
    ("agent", "DaemonSetMissing", agent_pod(daemon_set=False)),
    ("agent", "PodRefused", agent_pod(refused="exceeded quota: pods")),
    ("agent", "PodMissing", agent_pod()),
    ("agent", "PodMissing", ENDED),
    ("agent", "ContainerFails", agent_pod(trouble=trouble("ContainerFails"))),
    ("agent", "ImagePullFailed", agent_pod(trouble=trouble("ImagePullFailed"))),
    ("agent", "AgentSilent", agent(fresh=False)),
    ("agent", "AgentSilent", facts(agent=AgentReport())),
    ("devices", "NodeQuarantined", agent(quarantine="GPU 0: off the bus")),
    ("devices", "GpusUnhealthy", agent(healthy=0)),
    ("devices", "LayoutRefused", both(LAYOUT, agent(mig=("refused", "no such profile")))),
    ("devices", "LayoutPending", both(LAYOUT, agent(mig=("pending", "pods")))),
    ("devices", "OtherDevicePlugin", agent(plugin=("Unknown", "OtherPlugin", "nvidia-device-plugin"))),
    ("devices", "PluginNotRegistered", agent(plugin=("False", "NotRegistered", "refused"))),
    ("devices", "NoDevices", facts(allocatable={"nvidia.com/gpu": 0})),
    ("devices", "NoDevices", both(pool(allocation="DRA"), facts(slices=False))),
    ("devices", "NoDevices", both(pool(allocation="None"), facts(allocatable={}))),
    ("labels", "LabelsMissing", facts(labelled=False)),
    ("validated", "NodeInMaintenance", facts(maintenance=True, validation=ValidationProgress())),
    ("validated", "NodeCordoned", facts(cordoned=True, validation=ValidationProgress())),
    ("validated", "ValidationQueued", facts(validation=ValidationProgress())),
    *(("validated", reason, facts(validation=ValidationProgress(reason, "why"))) for reason in sorted(TRIAL)),
]  # fmt: skip


@pytest.mark.parametrize(("step", "reason", "change"), CASES, ids=lambda one: one if isinstance(one, str) else "")
def test_each_blocker(step: str, reason: str, change: Change) -> None:
    verdict = walk(change(DONE))
    assert (verdict.step, verdict.reason) == (step, reason)
    assert step in BLOCKERS[reason].steps and verdict.message and verdict.action
    evidence = verdict.evidence
    assert (evidence is not None and evidence.kind and evidence.name) or step == "validated"


def test_every_blocker_of_a_step_has_a_case() -> None:
    """But those that only the course of a pod shows, which its tests have."""
    of_pods = {reason for reason, one in BLOCKERS.items() if len(one.steps) > 2}
    of_validation = {reason for reason, one in BLOCKERS.items() if "validated" in one.steps}
    assert {reason for _, reason, _ in CASES} >= BLOCKERS.keys() - of_pods - of_validation


@pytest.mark.parametrize(
    "change",
    [
        facts(),
        facts(cordoned=True),
        facts(maintenance=True),
        both(spec_of(validation={"enabled": False}), facts(validation=ValidationProgress())),
        both(spec_of(agent={"enabled": False}), facts(pool=None, labelled=False, agent=AgentReport())),
        # The agent runs outside of a pod.
        facts(agent_pod=NodeComponent()),
        facts(runtime_class=False),
        pool(labels=False),
        both(pool(allocation="None"), agent(plugin=("", "", ""))),
        both(pool(allocation="DRA"), facts(allocatable={}, slices=True)),
        # A layout that the scheduler changes for a pod.
        agent(mig=("applying", "")),
        spec_of(driver={"minimumVersion": "550.54"}),
    ],
)
def test_a_node_is_ready(change: Change) -> None:
    assert walk(change(DONE)) == WalkVerdict(READY)


_BOOL = st.booleans()


@settings(max_examples=300)
@given(st.tuples(*[_BOOL] * 7))
def test_the_step_is_that_of_the_first_test_that_fails(tests: tuple[bool, ...]) -> None:
    kubelet, driver, runtime, pod, plugin, labelled, passed = tests
    found = DONE
    if not kubelet:
        found = facts(kubelet=("Unknown", ""))(found)
    if not driver:
        found = agent(driver=("False", "NvmlFailed", "Unknown Error"))(found)
    if not runtime:
        found = both(TOOLKIT, facts(toolkit=NodeComponent(trouble=trouble("PodNotReady"))))(found)
    if not pod:
        found = facts(agent_pod=replace(AGENT_POD, ready=False, trouble=trouble("ContainerFails")))(found)
    if not plugin:
        found = agent(plugin=("False", "NotRegistered", ""))(found)
    if not labelled:
        found = facts(labelled=False)(found)
    if not passed:
        found = facts(validation=ValidationProgress())(found)
    done = (kubelet and driver, runtime, pod, plugin, labelled, passed)
    expected = next((step for step, one in zip(STEPS, done, strict=True) if not one), READY)
    assert walk(found).step == expected
    assert validates(found) == all(done[:-1])


def test_since_is_kept_while_the_reason_is_the_same() -> None:
    broken = agent_pod(trouble=trouble("ContainerFails"))(DONE)
    first = readiness(broken, walk(broken), NOW)
    later = NOW + timedelta(hours=1)
    assert (first.since, first.pool, first.step) == (NOW, "default", "agent")
    again = readiness(replace(broken, before=first), walk(broken), later)
    assert again == first
    # Another reason of the same step.
    other = agent_pod()(DONE)
    assert readiness(replace(other, before=first), walk(other), later).since == later


def test_a_line_that_changes_is_not_written_while_nothing_else_does() -> None:
    broken = agent_pod(trouble=trouble("ContainerFails"))(DONE)
    first = readiness(broken, walk(broken), NOW)
    new_line = replace(trouble("ContainerFails"), evidence=Evidence("Pod", "dovetail-agent", "agent-x", "agent", "new"))
    again = replace(agent_pod(trouble=new_line)(DONE), before=first)
    assert readiness(again, walk(again), NOW + timedelta(minutes=1)) == first
    # Another pod is news.
    other = replace(new_line, evidence=Evidence("Pod", "dovetail-agent", "agent-y", "agent", "new"))
    moved = replace(agent_pod(trouble=other)(DONE), before=first)
    evidence = readiness(moved, walk(moved), NOW).evidence
    assert evidence is not None and (evidence.name, evidence.line) == ("agent-y", "new")


def test_the_last_validation_stays_while_the_node_is_blocked() -> None:
    ready = readiness(DONE, walk(DONE), NOW)
    assert (ready.step, ready.reason, ready.message, ready.action, ready.validation) == ("ready", "", "", "", PASSED)
    broken = replace(facts(labelled=False, validation=ValidationProgress())(DONE), before=ready)
    assert readiness(broken, walk(broken), NOW).validation == PASSED


def test_a_node_that_is_ready_without_a_validation_remembers_that() -> None:
    without = both(spec_of(validation={"enabled": False}), facts(validation=ValidationProgress()))(DONE)
    found = readiness(without, walk(without), NOW)
    assert found.validation == Validation(WITHOUT, NOW)


def test_the_key_changes_with_driver_agent_and_configured_layout_alone() -> None:
    key = validation_key(DONE)
    assert key.startswith("driver=550.54.14,agent=0.1.0,layout=")
    for change in (
        agent(driver_version="560.1"),
        agent(version="0.2.0"),
        pool(allocation="DRA"),
        LAYOUT,
    ):
        assert validation_key(change(DONE)) != key
    for change in (
        agent(healthy=1),
        agent(uuids={}),
        facts(labelled=False),
        pool(name="other"),
        agent(mig=("applied", "")),
    ):
        assert validation_key(change(DONE)) == key
    assert len(validation_key(agent(driver_version="5" * 300)(DONE))) <= 128
    assert NodePool() == POOL
