# SPDX-License-Identifier: Apache-2.0
"""The rule files: in step with the table, sound by promtool, with pages, and only on metrics that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from dovetail.monitoring.rule import Alert
from dovetail.monitoring.rules import ALERTS, GROUPS, RECORDINGS, prometheus_rules, rule_file, threshold_references
from dovetail.monitoring.thresholds import THRESHOLDS, references, resolved
from dovetail.scheduler import metrics
from tests.docs.pages import page
from tests.paths import ROOT
from tools import alert_page
from tools.prometheus.promtool import Promtool

KINDS = ROOT / "src/dovetail/agent/exporter/kinds.csv"
OTHERS = {"kube_pod_container_status_waiting_reason"}
"""Metrics of other programs that rules use where they exist: kube-state-metrics."""
RULES = [rule for group in GROUPS for rule in group.rules]


def names_in(expression: str) -> set[str]:
    """The metrics and rules that an expression names."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    bare = re.sub(r"\b(by|on|ignoring|group_left|group_right|without)\s*\([^)]*\)", "", bare)
    return set(re.findall(r"\b(?:DCGM_\w+|dovetail_\w+|kube_\w+|\w+(?::\w+)+)", re.sub(r"\{[^}]*\}", "", bare)))


def test_generated_files_are_in_step() -> None:
    stale = [str(path) for path, text in alert_page.files().items() if path.read_text() != text]
    assert not stale, "run python -m tools.alert_page"


@pytest.mark.plane
def test_promtool_finds_nothing_wrong(promtool: Promtool) -> None:
    assert f"{len(RULES)} rules found" in promtool.check_rules(ROOT / "deploy/monitoring/rules.yaml")


@pytest.mark.plane
def test_other_thresholds_give_sound_rules_too(promtool: Promtool, tmp_path: Path) -> None:
    twice = {one.name: one.default * 2 for one in THRESHOLDS if isinstance(one.default, int | float)}
    made = rule_file(resolved(twice | {"interval": "5s", "low_util_for": "1h30m", "notebook_pods": "nb-.*"}))
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(made))
    promtool.check_rules(tmp_path / "rules.yaml")


def test_objects_have_the_groups_of_the_file() -> None:
    values = resolved()
    objects = prometheus_rules(values)
    assert [group for one in objects for group in one["spec"]["groups"]] == rule_file(values)["groups"]
    assert {(one["apiVersion"], one["kind"]) for one in objects} == {("monitoring.coreos.com/v1", "PrometheusRule")}
    assert len({one["metadata"]["name"] for one in objects}) == len(GROUPS)


def test_names_are_unique() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES) == len(ALERTS) + len(RECORDINGS)


def test_every_threshold_is_used_and_every_reference_is_one() -> None:
    used = {name for rule in RULES for text in threshold_references(rule) for name in references(text)}
    assert used | {"interval"} == {threshold.name for threshold in THRESHOLDS}


def test_every_alert_has_a_section_to_which_it_links() -> None:
    anchors = page("docs/reference/alerts.md").anchors
    for group in rule_file(resolved())["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                assert rule["labels"].keys() == {"severity", "audience"}
                assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
                assert rule["annotations"]["runbook_url"].partition("#")[2] in anchors


def test_an_alert_has_a_known_severity_and_a_whole_page() -> None:
    for alert in ALERTS:
        assert alert.severity in ("critical", "warning", "info"), alert.name
        assert alert.audience in ("owner", "operator"), alert.name
        assert all((alert.meaning, alert.check, alert.action, alert.clears)), alert.name


def test_an_alert_silences_only_alerts_that_exist() -> None:
    names = {alert.name for alert in ALERTS}
    silenced = {name for alert in ALERTS for name in alert.inhibits}
    assert silenced and silenced <= names
    assert all(alert.name not in alert.inhibits for alert in ALERTS)


def test_every_metric_in_a_rule_is_in_a_table() -> None:
    own = {rule.name for rule in RECORDINGS}
    documented = {code for row in page("docs/reference/metrics.md").rows("metric") for code in row.code[0]}
    histograms = {name + "_bucket" for name in documented}
    gpu = {line.partition(",")[0] for line in KINDS.read_text().splitlines()[1:]}
    named = {name for rule in RULES for name in names_in(rule.expr)}
    assert len(named) > 60
    assert named - own - documented - histograms - gpu == OTHERS


def test_the_scheduler_has_the_metrics_of_its_rules() -> None:
    kept = {
        family.name + ("_total" if family.type == "counter" else "")
        for metric in vars(metrics).values()
        if isinstance(metric, MetricWrapperBase)
        for family in metric.describe()
    }
    scheduler = {rule.name: rule for group in GROUPS if group.name == "dovetail-scheduler" for rule in group.rules}
    named = {name for rule in scheduler.values() for name in names_in(rule.expr) if name.startswith("dovetail_")}
    assert {name.removesuffix("_bucket") for name in named} <= kept


def test_rules_use_only_what_comes_before_them() -> None:
    """Except for what is counted over hours and days, and for a rule's own last value."""
    known: set[str] = set()
    for rule in RULES:
        used = {name for name in names_in(rule.expr) if ":" in name}
        assert used <= known | {rule.name}, rule.name
        known.add(rule.name)


def test_no_alert_reads_the_last_xid_code() -> None:
    assert all("DCGM_FI_DEV_XID_ERRORS" not in rule.expr for rule in RULES)
    assert any(isinstance(rule, Alert) and "gpu:xid_new" in rule.expr for rule in RULES)
