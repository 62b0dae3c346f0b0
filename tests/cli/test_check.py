# SPDX-License-Identifier: Apache-2.0
"""`dovetail check`: what it answers about manifests, in five lines and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from dovetail.cli import cli
from tests.cli.answers import answer
from tests.paths import ROOT

CLUSTER = ROOT / "docs/examples/two-teams.yaml"
AT = "2026-11-22T12:00:00Z"


def job(gpus: int, pods: int = 1) -> dict[str, Any]:
    """A Job in which lint finds nothing."""
    amounts = {"nvidia.com/gpu": gpus, "cpu": "4", "memory": "32Gi"}
    container = {
        "name": "main", "image": "registry.example/train:1", "command": ["python", "train.py"],
        "resources": {"limits": amounts, "requests": amounts},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }  # fmt: skip
    spec = {
        "schedulerName": "dovetail", "restartPolicy": "Never", "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}],
    }  # fmt: skip
    metadata = {"name": "train", "labels": {"team": "vision"}, "annotations": {"dovetail.dev/max-runtime": "2h"}}
    wanted: dict[str, Any] = {"parallelism": pods, "completions": pods, "completionMode": "Indexed", "backoffLimit": 0}
    labels = {"metadata": {"labels": {"team": "vision"}, "annotations": metadata["annotations"]}}
    wanted["template"] = labels | {"spec": spec}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": wanted}


def checked(folder: Path, document: object, *options: str) -> Result:
    file = folder / "train.yaml"
    file.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return CliRunner().invoke(cli, ["check", str(file), "-f", str(CLUSTER), "--at", AT, *options])


def lines(result: Result) -> dict[str, str]:
    found = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert list(found) == ["runs", "where", "price", "lint", "change"]
    return found


def test_what_runs_now(tmp_path: Path) -> None:
    prices = tmp_path / "prices.csv"
    prices.write_text("per,price_h,currency,price_date,source,gpu_model\ngpu,2.5,USD,2026-11-01,quote 17,H100-SXM5\n")
    result = checked(tmp_path, job(2), "--prices", str(prices))
    found = lines(result)
    assert result.exit_code == 0, result.output
    assert found["runs"] == "now: 1 job with 2 GPUs" and found["where"].startswith("default/train: gpu-")
    assert found["price"].startswith(
        "5.00 USD an hour, at most 10.00 USD in its run-time limit of 2 h; price: quote 17"
    )
    assert "error" not in found["lint"] and "warning" not in found["lint"]


def test_what_waits(tmp_path: Path) -> None:
    result = checked(tmp_path, job(8))
    assert result.exit_code == 0, result.output
    assert lines(result)["runs"].startswith("default/train in ")


def test_what_never_starts(tmp_path: Path) -> None:
    result = checked(tmp_path, job(16))
    found = lines(result)
    assert result.exit_code == 1
    assert found["runs"].startswith("default/train never: ") and found["where"] == "not known"
    assert found["change"].partition(": ")[2].startswith("G11: nvidia.com/gpu: 16 in one pod")


def test_what_lint_knows_alone(tmp_path: Path) -> None:
    document = job(2)
    document["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpus"] = 1
    result = checked(tmp_path, document)
    assert result.exit_code == 1 and " G04: " in lines(result)["change"]


def test_what_cannot_be_read(tmp_path: Path) -> None:
    result = checked(tmp_path, "apiVersion: v1\nkind: [\n")
    assert result.exit_code == 1
    assert lines(result)["runs"] == "not checked: the manifests cannot be read"


@pytest.mark.parametrize(
    ("document", "verdict"), [(job(2), "now"), (job(8), "later"), (job(16), "never"), (":", "not read")]
)
@pytest.mark.slow
def test_as_json(tmp_path: Path, document: object, verdict: str) -> None:
    result = checked(tmp_path, document, "-o", "json")
    answer(result.stdout, "Check")
    found = json.loads(result.stdout)
    assert found["verdict"] == verdict and (found["placement"] is None) == (verdict == "not read")
    levels = ["error", "warning", "info"]
    assert [one["level"] for one in found["findings"]] == sorted(
        (one["level"] for one in found["findings"]), key=levels.index
    )


def test_standard_input_is_refused() -> None:
    result = CliRunner().invoke(cli, ["check", "-", "-f", str(CLUSTER)], input="{}")
    assert result.exit_code == 2 and "cannot be standard input" in result.output
