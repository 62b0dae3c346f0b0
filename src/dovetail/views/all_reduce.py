# SPDX-License-Identifier: Apache-2.0
"""The expected all-reduce of a job as a view: only where it is known which GPUs each of its pods has."""

from __future__ import annotations

from dovetail.core.devices.collectives import AllReduce
from dovetail.core.placing.collective import of_placements
from dovetail.core.state import State
from dovetail.views.gpus import gpus_of


def all_reduce_of(state: State, workload: str) -> AllReduce | None:
    """That of all placed pods of a gang, or of a lone pod."""
    placed = [pod for pod in state.workloads.members(workload) if pod.uid in state.cluster.placements]
    placements = [state.cluster.placements[pod.uid] for pod in placed]
    if any(one.gpu_bits and gpus_of(state, pod).gpus is None for pod, one in zip(placed, placements, strict=True)):
        return None
    return of_placements(state.cluster, placements)
