# SPDX-License-Identifier: Apache-2.0
"""The page of the metrics of inference engines has all of them, and no others; and what is found."""

from __future__ import annotations

import re

from dovetail.kube.reading.engine_metrics import ENGINE_METRICS
from dovetail.monitoring.engine_load import ASLEEP, FULL, GROWING, LOST
from tests.paths import ROOT

PAGE = (ROOT / "docs/reference/engine-metrics.md").read_text()
_METRIC = re.compile(r"`((?:vllm:|sglang:|trtllm_num|trtllm_kv|nv_|inference_pool_|llm_d_epp_)[a-z_]+)(\{[^}]*\})?`")


def test_each_metric_is_in_its_table() -> None:
    known = {
        gauge.metric + (f'{{{gauge.label}="{gauge.equals}"}}' if gauge.label else "")
        for engine in ENGINE_METRICS
        for gauge in engine.gauges
    }
    assert {name + label for name, label in _METRIC.findall(PAGE)} == known


def test_each_engine_and_finding_has_a_row() -> None:
    for engine in ENGINE_METRICS:
        assert f"{engine.engine}" in PAGE and (not engine.model or f"(`{engine.model}`)" in PAGE)
    for finding in (FULL, GROWING, ASLEEP, LOST):
        assert f"| `{finding.name}` |" in PAGE
