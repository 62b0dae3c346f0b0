# SPDX-License-Identifier: Apache-2.0
"""`dovetail migrate`: what it prints and writes, its exit codes, and the plan."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dovetail.cli import cli
from tests.paths import ROOT

CASES = ROOT / "tests/advice/migrate/cases"
OLD = """\
# what we had
apiVersion: batch/v1beta1
kind: CronJob
metadata: {name: nightly}
"""
NEW = OLD.replace("v1beta1", "v1")
LOST = "apiVersion: kueue.x-k8s.io/v1beta2\nkind: LocalQueue\nmetadata: {name: q}\n"


def run(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["migrate", *words], input=stdin)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    file = tmp_path / "old.yaml"
    file.write_text(OLD)
    return file


def test_a_diff_and_nothing_written(old: Path) -> None:
    result = run(str(old))
    assert result.exit_code == 0
    assert "-apiVersion: batch/v1beta1\n+apiVersion: batch/v1\n" in result.stdout
    assert f"{old}:2: changed: CronJob nightly: apiVersion: " in result.stderr
    assert old.read_text() == OLD


def test_written_in_place_and_then_there_is_nothing_to_do(old: Path) -> None:
    result = run("--write", str(old))
    assert result.exit_code == 0 and "changed" in result.stdout
    assert old.read_text() == NEW
    again = run(str(old))
    assert again.stdout == "" and again.stderr == "nothing to migrate in 1 file\n"


def test_what_has_no_equal_is_an_exit_code(old: Path) -> None:
    old.write_text(LOST)
    result = run("--write", str(old))
    assert result.exit_code == 1 and "no equal: LocalQueue q: kind: " in result.stdout
    assert old.read_text() == LOST


def test_standard_input() -> None:
    result = run("--write", "-", stdin=OLD)
    assert result.exit_code == 0 and result.stdout == NEW and "-:2: changed" in result.stderr


def test_json(old: Path) -> None:
    result = run("-o", "json", str(old))
    found = json.loads(result.stdout)
    assert found["files"][0]["changed"] and "+apiVersion: batch/v1\n" in found["files"][0]["diff"]
    (reported,) = found["told"]
    assert (reported["outcome"], reported["line"], reported["path"], reported["dialect"]) == (
        "changed",
        2,
        "apiVersion",
        "retired names",
    )


def test_an_unreadable_file_is_reported_and_never_written(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_bytes(b"kind: \xff\n")
    result = run("--write", str(tmp_path))
    assert result.exit_code == 1 and "is not UTF-8 text" in result.stdout
    assert broken.read_bytes() == b"kind: \xff\n"


def test_a_packed_file_is_read_and_not_written(tmp_path: Path) -> None:
    packed = tmp_path / "old.yaml.gz"
    packed.write_bytes(gzip.compress(OLD.encode()))
    assert "+apiVersion: batch/v1\n" in run(str(packed)).stdout
    result = run("--write", str(packed))
    assert result.exit_code == 1 and "compressed files are not changed" in result.stderr
    assert gzip.decompress(packed.read_bytes()) == OLD.encode()


def test_local_queues_of_one_file_are_known_in_another(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(LOST + "spec: {clusterQueue: team}\n")
    meta = "{name: p, labels: {kueue.x-k8s.io/queue-name: q}}"
    (tmp_path / "b.yaml").write_text(f"apiVersion: v1\nkind: Pod\nmetadata: {meta}\nspec: {{containers: []}}\n")
    run("--write", str(tmp_path))
    assert "dovetail.dev/queue: team" in (tmp_path / "b.yaml").read_text()


@pytest.mark.parametrize(
    "words", [[], ["-", "-"], ["--plan", "--write", "-"], ["--write", "-o", "json", "-"], ["--to", "slurm", "-"]]
)
def test_wrong_usage(words: list[str]) -> None:
    assert run(*words, stdin=OLD).exit_code == 2


def titles(*words: str) -> list[str]:
    result = run("--plan", *words)
    assert result.exit_code == 0
    return re.findall(r"^\d+\. (.*?):", result.stdout, re.MULTILINE)


def test_the_plan_has_what_the_files_need(old: Path) -> None:
    plain = titles(str(old))
    assert plain[:2] == ["the device plugin, or the GPU operator, on every GPU node", "the labels of the GPUs"]
    assert not any("DRA" in one or "JobSet" in one or "taken away" in one for one in plain)
    volcano = titles("--to", "native", str(CASES / "volcano.yaml"))
    needed = {"GPUs that are shared, as nvidia.com/gpu.shared", "PodGroups of Kubernetes", "JobSet"}
    assert needed | {"the scheduler volcano, taken away"} <= set(volcano)
    assert "NVIDIA's DRA driver" in titles("--to", "dra", str(CASES / "claims.yaml"))


def test_every_step_of_the_plan_has_its_check() -> None:
    result = run("--plan", "-o", "json", str(CASES / "kueue.yaml"))
    steps = json.loads(result.stdout)
    assert all(one["check"] and one["expect"] and one["why"] for one in steps)
    order = [one["title"] for one in steps]
    assert order.index("a first pod with one GPU") < order.index("one queue: team-a") < len(order) - 1
    assert any(f"dovetail migrate --write {CASES / 'kueue.yaml'}" in one["run"] for one in steps)
