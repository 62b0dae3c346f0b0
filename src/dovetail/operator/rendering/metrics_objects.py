# SPDX-License-Identifier: Apache-2.0
"""How Prometheus finds scheduler and agents, and what it and Grafana get: rules and boards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import yaml

from dovetail.core.model import Problem
from dovetail.kube.api.resources import POD_MONITORS, PROMETHEUS_RULES, SERVICE_MONITORS
from dovetail.kube.namespaces import AGENT_NAMESPACE, SYSTEM_NAMESPACE
from dovetail.kube.objects.stack import ANNOTATIONS, SCRAPE_AUTO, SERVICE_MONITOR, MetricsSpec, StackSpec
from dovetail.monitoring import boards, rules
from dovetail.monitoring.thresholds import resolved
from dovetail.operator.found import Found
from dovetail.operator.rendering import (
    agent_objects,
    agent_planes_objects,
    history_objects,
    idle_policy_objects,
    scheduler_objects,
)

Document = dict[str, Any]

RULES = "dovetail-rules"
_ANNOTATIONS = {"prometheus.io/scrape": "true", "prometheus.io/path": "/metrics"}
_SCRAPED = {
    scheduler_objects.NAME: _ANNOTATIONS | {"prometheus.io/port": "10351"},
    agent_objects.NAME: _ANNOTATIONS,
    agent_planes_objects.NAME: _ANNOTATIONS | {"prometheus.io/port": "10354"},
    history_objects.NAME: _ANNOTATIONS | {"prometheus.io/port": "10355"},
    idle_policy_objects.NAME: _ANNOTATIONS | {"prometheus.io/port": "10357"},
}
"""The annotations of pods with metrics, by the name that is their label. Without a port each port of the pod serves
metrics; of all but the agents one does not."""


def scrape_of(metrics: MetricsSpec, found: Found) -> str:
    """How Prometheus finds the pods: the spec's, and for Auto what this cluster has."""
    if metrics.scrape == SCRAPE_AUTO:
        return SERVICE_MONITOR if _monitors(found) else ANNOTATIONS
    return metrics.scrape


def unmet(metrics: MetricsSpec, found: Found) -> list[Problem]:
    """What the spec asks for and this cluster cannot have."""
    if metrics.scrape == SERVICE_MONITOR and not _monitors(found):
        rule = "the cluster has no kinds ServiceMonitor and PodMonitor (monitoring.coreos.com/v1)"
        return [Problem("spec.metrics.scrape", SERVICE_MONITOR, rule)]
    return []


def _monitors(found: Found) -> bool:
    return found.served.has(SERVICE_MONITORS) and found.served.has(POD_MONITORS)


def annotate(objects: Sequence[Document], metrics: MetricsSpec, found: Found) -> None:
    """The annotations on pods with metrics."""
    if scrape_of(metrics, found) != ANNOTATIONS:
        return
    for document in objects:
        if document["kind"] in ("Deployment", "DaemonSet", "StatefulSet"):
            metadata = document["spec"]["template"]["metadata"]
            if annotations := _SCRAPED.get(metadata["labels"].get("app.kubernetes.io/name")):
                metadata["annotations"] = {**metadata.get("annotations", {}), **annotations}


def metrics_objects(spec: StackSpec, found: Found) -> Iterator[Document]:
    """Monitors, rules and boards."""
    if scrape_of(spec.metrics, found) == SERVICE_MONITOR and _monitors(found):
        if spec.scheduler.enabled:
            yield _service_monitor(scheduler_objects.NAME, spec.metrics)
        if spec.agent_planes.enabled:
            yield _service_monitor(agent_planes_objects.NAME, spec.metrics)
        if spec.history.enabled:
            yield _service_monitor(history_objects.NAME, spec.metrics)
        if spec.idle.enabled:
            yield _service_monitor(idle_policy_objects.NAME, spec.metrics)
        if spec.agent.enabled:
            yield _pod_monitor(spec.metrics)
    if spec.metrics.rules and found.served.has(PROMETHEUS_RULES):
        yield from rules.prometheus_rules(resolved())
    elif spec.metrics.rules:
        yield _config_map(RULES, {"rules.yaml": _rules_text()})
    if spec.metrics.dashboards:
        yield from boards.config_maps(SYSTEM_NAMESPACE)


@cache
def _rules_text() -> str:
    return yaml.safe_dump(rules.rule_file(resolved()), sort_keys=False, width=120)


def _config_map(name: str, data: Document) -> Document:
    metadata = {"name": name, "namespace": SYSTEM_NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _endpoint(port: str, metrics: MetricsSpec) -> Document:
    # Namespace, pod and job in the series are those of the workloads (docs/how-to/monitoring.md).
    return {"port": port, "path": "/metrics", "interval": f"{metrics.interval_seconds}s", "honorLabels": True}


def _service_monitor(name: str, metrics: MetricsSpec) -> Document:
    return {
        "apiVersion": SERVICE_MONITORS.api_version,
        "kind": SERVICE_MONITORS.kind,
        "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE},
        "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/name": name}},
            "endpoints": [_endpoint("http", metrics)],
        },
    }


def _pod_monitor(metrics: MetricsSpec) -> Document:
    return {
        "apiVersion": POD_MONITORS.api_version,
        "kind": POD_MONITORS.kind,
        "metadata": {"name": agent_objects.NAME, "namespace": AGENT_NAMESPACE},
        "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/name": agent_objects.NAME}},
            "podMetricsEndpoints": [_endpoint(port, metrics) for port in ("http", "gpu-metrics")],
        },
    }
