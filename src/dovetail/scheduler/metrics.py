# SPDX-License-Identifier: Apache-2.0
"""The Prometheus metrics of the scheduler. docs/reference/metrics.md lists all of them."""

from __future__ import annotations

import logging
from functools import cache

from prometheus_client import Counter, Gauge, Histogram

log = logging.getLogger("dovetail.scheduler")

STEP_SECONDS = Histogram(
    "dovetail_step_seconds", "Time of one step of the core", buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3)
)
DECISIONS = Counter("dovetail_decisions_total", "Decisions of the core", ["kind"])
WAKEUPS = Counter("dovetail_wakeups_total", "Changes after which the parked workloads were tried again", ["change"])
BINDS = Counter("dovetail_binds_total", "Binds by how they ended", ["result"])
BIND_SECONDS = Histogram(
    "dovetail_bind_seconds", "Time from decision to bind", buckets=(0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 60)
)
EVICTIONS = Counter("dovetail_evictions_total", "Evictions by cause and by how they ended", ["cause", "result"])
PENDING = Gauge("dovetail_pending_gangs", "Gangs and lone pods that wait to be tried or for room", ["state"])
REFUSALS = Counter(
    "dovetail_refusals_total", "Reported refusals, by reason and whether waiting can help", ["reason", "when"]
)
WAITING = Gauge(
    "dovetail_waiting_jobs",
    "Gangs and lone pods that wait, by the reason that was last reported",
    ["namespace", "queue", "reason", "when"],
)
WAITING_SECONDS = Gauge(
    "dovetail_waiting_age_seconds", "The longest wait among them", ["namespace", "queue", "reason", "when"]
)
WAIT_SECONDS = Histogram(
    "dovetail_wait_seconds",
    "Time from the creation of a pod to its bind",
    ["queue"],
    buckets=(1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10800, 36000, 86400, 259200),
)
PARTIAL_GANG_SECONDS = Gauge(
    "dovetail_partial_gang_age_seconds",
    "How long the oldest gang without its minimum of pods has had some of them on nodes",
    ["namespace", "queue"],
)
REJECTIONS = Counter("dovetail_kubelet_rejections_total", "Pods that a kubelet did not admit", ["reason", "namespace"])
DIFFERENCES = Gauge("dovetail_device_differences", "Pods that have other devices than were chosen for them")
CHANGED_RECORDS = Gauge("dovetail_changed_records", "Pods whose record is not what was written when they were bound")
FENCES = Counter(
    "dovetail_fences_total", "Fences for pods on nodes whose kubelet aligns, by how they ended", ["result"]
)
DELETION_COSTS = Counter(
    "dovetail_deletion_costs_total", "Writes of what the deletion of a pod costs, by how they ended", ["result"]
)
LAYOUTS = Counter("dovetail_mig_layouts_total", "Layouts of MIG cards that agents were asked for")
REPORTS_QUEUED = Gauge("dovetail_reports_queued", "Conditions and events that are not written yet")
REPORTS = Counter("dovetail_reports_total", "Conditions and events by how writing them ended", ["kind", "result"])
LEADER = Gauge("dovetail_leader", "1 while this process is the leader")
STALENESS_SECONDS = Gauge("dovetail_watch_staleness_seconds", "Seconds since the last data of the watch", ["resource"])
DRIFT = Counter("dovetail_watch_drift_total", "Audits that found a difference to the server", ["resource"])
RECORDED_BYTES = Counter("dovetail_recording_bytes_total", "Bytes written to the recording")
RECORDING_ERRORS = Counter("dovetail_recording_errors_total", "Errors that ended the recording")
VIEW_SERVER_UP = Gauge("dovetail_view_server_up", "1 while the process that answers views runs")
VIEW_SERVER_ENDS = Counter("dovetail_view_server_ends_total", "Times that the process that answers views ended")
OWNER_ERRORS = Counter("dovetail_owner_errors_total", "Owners of pods that could not be read")

HEADROOM = Gauge(
    "dovetail_headroom_instances",
    "Instances of a workload that room is kept for: stated, due by the guarantee, and kept",
    ["queue", "workload", "state"],
)
HEADROOM_LENT = Gauge(
    "dovetail_headroom_lent_gpus", "GPUs of jobs that run in the headroom of a workload", ["queue", "workload"]
)
HEADROOM_RETURN_SECONDS = Gauge(
    "dovetail_headroom_return_seconds",
    "How long jobs in the headroom of a workload take at most to return it, and what is promised",
    ["queue", "workload", "kind"],
)
SCALE_UP_SECONDS = Histogram(
    "dovetail_scale_up_seconds",
    "From a pod of a workload with headroom to its bind, in seconds",
    ["headroom"],
    buckets=(0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 900, 3600),
)
SCALE_UPS = Counter(
    "dovetail_scale_ups_total", "Pods of workloads with headroom by whether the promise was kept", ["promise"]
)
QUEUE_ALLOCATED = Gauge("dovetail_queue_allocated", "What a queue holds", ["queue", "resource"])
QUEUE_DUE = Gauge("dovetail_queue_due", "What is due to a queue now", ["queue", "resource"])
QUEUE_BORROWED = Gauge("dovetail_queue_borrowed", "What a queue holds beyond its guarantee", ["queue", "resource"])
QUEUE_USAGE_SHARE = Gauge("dovetail_queue_usage_share", "Decayed usage as a part of the cluster's", ["queue"])
QUEUE_PENDING = Gauge("dovetail_queue_pending_jobs", "Gangs and lone pods that wait", ["queue"])
QUEUE_BUDGET = Gauge("dovetail_queue_budget_gpu_hours", "GPU-hours that a queue may use in its period", ["queue"])
QUEUE_BUDGET_USED = Gauge(
    "dovetail_queue_budget_used_gpu_hours",
    "GPU-hours of its budget that a queue has used in the present period",
    ["queue"],
)
QUEUE_MONEY = Gauge("dovetail_queue_budget_money", "Money that a queue may spend in its period", ["queue"])
QUEUE_MONEY_SPENT = Gauge(
    "dovetail_queue_budget_spent_money", "Money of its budget that a queue has spent in the present period", ["queue"]
)
MONEY_QUESTIONS = Counter(
    "dovetail_money_questions_total", "Questions to the collector about what queues have spent", ["result"]
)
QUEUE_STATUSES = Counter("dovetail_queue_statuses_total", "Writes of a Queue's status by how they ended", ["result"])
LEASES = Gauge("dovetail_leases", "Live leases of software agents", ["state", "class"])
LEASED_DEVICES = Gauge("dovetail_leased_devices", "Devices in live leases", ["class"])
LEASE_REQUESTS = Gauge("dovetail_lease_requests", "Requests for leases that are not settled", ["state"])
LEASE_WAIT_SECONDS = Histogram(
    "dovetail_lease_wait_seconds",
    "Time from the creation of a request to its first offer, or its lease",
    buckets=(0.03, 0.1, 0.2, 0.5, 1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10800),
)
LEASE_IDLE_DEVICES = Gauge("dovetail_lease_idle_devices", "Devices in live leases in which no pod runs", ["class"])
LEASE_ANSWERS = Counter("dovetail_lease_answers_total", "Offers by how they ended", ["answer"])
LEASE_RENEWALS = Counter("dovetail_lease_renewals_total", "Renewals that agents asked for", ["result"])
LEASE_ENDS = Counter("dovetail_lease_ends_total", "Leases that ended, by cause", ["cause"])
LEASE_WRITES = Counter("dovetail_lease_writes_total", "Writes about leases by how they ended", ["kind", "result"])
LEASE_WRITE_SECONDS = Histogram(
    "dovetail_lease_write_seconds",
    "Time from a decision about a lease to its write",
    ["kind"],
    buckets=(0.003, 0.01, 0.03, 0.1, 0.2, 0.5, 1, 3, 10, 60),
)
RESERVATIONS = Gauge("dovetail_reservations", "Jobs that room is held for")
RESERVED_WAIT_SECONDS = Gauge(
    "dovetail_reserved_wait_seconds", "How long room has been held for the job for which that is longest"
)


def count(counter: Counter, *labels: str, times: int = 1) -> None:
    """Add `times` to the counter with these labels."""
    _labelled(counter, *labels).inc(times)


@cache
def _labelled(counter: Counter, *labels: str) -> Counter:
    """Cached, because prometheus_client takes a lock and builds a key at each lookup: a fiftieth of all the work for a
    single pod."""
    return counter.labels(*labels)


@cache
def waited(queue: str) -> Histogram:
    """The histogram of waiting times of a queue; cached for the same reason."""
    return WAIT_SECONDS.labels(queue)
