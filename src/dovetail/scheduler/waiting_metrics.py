# SPDX-License-Identifier: Apache-2.0
"""Gauges of waiting jobs by the reason of their wait, and of gangs that started by half, computed at each scrape.

Rules: one series for each combination of namespace, queue, reason and verdict that exists; it disappears with its last
job. Only the process that leads knows reasons.
"""

from __future__ import annotations

from collections import Counter

from dovetail.core.state import State
from dovetail.core.workloads.lifecycle import GangState
from dovetail.scheduler import metrics


def measure(state: State) -> None:
    """Set the gauges to the state of now."""
    jobs, oldest_ms = Counter[tuple[str, ...]](), dict[tuple[str, ...], int]()
    for workload, refusal, _, _ in state.queue.reports():
        pod = state.workloads.first(workload)
        if pod is None or not state.workloads.waits(workload):
            continue
        labels = pod.namespace, state.shares.pod_queues.of(pod), refusal.reason.code, refusal.when.value
        created_ms = state.workloads.created_ms(workload) or state.now_ms
        jobs[labels] += 1
        oldest_ms[labels] = min(created_ms, oldest_ms.get(labels, created_ms))
    metrics.WAITING.clear()
    metrics.WAITING_SECONDS.clear()
    for combination, count in jobs.items():
        metrics.WAITING.labels(*combination).set(count)
        metrics.WAITING_SECONDS.labels(*combination).set(max(0, state.now_ms - oldest_ms[combination]) / 1_000)
    _measure_partial(state)


def _measure_partial(state: State) -> None:
    since_ms = dict[tuple[str, str], int]()
    for gang in state.workloads.lives.gangs(GangState.STARTING):
        for pod in state.workloads.bound(gang):
            labels = pod.namespace, state.shares.pod_queues.of(pod)
            since_ms[labels] = min(pod.bound_ms or state.now_ms, since_ms.get(labels, state.now_ms))
    metrics.PARTIAL_GANG_SECONDS.clear()
    for labels, at_ms in since_ms.items():
        metrics.PARTIAL_GANG_SECONDS.labels(*labels).set(max(0, state.now_ms - at_ms) / 1_000)
