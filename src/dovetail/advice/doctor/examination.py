# SPDX-License-Identifier: Apache-2.0
"""Findings about the GPUs of a cluster, from the objects of its API server; pure.

Rules
- Each finding quotes the label, number or condition that proves it. Lists that were not read (None) are not checked.
- A node has GPUs if a label of Node Feature Discovery or of the GPU Operator states so, or if it has allocatable GPUs.
- `present` lists components without a judgement.
"""

from __future__ import annotations

from msgspec import Struct

from dovetail.advice.doctor import fabric, gpu_direct, mig, nodes, numa, processes, queues, schedulers
from dovetail.advice.doctor.records import DRIVERS, Check, ClusterFacts, DoctorFinding

CHECKS = (
    *nodes.CHECKS,
    *mig.CHECKS,
    *numa.CHECKS,
    *fabric.CHECKS,
    *gpu_direct.CHECKS,
    *processes.CHECKS,
    *schedulers.CHECKS,
    *queues.CHECKS,
)


class Present(Struct, frozen=True):
    """A component in the cluster. `kind` is scheduler, device plugin or DRA driver; `nodes` are the nodes of a plugin
    or driver, `pods` the pods of a scheduler."""

    kind: str
    name: str
    nodes: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()


def examine(seen: ClusterFacts) -> tuple[DoctorFinding, ...]:
    """The findings, in the order of CHECKS."""
    return tuple(
        DoctorFinding(check.id, check.level, thing, check.wrong, evidence, fix)
        for check in CHECKS
        if not left_out(check, seen)
        for thing, evidence, fix in check.look(seen)
    )


def left_out(check: Check, seen: ClusterFacts) -> bool:
    """Whether a list that the check needs was not read."""
    return any(getattr(seen, name) is None for name in check.needs)


def present(seen: ClusterFacts) -> tuple[Present, ...]:
    """The components that schedule GPU pods or offer GPUs, as far as the lists were read."""
    plugins: dict[str, list[str]] = {}
    schedulers: dict[str, list[str]] = {}
    if seen.pods is not None:
        for node in sorted(seen.pods.parts):
            for part in seen.parts(node, "plugin"):
                plugins.setdefault(part.name, []).append(node)
        for one in seen.pods.schedulers:
            schedulers.setdefault(one.name, []).append(one.pod)
    claims = ((name, nodes) for name, nodes in sorted((seen.drivers or {}).items()) if name in DRIVERS)
    return (
        *(Present("scheduler", name, pods=tuple(sorted(pods))) for name, pods in sorted(schedulers.items())),
        *(Present("device plugin", name, tuple(nodes)) for name, nodes in sorted(plugins.items())),
        *(Present("DRA driver", name, tuple(sorted(nodes))) for name, nodes in claims),
    )
