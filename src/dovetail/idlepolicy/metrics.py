# SPDX-License-Identifier: Apache-2.0
"""The Prometheus metrics of the policy about idle workloads. docs/reference/metrics.md lists all of them."""

from __future__ import annotations

import logging

from prometheus_client import Counter, Gauge

NOTICES = Counter("dovetail_idle_policy_notices_total", "Pods and workloads whose owner had a notice", ["object"])
ACTS = Counter("dovetail_idle_policy_acts_total", "Attempts to stop an idle workload", ["act", "result"])
WAITING = Gauge(
    "dovetail_idle_policy_waiting", "Idle workloads with a notice that will be stopped, unless they are used"
)
PUT_BACK = Gauge(
    "dovetail_idle_policy_put_back", "Idle workloads that are not stopped, as something else has started them again"
)
ERRORS = Counter("dovetail_idle_policy_errors_total", "Requests that failed")
LAST_PASS = Gauge("dovetail_idle_policy_last_pass_timestamp_seconds", "When the last whole pass ended")
log = logging.getLogger("dovetail.idlepolicy")
