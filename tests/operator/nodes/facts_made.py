# SPDX-License-Identifier: Apache-2.0
"""Facts of a node whose steps are all done, and changes of them that undo one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from dovetail.kube.objects.stack import NodePool, StackSpec
from dovetail.kube.objects.topology import Evidence, Validation
from dovetail.operator.nodes.evidence import Trouble
from dovetail.operator.nodes.facts import AgentReport, NodeComponent, ValidationProgress, WalkFacts
from dovetail.operator.watched.pods import WatchedPod

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
POOL = NodePool()
REPORT = AgentReport(
    reported=True,
    fresh=True,
    driver=("True", "NvmlAnswers", ""),
    plugin=("True", "Registered", ""),
    driver_version="550.54.14",
    version="0.1.0",
    uuids={0: "GPU-a", 1: "GPU-b"},
    healthy=2,
)
AGENT_POD = NodeComponent("dovetail-agent", "dovetail-agent", daemon_set=True, ready=True, started_ms=1_000)
PASSED = Validation("driver=550.54.14", NOW, "0", "0")
DONE = WalkFacts(
    "gpu-1",
    pool=POOL,
    gpu_signs=("labels",),
    allocatable={"nvidia.com/gpu": 2},
    labelled=True,
    runtime_class=True,
    agent_pod=AGENT_POD,
    agent=REPORT,
    validation=ValidationProgress(passed=PASSED),
)


def spec(**fields: Any) -> StackSpec:
    """A spec as in YAML."""
    return msgspec.convert(fields, StackSpec)


def pod(name: str = "agent-x", phase: str = "Running", **fields: Any) -> WatchedPod:
    """A pod of gpu-1 as in JSON; `status` and `spec` are merged with what it has anyway."""
    document = {
        "metadata": {"name": name, "namespace": "dovetail-agent", "uid": f"uid-{name}", **fields.pop("metadata", {})},
        "spec": {"nodeName": "gpu-1", **fields.pop("spec", {})},
        "status": {"phase": phase, **fields},
    }
    return msgspec.convert(document, WatchedPod)


def trouble(reason: str, step: str = "") -> Trouble:
    evidence = Evidence("Pod", "dovetail-agent", "agent-x", "agent", "a line")
    return Trouble(reason, f"message of {reason}", evidence, step)
