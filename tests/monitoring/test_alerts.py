# SPDX-License-Identifier: Apache-2.0
"""Each alert fires with the labels of its owner, does not fire just under its threshold, and clears."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dovetail.monitoring.rules import ALERTS
from tests.monitoring.alert_scenarios import SCENARIOS
from tests.monitoring.scenarios import Scenario, check, sample
from tools.prometheus.promtool import Promtool, PromtoolFailed

BY_NAME = {alert.name: alert for alert in ALERTS}
NAMES = [f"{scenario.alert}-{number}" for number, scenario in enumerate(SCENARIOS)]


@pytest.mark.plane
@pytest.mark.parametrize("scenario", SCENARIOS, ids=NAMES)
def test_an_alert_fires_with_its_labels_and_clears(scenario: Scenario, promtool: Promtool, tmp_path: Path) -> None:
    alert = BY_NAME[scenario.alert]
    own = {"alertname": alert.name, "alertstate": "firing", "severity": alert.severity, "audience": alert.audience}
    tests = [
        sample(f'ALERTS{{alertname="{alert.name}",alertstate="firing"}}', at, *(({**own, **one}, 1) for one in firing),
               name="ALERTS")
        for at, firing in scenario.firing.items()
    ]  # fmt: skip
    check(promtool, tmp_path, scenario.series, tests, scenario.step)


@pytest.mark.plane
def test_a_scenario_with_other_labels_fails(promtool: Promtool, tmp_path: Path) -> None:
    scenario = next(one for one in SCENARIOS if one.alert == "XidNode")
    expression = 'ALERTS{alertname="XidNode",alertstate="firing"}'
    with pytest.raises(PromtoolFailed, match=r'(?s)pod="train-0".*xid="79"'):
        check(promtool, tmp_path, scenario.series, [sample(expression, "20m")])


def test_every_alert_has_a_scenario_in_which_it_fires_one_in_which_it_does_not_and_its_end() -> None:
    assert {scenario.alert for scenario in SCENARIOS} == set(BY_NAME)
    for name in BY_NAME:
        firing = [list(s.firing.values()) for s in SCENARIOS if s.alert == name]
        assert any(moments[0] == [] and any(moments) and not all(moments[1:]) for moments in firing), name


@pytest.mark.parametrize("scenario", SCENARIOS, ids=NAMES)
def test_the_texts_of_an_alert_use_labels_that_it_has(scenario: Scenario) -> None:
    alert = BY_NAME[scenario.alert]
    used = set(re.findall(r"\$labels\.(\w+)", alert.summary + alert.description))
    for moment in scenario.firing.values():
        for labels in moment:
            missing = used - labels.keys()
            # Alerts about a GPU write "no pod" where there is none.
            assert not missing or (missing <= {"namespace", "pod"} and "if $labels.pod" in alert.description)


def test_alerts_about_pods_name_the_owner() -> None:
    owners = {"namespace", "queue", "job", "owner"}
    about_pods = [labels for s in SCENARIOS for moment in s.firing.values() for labels in moment if "pod" in labels]
    assert len(about_pods) > 40
    assert all(owners <= labels.keys() for labels in about_pods)
