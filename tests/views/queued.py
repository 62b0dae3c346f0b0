# SPDX-License-Identifier: Apache-2.0
"""Clusters made by hand with queues, for the views of them. The time is NOW."""

from __future__ import annotations

from typing import Any

from dovetail.core import events as ev
from dovetail.core.cycle import apply_events
from dovetail.core.model import CPU, GPU, MEMORY, PODS, Gang, Namespace, Node, Pod, Request, Work
from dovetail.core.policy import Policy, unhurried
from dovetail.core.queues.types import Budget, Queue, Usage
from dovetail.core.state import State

NOW, MINUTE, HOUR, DAY = 20_000 * 86_400_000, 60_000, 3_600_000, 86_400_000
AMOUNTS = ((CPU, 64_000), (MEMORY, 2**39), (GPU, 8), (PODS, 110))
H100 = "NVIDIA-H100-80GB-HBM3"
MODEL = "nvidia.com/gpu.product"


def state_of(*reported: Node | Pod | Gang | Queue | Namespace | Budget) -> State:
    kinds: dict[type, Any] = {
        Node: ev.NodeChanged, Pod: ev.PodChanged, Gang: ev.GangChanged, Queue: ev.QueueChanged,
        Namespace: ev.NamespaceChanged, Budget: ev.BudgetChanged,
    }  # fmt: skip
    state = State(unhurried(Policy()))
    apply_events(state, [kinds[type(one)](one) for one in reported], NOW)
    state.advance(NOW)
    return state


def node(name: str, **more: Any) -> Node:
    return Node(name, AMOUNTS, ((MODEL, H100),), **more)


def pod(
    name: str, gpus: int, on: str = "", runs_ms: int = 0, since_ms: int = 0, waits_ms: int = HOUR, **more: Any
) -> Pod:
    """On a node since so long ago, or waiting for so long."""
    request = Request(((GPU, gpus),), tolerations=more.pop("tolerations", ()))
    work = Work(max_runtime_ms=runs_ms, preemptible=more.pop("preemptible", None))
    namespace = more.pop("namespace", "ns")
    return Pod(
        f"{namespace}/{name}", namespace, name, request, node=on, bound_ms=NOW - since_ms if on else 0,
        created_ms=NOW - since_ms - waits_ms, work=work, **more,
    )  # fmt: skip


def queue(name: str, guarantee: int = 0, limit: int = 0, **more: Any) -> Queue:
    """In whole GPUs; 0: none."""
    gpus = {
        field: (("gpu", 1000 * amount),) for field, amount in (("guarantee", guarantee), ("limit", limit)) if amount
    }
    return Queue(name, **{"created_ms": 1} | gpus | more)


def used(gpu_hours: float, **more: Any) -> Usage:
    """Decayed, until now."""
    return Usage(NOW, used=round(gpu_hours * 1000 * HOUR), **more)
