# SPDX-License-Identifier: Apache-2.0
"""What `dovetail serve plan -o yaml` writes is accepted by the real API server, field by field, and its controllers
make pods of it."""

from __future__ import annotations

import json
import time

import pytest
from click.testing import CliRunner

from dovetail.cli import cli
from tests.patience import PATIENCE_S
from tools.controlplane.plane import Plane

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
