# SPDX-License-Identifier: Apache-2.0
"""The walk of a GPU node to validated: from facts to the first step that is not done, and what blocks it. Pure.

Rules
- The steps are driver, runtime, agent, devices, labels, validated, in this order; the first that is not done counts,
  and within it the first blocker, in the order of the functions below.
- A node whose kubelet is not ready, or that reboots again and again, is at its first step: nothing about it is known.
- A pod of the agent that cannot start because of the driver or the runtime blocks that step, not its own.
- An agent that reports is one that runs, also outside of a pod; it is asked for a pod only while none reports.
- `since` is kept while step and reason are the same, and the evidence while the message is the same, too: a line of a
  log that changes at each restart is no news.
"""

from __future__ import annotations

import re
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from dovetail.kube.api.texts import clipped
from dovetail.kube.objects.stack import DEVICE_PLUGIN, DRA, DRIVER_CONTAINER
from dovetail.kube.objects.topology import Evidence, NodeReadiness, Validation
from dovetail.operator.nodes.blockers import (
    AGENT,
    BLOCKERS,
    DEVICES,
    DRIVER,
    LABELS,
    READY,
    RUNTIME,
    VALIDATED,
)
from dovetail.operator.nodes.evidence import LONGEST_TEXT, one_line, shown_by
from dovetail.operator.nodes.facts import NodeComponent, WalkFacts

WITHOUT = "none"
"""The key of a node that got ready while validations were off: it has no start-up taint from then on."""
_AGENT_ENDS = "AgentEnds"
_NUMBERS = re.compile(r"\d{1,9}")
_LAYOUT = {"pending": "LayoutPending", "applying": "LayoutPending", "refused": "LayoutRefused"}


class WalkVerdict(Struct, frozen=True):
    """The step that is not done, with a reason of the table; READY with "" if all are done."""

    step: str
    reason: str = ""
    message: str = ""
    evidence: Evidence | None = None

    @property
    def action(self) -> str:
        """What to do, and the role that has to do it."""
        return BLOCKERS[self.reason].action if self.reason else ""


def walk(facts: WalkFacts) -> WalkVerdict:
    """The first step that is not done."""
    for check in (_driver, _runtime, _agent, _devices, _labels, _validated):
        found = check(facts)
        if found is not None:
            return found
    return WalkVerdict(READY)


def readiness(facts: WalkFacts, verdict: WalkVerdict, now: datetime) -> NodeReadiness:
    """What to write of the verdict: with the time, the evidence and the validation of before where they still hold."""
    before = facts.before
    same = before is not None and (before.step, before.reason) == (verdict.step, verdict.reason)
    message = clipped(verdict.message, LONGEST_TEXT)
    evidence = verdict.evidence
    if same and before is not None and before.message == message:
        evidence = _kept(before.evidence, evidence)
    last = before.validation if before is not None else None
    if last is None and verdict.step == READY:
        last = Validation(WITHOUT, now.replace(microsecond=0))
    return NodeReadiness(
        pool=facts.pool.name if facts.pool is not None else "",
        step=verdict.step,
        reason=verdict.reason,
        message=message,
        action=verdict.action,
        since=before.since if same and before is not None and before.since is not None else now.replace(microsecond=0),
        evidence=evidence,
        validation=facts.validation.passed or last,
        boots=facts.boots,
    )


def _kept(before: Evidence | None, now: Evidence | None) -> Evidence | None:
    if before is None or now is None or not before.line:
        return now
    return before if replace(before, line="") == replace(now, line="") else now


def validates(facts: WalkFacts) -> bool:
    """Whether only the validation is left to do."""
    checks = (_driver, _runtime, _agent, _devices, _labels)
    return facts.spec.validation.enabled and all(check(facts) is None for check in checks)


def _driver(facts: WalkFacts) -> WalkVerdict | None:
    node = Evidence("Node", "", facts.name)
    if not facts.gpu_signs:
        return WalkVerdict(DRIVER, "NoGpuFound", "no label, GPUNode or resource shows a GPU on this node", node)
    if facts.reboots:
        return WalkVerdict(DRIVER, "RebootLoop", "the node has booted three times or more within an hour", node)
    status, message = facts.kubelet
    if status != "True":
        line = replace(node, line=one_line(message))
        return WalkVerdict(DRIVER, "NodeNotReady", f"the condition Ready of the node is {status}", line)
    if facts.spec.driver.mode == DRIVER_CONTAINER and (found := _component(DRIVER, "driver", facts.driver)):
        return found
    if (found := _earlier(facts, DRIVER)) is not None:
        return found
    status, _, message = facts.agent.driver
    if facts.agent.fresh and status == "False":
        step, reason = shown_by(message)
        reason = reason if step == DRIVER else "DriverNotAnswering"
        text = {
            "DriverMissing": "NVIDIA's driver is not installed, or not loaded",
            "DriverMismatch": "kernel module and library of the driver have different versions",
        }.get(reason, "NVIDIA's driver does not answer")
        return WalkVerdict(DRIVER, reason, text, _of_gpu_node(facts, message))
    least, has = facts.spec.driver.minimum_version, facts.agent.driver_version
    if least and has and _version(has) < _version(least):
        return WalkVerdict(
            DRIVER, "DriverTooOld", f"the driver is {has}, and {least} is required", _of_gpu_node(facts, "")
        )
    return None


def _runtime(facts: WalkFacts) -> WalkVerdict | None:
    if facts.spec.runtime.configure and (found := _component(RUNTIME, "toolkit", facts.toolkit)):
        return found
    if not facts.spec.agent.enabled or _agent_runs(facts):
        return None
    name = facts.spec.runtime.class_name
    if name and facts.runtime_class is False:
        evidence = Evidence("RuntimeClass", "", name)
        return WalkVerdict(RUNTIME, "RuntimeClassMissing", f"there is no RuntimeClass {name}", evidence)
    return _earlier(facts, RUNTIME)


def _agent(facts: WalkFacts) -> WalkVerdict | None:
    if not facts.spec.agent.enabled:
        return None
    if facts.pool is None and not facts.agent.fresh:
        node = Evidence("Node", "", facts.name)
        return WalkVerdict(AGENT, "NoPool", "no pool of the GPUStack selects this node", node)
    if _agent_runs(facts):
        return None
    found = _component(AGENT, "agent", facts.agent_pod)
    if found is not None:
        return found
    what = "has an old status" if facts.agent.reported else "has no status"
    return WalkVerdict(
        AGENT, "AgentSilent", f"the agent's pod is ready, and the GPUNode {what}", _of_gpu_node(facts, "")
    )


def _agent_runs(facts: WalkFacts) -> bool:
    """Whether the agent reports, and no pod of it is in trouble: with the operator that pod is the agent."""
    ends = facts.agent.plugin[1] == _AGENT_ENDS
    pod = facts.agent_pod
    return facts.agent.fresh and (pod.ready or (pod.trouble is None and not ends))


def _devices(facts: WalkFacts) -> WalkVerdict | None:
    agent, pool = facts.agent, facts.pool
    managed = facts.spec.agent.enabled and pool is not None
    if agent.quarantine:
        line = _of_gpu_node(facts, agent.quarantine)
        return WalkVerdict(DEVICES, "NodeQuarantined", "the node has to be rebooted or repaired", line)
    if agent.uuids and not agent.healthy:
        return WalkVerdict(DEVICES, "GpusUnhealthy", "no GPU of the node is healthy", _of_gpu_node(facts, ""))
    state, message = agent.mig
    if managed and pool is not None and pool.mig.layout and state in _LAYOUT:
        return WalkVerdict(DEVICES, _LAYOUT[state], f"the MIG layout is {state}", _of_gpu_node(facts, message))
    if managed and pool is not None and pool.allocation == DEVICE_PLUGIN:
        status, reason, message = agent.plugin
        if status == "Unknown":
            line = _of_gpu_node(facts, message)
            return WalkVerdict(DEVICES, "OtherDevicePlugin", "another device plugin offers the GPUs of the node", line)
        if status == "False":
            what = "the kubelet does not have the device plugin of the agent"
            return WalkVerdict(DEVICES, "PluginNotRegistered", what, _of_gpu_node(facts, f"{reason}: {message}"))
    offered = any(facts.allocatable.values())
    claimed = bool(facts.slices)
    if managed and pool is not None and pool.allocation in (DEVICE_PLUGIN, DRA):
        offered, claimed = (offered, False) if pool.allocation == DEVICE_PLUGIN else (False, claimed)
    if not offered and not claimed:
        where = "no ResourceSlice offers its GPUs" if _by_claim(facts) else "no GPU is in its allocatable resources"
        return WalkVerdict(DEVICES, "NoDevices", where, Evidence("Node", "", facts.name))
    return None


def _by_claim(facts: WalkFacts) -> bool:
    return facts.pool is not None and facts.pool.allocation == DRA


def _labels(facts: WalkFacts) -> WalkVerdict | None:
    if not facts.spec.agent.enabled or facts.pool is None or not facts.pool.labels or facts.labelled:
        return None
    message = "the node has no label nvidia.com/gpu.product"
    return WalkVerdict(LABELS, "LabelsMissing", message, Evidence("Node", "", facts.name))


def _validated(facts: WalkFacts) -> WalkVerdict | None:
    progress = facts.validation
    if not facts.spec.validation.enabled or progress.passed is not None:
        return None
    node = Evidence("Node", "", facts.name)
    if facts.maintenance:
        return WalkVerdict(VALIDATED, "NodeInMaintenance", "the node is being drained or upgraded", node)
    if facts.cordoned:
        return WalkVerdict(VALIDATED, "NodeCordoned", "the node is cordoned", node)
    if not progress.reason:
        return WalkVerdict(VALIDATED, "ValidationQueued", "the validation has not begun", node)
    return WalkVerdict(VALIDATED, progress.reason, progress.message, progress.evidence)


def _component(step: str, what: str, component: NodeComponent) -> WalkVerdict | None:
    if component.ready:
        return None
    if component.trouble is not None:
        return WalkVerdict(step, component.trouble.reason, component.trouble.message, component.trouble.evidence)
    evidence = Evidence("DaemonSet", component.namespace, component.name)
    if not component.daemon_set:
        return WalkVerdict(step, "DaemonSetMissing", f"there is no DaemonSet {component.name}", evidence)
    if component.refused:
        line = replace(evidence, line=one_line(component.refused))
        return WalkVerdict(step, "PodRefused", f"the API server refuses the pods of {component.name}", line)
    return WalkVerdict(step, "PodMissing", f"the node has no {what} pod", evidence)


def _earlier(facts: WalkFacts, step: str) -> WalkVerdict | None:
    """What the agent's pod shows about a step before its own."""
    pod = facts.agent_pod
    if pod.trouble is not None and pod.trouble.step == step:
        return WalkVerdict(step, pod.trouble.reason, pod.trouble.message, pod.trouble.evidence)
    if pod.trouble is None and pod.refused and not pod.ready:
        shown, reason = shown_by(pod.refused)
        if shown == step:
            evidence = Evidence("DaemonSet", pod.namespace, pod.name, "", one_line(pod.refused))
            return WalkVerdict(step, reason, f"the API server refuses the pods of {pod.name}", evidence)
    return None


def _of_gpu_node(facts: WalkFacts, line: str) -> Evidence:
    return Evidence("GPUNode", "", facts.name, "", one_line(line))


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in _NUMBERS.findall(text))
