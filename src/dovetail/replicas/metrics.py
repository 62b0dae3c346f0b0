# SPDX-License-Identifier: Apache-2.0
"""The Prometheus metrics of replicas by need. docs/reference/metrics.md lists all of them."""

from __future__ import annotations

import logging

from prometheus_client import Counter, Gauge

_LABELS = ["kind", "workload"]
CURRENT = Gauge("dovetail_replicas_current", "Replicas that the workload has", _LABELS)
WAITING = Gauge("dovetail_replicas_waiting", "Replicas of it that are on no node", _LABELS)
NEEDED = Gauge("dovetail_replicas_needed", "Replicas that it needs for its load", _LABELS)
PLACEABLE = Gauge("dovetail_replicas_placeable", "Replicas that it has or that could start now", _LABELS)
DESIRED = Gauge("dovetail_replicas_desired", "Replicas that it needs and that can be placed now", _LABELS)
ERRORS = Counter("dovetail_replicas_errors_total", "Passes over a workload that failed", _LABELS)
log = logging.getLogger("dovetail.replicas")
