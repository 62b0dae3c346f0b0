# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the GPUs of a cluster, told by what its API server says; pure.

Rules
- A finding rests on a label, a number or a condition that is quoted in it. What was not read (None) is not judged.
- A node has GPUs if a label of Node Feature Discovery or of the GPU Operator says so, or if it offers some. Without
  these nobody knows.
- What there is (`present`) is told without a judgement.
"""

from __future__ import annotations

from msgspec import Struct

from dovetail.advice.doctor import fabric, mig, nodes, numa, queues, schedulers
from dovetail.advice.doctor.records import DRIVERS, Check, ClusterFacts, DoctorFinding

CHECKS = (
    *nodes.CHECKS,
    *mig.CHECKS,
    *numa.CHECKS,
    *fabric.CHECKS,
    *schedulers.CHECKS,
    *queues.CHECKS,
)


class Present(Struct, frozen=True):
    """`kind` is scheduler, device plugin or DRA driver; `nodes` are those on which a plugin or driver is, `pods` those
    of a scheduler."""

    kind: str
    name: str
    nodes: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()


def examine(seen: ClusterFacts) -> tuple[DoctorFinding, ...]:
    """What is wrong, in the order of CHECKS."""
    return tuple(
        DoctorFinding(check.id, check.level, thing, check.wrong, evidence, fix)
        for check in CHECKS
        if not left_out(check, seen)
        for thing, evidence, fix in check.look(seen)
    )


def left_out(check: Check, seen: ClusterFacts) -> bool:
    """Whether something that the check needs was not read."""
    return any(getattr(seen, name) is None for name in check.needs)


def present(seen: ClusterFacts) -> tuple[Present, ...]:
    """Who schedules GPU pods or offers GPUs, as far as it was read."""
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
