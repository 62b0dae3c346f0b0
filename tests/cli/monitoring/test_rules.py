# SPDX-License-Identifier: Apache-2.0
"""`dovetail monitoring rules`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from dovetail.cli import cli
from dovetail.monitoring.rules import GROUPS
from dovetail.monitoring.thresholds import resolved
from tests.paths import ROOT


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["monitoring", "rules", *arguments])


@pytest.mark.parametrize(("arguments", "file"), [((), "rules.yaml"), (("-o", "crd"), "prometheusrule.yaml")])
def test_it_writes_the_committed_files(arguments: tuple[str, ...], file: str) -> None:
    assert run(*arguments).output == (ROOT / "deploy/monitoring" / file).read_text()


def test_thresholds_replace_defaults_and_the_url_is_that_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("idle_util: 0.123\nidle_job: 2h\n")
    made = run("--thresholds", str(tmp_path / "mine.yaml"), "--runbooks", "https://wiki/alerts").output
    (alert,) = [r for g in yaml.safe_load(made)["groups"] for r in g["rules"] if r.get("alert") == "IdleAllocated"]
    assert alert["for"] == "2h"
    assert alert["annotations"]["runbook_url"] == "https://wiki/alerts#idleallocated"
    assert "< bool 0.123" in made


def test_the_written_thresholds_can_be_read_again(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("low_util: 0.2\n")
    written = run("-o", "thresholds", "--thresholds", str(tmp_path / "mine.yaml")).output
    assert yaml.safe_load(written) == resolved({"low_util": 0.2})
    (tmp_path / "all.yaml").write_text(written)
    made = run("--thresholds", str(tmp_path / "all.yaml")).output
    assert len(yaml.safe_load(made)["groups"]) == len(GROUPS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("idle_utl: 1", "did you mean 'idle_util'"),
        ("idle_util: [1]", "is no value in ratio"),
        ("- a", "must have lines"),
        ("a: [", "it is no YAML"),
        ("", "must have lines"),
    ],
)
def test_a_wrong_file_is_one_line_with_its_name(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    result = run("--thresholds", str(tmp_path / "mine.yaml"))
    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 1
    assert "mine.yaml" in result.output and reason in result.output
