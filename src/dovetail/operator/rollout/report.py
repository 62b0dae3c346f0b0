# SPDX-License-Identifier: Apache-2.0
"""How far a rollout is: for the status of the GPUStack, and as metrics."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from dovetail.kube.objects.stack import GPUStack, NodeCounts, RolloutStatus
from dovetail.operator import metrics
from dovetail.operator.rollout.record import RolloutPhase, StackRevision
from dovetail.operator.rollout.rollout import RolloutPass


def rollout_status(
    stack: GPUStack, found: RolloutPass, revision: str, good: StackRevision | None, total: int
) -> RolloutStatus:  # fmt: skip
    """For the status, after this pass over so many nodes; `good` is the revision to go back to."""
    record = found.record
    paused = stack.spec.upgrade.paused and record.phase in (RolloutPhase.CANARY, RolloutPhase.ROLLING) and found.left
    return RolloutStatus(
        revision=revision,
        previous=good.id if good is not None else "",
        phase=str(RolloutPhase.PAUSED if paused else record.phase),
        reason=record.reason,
        started=datetime.fromtimestamp(record.started_ms // 1000, UTC),
        total=total,
        updated=total - found.left - found.starting - len(record.nodes),
        failed=tuple(sorted({*record.failed, *record.lost})),
        working=tuple(sorted(record.nodes)),
    )


def measure(stack: str, counts: NodeCounts, rollout: RolloutStatus | None) -> None:
    """Set the gauges of nodes, GPUs and the rollout."""
    nodes = {"all": counts.nodes, "ready": counts.ready, "maintenance": counts.maintenance, "repair": counts.repair}
    gpus = {"all": counts.gpus, "ready": counts.gpus_ready, "repair": counts.gpus_in_repair}
    for gauge, found in ((metrics.NODES, nodes), (metrics.GPUS, gpus)):
        for state, count in found.items():
            gauge.labels(stack, state).set(count)
    if rollout is not None:
        progress: Iterable[tuple[str, int]] = (
            ("updated", rollout.updated), ("working", len(rollout.working)), ("failed", len(rollout.failed)),
            ("waiting", rollout.total - rollout.updated - len(rollout.working)),
        )  # fmt: skip
        for state, count in progress:
            metrics.ROLLOUT_NODES.labels(stack, state).set(count)
