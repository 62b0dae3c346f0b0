# SPDX-License-Identifier: Apache-2.0
"""Manifests as a careful engineer writes them: no rule finds anything in them, with and without nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dovetail.advice.lint.pods import templates_of
from dovetail.cli import cli
from tests.advice.lint.linted import objects

HERE = Path(__file__).parent
CORPUS, NODES = HERE / "corpus", HERE / "corpus-nodes.yaml"
FILES = sorted(CORPUS.iterdir())


def found(*args: str | Path) -> list[dict[str, Any]]:
    answer: list[dict[str, Any]] = json.loads(CliRunner().invoke(cli, ["lint", *map(str, args), "-o", "json"]).stdout)
    return answer


def printed(findings: list[dict[str, Any]]) -> list[str]:
    return [f"{one['rule']} {one['file']}:{one['line']} {one['object']}: {one['message']}" for one in findings]


def test_is_large_and_of_many_kinds() -> None:
    everything = [whole for file in FILES for whole in objects(file.read_text())]
    on_gpus = [whole for whole in everything if any(pod.uses_gpu for pod in templates_of(whole))]
    assert len(everything) >= 70
    assert len(on_gpus) >= 36
    assert len({whole.at("kind").text for whole in on_gpus}) >= 14
    assert len(list(objects(NODES.read_text()))) >= 6


@pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
def test_no_finding_on_one_file(file: Path) -> None:
    assert printed(found(file)) == []


def test_no_finding_on_all_of_it() -> None:
    assert printed(found(CORPUS)) == []


def test_no_finding_where_the_nodes_are_known() -> None:
    assert printed(found(CORPUS, "--inventory", NODES)) == []
