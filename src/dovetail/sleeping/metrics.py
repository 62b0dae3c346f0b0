# SPDX-License-Identifier: Apache-2.0
"""The Prometheus metrics of turns. docs/reference/metrics.md lists all of them."""

from __future__ import annotations

import logging

from prometheus_client import Counter, Gauge

INSTANCES = Gauge("dovetail_turns_instances", "Instances that can sleep, by what they do", ["state"])
LONGEST_WAIT = Gauge("dovetail_turns_longest_wait_seconds", "Wait of the instance that has asked first for its turn")
SWITCHES = Counter("dovetail_turns_switches_total", "Switches that were made", ["to"])
FAILURES = Counter("dovetail_turns_failures_total", "Switches that an engine refused or did not finish", ["to"])
LEADS = Gauge("dovetail_turns_leads", "1 while this process gives the turns of its namespace")
log = logging.getLogger("dovetail.turns")
