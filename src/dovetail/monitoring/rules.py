# SPDX-License-Identifier: Apache-2.0
"""All rules as documents: a plain rule file of Prometheus, or PrometheusRule objects of its operator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dovetail.monitoring import health_rules, scheduler_rules, use_rules
from dovetail.monitoring.rule import Alert, Recording, RuleGroup
from dovetail.monitoring.thresholds import Value, filled

GROUPS: tuple[RuleGroup, ...] = (*use_rules.GROUPS, *health_rules.GROUPS, *scheduler_rules.GROUPS)
"""All groups, each after those whose rules it uses."""
ALERTS = tuple(rule for group in GROUPS for rule in group.rules if isinstance(rule, Alert))
RECORDINGS = tuple(rule for group in GROUPS for rule in group.rules if isinstance(rule, Recording))
RUNBOOKS = "https://dovetail.dev/docs/reference/alerts.html"
"""The page of all alerts; the name of an alert in lower case is its anchor there."""

Document = dict[str, Any]


def rule_file(values: Mapping[str, Value], runbooks: str = RUNBOOKS) -> Document:
    """A rule file of Prometheus. `values`: of all thresholds, see `thresholds.resolved`."""
    return {"groups": [_group(group, values, runbooks) for group in GROUPS]}


def prometheus_rules(values: Mapping[str, Value], runbooks: str = RUNBOOKS) -> list[Document]:
    """The same as PrometheusRule objects (monitoring.coreos.com/v1), one for each group."""
    return [
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {
                "name": group.name,
                "namespace": "dovetail-system",
                "labels": {"app.kubernetes.io/part-of": "dovetail"},
            },
            "spec": {"groups": [_group(group, values, runbooks)]},
        }
        for group in GROUPS
    ]


def threshold_references(rule: Recording | Alert) -> Iterable[str]:
    """The texts of a rule in which thresholds may stand."""
    return (rule.expr, rule.lasts, rule.summary, rule.description) if isinstance(rule, Alert) else (rule.expr,)


def _group(group: RuleGroup, values: Mapping[str, Value], runbooks: str) -> Document:
    return {
        "name": group.name,
        "interval": group.interval or values["interval"],
        "rules": [_rule(rule, values, runbooks) for rule in group.rules],
    }


def _rule(rule: Recording | Alert, values: Mapping[str, Value], runbooks: str) -> Document:
    expr = filled(rule.expr, values)
    if isinstance(rule, Recording):
        return {"record": rule.name, "expr": expr}
    made: Document = {"alert": rule.name, "expr": expr}
    if rule.lasts:
        made["for"] = filled(rule.lasts, values)
    made["labels"] = {"severity": rule.severity, "audience": rule.audience}
    made["annotations"] = {
        "summary": filled(rule.summary, values),
        "description": filled(rule.description, values),
        "runbook_url": f"{runbooks}#{rule.name.lower()}",
    }
    return made
