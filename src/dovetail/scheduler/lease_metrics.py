# SPDX-License-Identifier: Apache-2.0
"""Gauges of leases and of requests for leases, computed at each scrape."""

from __future__ import annotations

from collections import Counter

from dovetail.core.state import State
from dovetail.scheduler import metrics

_GAUGES = metrics.LEASES, metrics.LEASED_DEVICES, metrics.LEASE_IDLE_DEVICES, metrics.LEASE_REQUESTS


def measure(state: State) -> None:
    """Set the gauges to the state of now."""
    leases, devices, idle = Counter[tuple[str, str]](), Counter[str](), Counter[str]()
    for live in state.leases.live.values():
        service = live.lease.alternative.service.value
        leases[live.state.value, service] += 1
        devices[service] += live.lease.alternative.count
        idle[service] += 0 if live.inside else live.lease.alternative.count
    requests = Counter(one.state.value for plane in state.requests.planes for one in state.requests.by_age(plane))
    for gauge in _GAUGES:
        gauge.clear()
    for labels, count in leases.items():
        metrics.LEASES.labels(*labels).set(count)
    for service, count in devices.items():
        metrics.LEASED_DEVICES.labels(service).set(count)
        metrics.LEASE_IDLE_DEVICES.labels(service).set(idle[service])
    for state_, count in requests.items():
        metrics.LEASE_REQUESTS.labels(state_).set(count)
