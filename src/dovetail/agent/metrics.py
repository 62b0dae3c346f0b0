# SPDX-License-Identifier: Apache-2.0
"""Liveness, readiness and metrics of the agent.

Rules: the agent is stuck if no look has ended for a quarter of an hour, three times its longest pause; then a restart
may help. It is ready when it has discovered and published the machine, and its devices are registered with the kubelet.
A machine whose driver is broken is published as such, and the agent is ready. Utilization, memory and temperature of
GPUs are no metrics here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from msgspec import Struct
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from dovetail.agent.plugin.plugins import Counts
from dovetail.agent.publish.publisher import NodeFacts

STUCK_S = 900.0


class Looks(Struct, frozen=True):
    """Looks at the machine: the number of ended ones, the duration of the last one, and its end (or the start of the
    process) by the monotonic clock."""

    count: int = 0
    took_s: float = 0.0
    ended_s: float = 0.0


class AgentMetrics(Struct, frozen=True):
    """The values behind probes and metrics.

    idle_s: the time since the last look, or since the start.
    found: the GPUs are known, or that they do not answer.
    published: the GPUNode has been written.
    claims, prepared: whether the DRA driver is registered, None if none runs; the number of prepared claims.
    counts: those of the device plugin, None if none runs.
    differed: how many pods have had other devices than the chosen ones since the start."""

    idle_s: float
    looks: Looks
    found: bool
    published: bool
    seen: NodeFacts
    claims: bool | None = None
    prepared: int = 0
    counts: Counts | None = None
    differed: int = 0


def stuck(vitals: AgentMetrics) -> str:
    """Why the agent is stuck, "" if it is not."""
    if vitals.idle_s <= STUCK_S:
        return ""
    return f"no look at the machine has ended for {vitals.idle_s:.0f} s: NVIDIA's library does not answer"


def waits(vitals: AgentMetrics) -> tuple[str, ...]:
    """Why the agent is not ready; empty if it is."""
    if not vitals.found:
        return ("not all GPUs have been seen yet",)
    _, unregistered = vitals.seen.unregistered or ("", "")
    driver = "the kubelet has not registered the DRA driver" if vitals.claims is False else ""
    unpublished = "" if vitals.published else "the GPUNode is not written yet"
    return tuple(why for why in (unregistered, driver, unpublished) if why)


def metrics(vitals: AgentMetrics) -> Iterator[Metric]:
    """All metrics; docs/reference/metrics.md describes each."""
    seen, looks = vitals.seen, vitals.looks
    uuids = {fault.uuid for fault in seen.unhealthy}
    unhealthy = sum(gpu.uuid in uuids for gpu in seen.host.gpus)
    health = {"healthy": len(seen.host.gpus) - unhealthy, "ill": unhealthy}
    faults = Counter(fault.code for fault in seen.unhealthy)
    yield _gauges("gpus", "GPUs of the node by health", "state", health)
    yield _gauge("mig_instances", "MIG instances of the node", sum(len(gpu.mig or ()) for gpu in seen.host.gpus))
    yield _gauges("illnesses", "Unhealthy GPUs and MIG instances by fault", "code", faults)
    yield _gauge("unread_fields", "Fields of the GPUNode that could not be read", len(seen.host.unread))
    yield _gauge("faults", "Faults that need an operator; the GPUNode lists them", len(seen.faults))
    yield _counter("looks", "Discoveries of the machine", looks.count)
    yield _gauge("look_seconds", "Duration of the last discovery of the machine", looks.took_s)
    yield _gauge("look_age_seconds", "Seconds since the last discovery of the machine ended", vitals.idle_s)
    if vitals.counts is not None:
        counts = vitals.counts
        registered = {name: name in seen.registered for name in seen.offered}
        yield _gauges("registered", "1 if the kubelet has the resource from the device plugin", "resource", registered)
        yield _counter("registrations", "Registrations of the device plugin with the kubelet", counts.registrations)
        yield _counter("allocations", "Allocate calls that the device plugin answered with devices", counts.allocated)
        answers = CounterMetricFamily(
            "dovetail_agent_preferences", "GetPreferredAllocation calls by result", labels=["result"]
        )
        for result in ("chosen", "unchosen", "unmet"):
            answers.add_metric([result], getattr(counts, result))
        yield answers
        yield _gauge("differences", "Pods that have other devices than were chosen", len(seen.differences))
        yield _counter("differed", "Pods that had other devices than were chosen", vitals.differed)
    if vitals.claims is not None:
        yield _gauge("driver_registered", "1 if the kubelet has the DRA driver", vitals.claims)
        yield _gauge("claims_prepared", "Prepared claims", vitals.prepared)


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(f"dovetail_agent_{name}", help, value=value)


def _gauges(name: str, help: str, label: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(f"dovetail_agent_{name}", help, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


def _counter(name: str, help: str, value: float) -> Metric:
    return CounterMetricFamily(f"dovetail_agent_{name}", help, value=value)
