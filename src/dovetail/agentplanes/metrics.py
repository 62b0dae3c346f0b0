# SPDX-License-Identifier: Apache-2.0
"""The Prometheus metrics of the process that serves agents' endpoints. docs/reference/metrics.md lists all of them."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

PLANES = Gauge("dovetail_agent_planes", "Endpoints of software agents by their state in this process", ["state"])
PODS = Gauge("dovetail_agent_plane_pods", "Pods on the host that belong to pods of endpoints")
REQUESTS = Gauge("dovetail_agent_plane_requests", "Requests to the broker that are open for pods of endpoints")
ACTIONS = Counter("dovetail_agent_plane_actions_total", "What was done to carry pods, by kind", ["action"])
ERRORS = Counter("dovetail_agent_plane_errors_total", "Passes over a plane that ended with an error")
