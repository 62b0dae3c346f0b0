# SPDX-License-Identifier: Apache-2.0
"""Series of GPUs as the exporter makes them, and scenarios for promtool: series, and which alerts fire when.

Values are in promtool's notation: `1x3` is four samples of 1, `0+2x3` is 0 2 4 6, `_x3` is three without a sample.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from dovetail.monitoring import rules, thresholds
from tools.prometheus.promtool import Promtool

Labels = dict[str, str]
Series = tuple[str, str]
"""A selector with all labels, and the values."""


class GPU(Struct, frozen=True):
    """A GPU and its owner (a pod of a job); pod "" is none. `spelling`: of the exporter's label for the node."""

    name: str = "a"
    host: str = "n1"
    pod: str = "train-0"
    job: str = "train"
    spelling: tuple[str, ...] = ("hostname", "Hostname")
    mig: str = ""

    @property
    def _device(self) -> Labels:
        instance = {"GPU_I_PROFILE": "1g.10gb", "GPU_I_ID": self.mig} if self.mig else {}
        return {"gpu": "0", "UUID": f"GPU-{self.name}", "pci_bus_id": "0:1", "modelName": "H100", **instance}

    @property
    def _owner(self) -> Labels:
        if not self.pod:
            return {}
        pod = {"namespace": "red", "pod": self.pod, "container": "main", "pod_uid": f"uid-{self.pod}"}
        return {**pod, **({"queue": "research", "job": self.job, "owner": "ann"} if self.job else {})}

    @property
    def labels(self) -> Labels:
        """The labels that rules keep."""
        job = {} if self.job or not self.pod else {"job": self.pod}
        return {**self._device, **self._owner, **job, "hostname": self.host}

    @property
    def pod_labels(self) -> Labels:
        """Those of its pod."""
        kept = ("hostname", "namespace", "pod", "queue", "job", "owner")
        return {key: value for key, value in self.labels.items() if key in kept}

    @property
    def job_labels(self) -> Labels:
        """Those of its job."""
        return {key: value for key, value in self.labels.items() if key in ("namespace", "queue", "job", "owner")}

    def series(self, metric: str, values: str, **extra: str) -> Series:
        """A series as it is scraped: with the labels of the scrape, and the node in the exporter's spelling."""
        scrape = {"instance": f"{self.host}:9400", "job": "dovetail-agent"}
        spelled = dict.fromkeys(self.spelling, self.host)
        return selector(
            metric, {**scrape, **self._device, "device": "nvidia0", **spelled, **self._owner, **extra}
        ), values

    def held(self, values: str = "1x600") -> Series:
        """What the pod holds of it."""
        return self.series("dovetail_gpu_allocated_share", values)


class Scenario(Struct, frozen=True):
    """Series, and the labels of the alerts that fire at each time; nothing else of this alert may fire.

    step: the time between samples, and between evaluations.
    """

    alert: str
    series: Sequence[Series]
    firing: Mapping[str, Sequence[Labels]]
    step: str = "1m"


def selector(metric: str, labels: Mapping[str, str]) -> str:
    """A metric with labels, as promtool writes it."""
    return f"{metric}{{{','.join(f'{key}={value!r}' for key, value in labels.items())}}}".replace("'", '"')


def sample(expression: str, at: str, *samples: tuple[Labels, float], name: str = "") -> dict[str, Any]:
    """A test of promtool: the expression has exactly these samples at that time."""
    return {
        "expr": expression,
        "eval_time": at,
        "exp_samples": [{"labels": selector(name, labels), "value": value} for labels, value in samples],
    }


def needed(made: dict[str, Any], expressions: Sequence[str]) -> dict[str, Any]:
    """A rule file with those rules alone that these expressions name, and the rules that these name, and so on."""
    every = [rule for group in made["groups"] for rule in group["rules"]]
    words, kept = {word for one in expressions for word in _WORD.findall(one)}, list[Any]()
    while more := [rule for rule in every if rule not in kept and {rule.get("record"), rule.get("alert")} & words]:
        kept += more
        words |= {word for rule in more for word in _WORD.findall(rule["expr"])}
    groups = [{**group, "rules": [rule for rule in group["rules"] if rule in kept]} for group in made["groups"]]
    return {**made, "groups": [group for group in groups if group["rules"]]}


_WORD = re.compile(r"[\w:]+")


def check(
    promtool: Promtool,
    folder: Path,
    series: Sequence[Series],
    tests: Sequence[dict[str, Any]],
    step: str = "1m",
) -> None:
    """Run tests over these series with the rules that they need: all of them take a second and more of CPU. Raises
    PromtoolFailed."""
    made = needed(rules.rule_file(thresholds.resolved({"interval": step})), [test["expr"] for test in tests])
    (folder / "rules.yaml").write_text(yaml.safe_dump(made))
    group = {
        "interval": step,
        "input_series": [{"series": name, "values": values} for name, values in series],
        "promql_expr_test": list(tests),
    }
    document = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": step,
        "group_eval_order": [one["name"] for one in made["groups"]],
        "fuzzy_compare": True,
        "tests": [group],
    }
    (folder / "test.yaml").write_text(yaml.safe_dump(document))
    promtool.test_rules(folder / "test.yaml")
