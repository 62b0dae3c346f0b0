# SPDX-License-Identifier: Apache-2.0
"""The Prometheus metrics of the operator. docs/reference/metrics.md lists all of them."""

from __future__ import annotations

import logging

from prometheus_client import Counter, Gauge, Histogram

log = logging.getLogger("dovetail.operator")

LEADER = Gauge("dovetail_operator_leader", "1 while this process is the leader")
RECONCILES = Counter("dovetail_operator_reconciles_total", "Passes over a GPUStack by how they ended", ["result"])
RECONCILE_SECONDS = Histogram(
    "dovetail_operator_reconcile_seconds", "Time of one pass", buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
)
WRITES = Counter("dovetail_operator_writes_total", "Writes by how they ended", ["kind", "verb", "result"])
RESTORED = Counter("dovetail_operator_restored_total", "Changes by others that were undone", ["kind"])
CONDITION = Gauge("dovetail_operator_condition", "1 for the status of a condition", ["stack", "type", "status"])
COMPONENT_DESIRED = Gauge("dovetail_operator_component_desired", "Pods that a component wants", ["stack", "component"])
COMPONENT_READY = Gauge("dovetail_operator_component_ready", "Its pods that are ready", ["stack", "component"])
NODES = Gauge("dovetail_operator_nodes", "GPU nodes by state; a node may be in several", ["stack", "state"])
GPUS = Gauge("dovetail_operator_gpus", "GPUs by state; a GPU may be in several", ["stack", "state"])
ROLLOUT_NODES = Gauge("dovetail_operator_rollout_nodes", "GPU nodes by how far a rollout is", ["stack", "state"])
STALENESS_SECONDS = Gauge(
    "dovetail_operator_watch_staleness_seconds", "Seconds since the last data of the watch", ["resource"]
)
DRIFT = Counter("dovetail_operator_watch_drift_total", "Audits that found a difference to the server", ["resource"])


def count(counter: Counter, *labels: str) -> None:
    """Add one to the counter with these labels."""
    counter.labels(*labels).inc()
