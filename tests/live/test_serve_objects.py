# SPDX-License-Identifier: Apache-2.0
"""What `dovetail serve plan -o yaml` writes is accepted by the real API server, field by field, and its controllers
make pods of it; its autoscaler follows what `dovetail serve replicas` publishes."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dovetail.cli import cli
from dovetail.kube import probe_server
from dovetail.replicas import metrics
from tests.needs import reporter, unavailable
from tests.paths import ROOT
from tests.patience import PATIENCE_S
from tools.adapter import external_metrics
from tools.adapter.external_metrics import PrometheusAdapter
from tools.controlplane.binaries import PlaneUnavailable
from tools.controlplane.plane import Plane
from tools.prometheus.server import Prometheus

pytestmark = pytest.mark.plane
HERE = "served-models"
LINES = {
    "llama-3.1-8b --engine vllm --mode aggregated": 1,
    "llama-3.1-70b --engine tensorrt-llm --mode disaggregated --gpus H100-SXM5=4x8": 3,
}
"""Plans, and how many pods each has."""


def test_objects_are_accepted(plane: Plane) -> None:
    plane.kubectl("create", "namespace", HERE)
    plane.kubectl("create", "priorityclass", HERE, "--value=1000")
    try:
        for line in LINES:
            requests = "--rate 2 --input-tokens 2000 --output-tokens 300 --ttft-ms 3000"
            arguments = f"serve plan {line} {requests} --priority-class {HERE} -o yaml".split()
            made = CliRunner().invoke(cli, arguments)
            assert made.exit_code == 0, made.output
            plane.kubectl("apply", "--validate=strict", f"--namespace={HERE}", "-f", "-", input=made.stdout)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            pods = json.loads(plane.kubectl("get", "pods", f"--namespace={HERE}", "-o", "json"))["items"]
            if len(pods) == sum(LINES.values()) or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        assert len(pods) == sum(LINES.values())
    finally:
        plane.kubectl("delete", "priorityclass", HERE)
        plane.kubectl("delete", "namespace", HERE, "--wait=false")


@pytest.mark.slow
async def test_an_hpa_follows_the_replicas_that_are_published(plane: Plane, pytestconfig: pytest.Config) -> None:
    """The rule of prometheus-adapter and the HPA of docs/how-to/watch-serving.md, with the real controller."""
    if not external_metrics.is_built():
        pytest.skip("there is no prometheus-adapter: python -m tools.adapter builds it")
    text = (ROOT / "docs/how-to/watch-serving.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    shown = {one["kind"]: one for block in blocks for one in yaml.safe_load_all(block)}
    autoscaler = shown["HorizontalPodAutoscaler"]
    template = {"metadata": {"labels": {"app": "llama"}}, "spec": {"containers": [{"name": "a", "image": "b"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "llama"}}, "template": template}
    meta = {"name": "llama", "namespace": "serving"}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}
    named = "/namespaces/serving"

    def replicas() -> int:
        return int(plane.get(f"/apis/apps/v1{named}/deployments/llama")["spec"]["replicas"])

    def reason() -> str:
        found: Any = plane.get(f"/apis/autoscaling/v2{named}/horizontalpodautoscalers/llama").get("status", {})
        return "".join(one["reason"] for one in found.get("conditions", ()) if one["type"] == "ScalingActive")

    async def until(holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 2 * PATIENCE_S
        while not await asyncio.to_thread(holds):
            assert time.monotonic() < deadline, (replicas(), reason(), adapter.log)
            await asyncio.sleep(0.2)

    gauge = metrics.DESIRED
    plane.kubectl("create", "namespace", "serving")
    try:
        async with probe_server.opened("127.0.0.1:0", probe_server.plain_answers()) as port:
            gauge.labels("Deployment", "llama").set(3)
            with Prometheus(
                {"replicas": [f"127.0.0.1:{port}"]}, labels={"replicas": {"namespace": "serving"}}
            ) as prometheus:
                rules = shown["ConfigMap"]["data"]["config.yaml"]
                adapter = PrometheusAdapter(plane, prometheus.url, rules, reporter(pytestconfig))
                try:
                    await asyncio.to_thread(adapter.start)
                except PlaneUnavailable as error:
                    unavailable(f"no prometheus-adapter: {error}", hopeless=True)
                with ExitStack() as stack:
                    stack.callback(adapter.stop)
                    objects = yaml.safe_dump_all([deployment, autoscaler])
                    await asyncio.to_thread(plane.kubectl, "apply", "-f", "-", input=objects)
                    await until(lambda: replicas() == 3 and reason() == "ValidMetricFound")
                    gauge.remove("Deployment", "llama")
                    await until(lambda: reason() == "FailedGetExternalMetric")
                    assert replicas() == 3
    finally:
        gauge.clear()
        plane.kubectl("delete", "namespace", "serving", "--wait=false")
