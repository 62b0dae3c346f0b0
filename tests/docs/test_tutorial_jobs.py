# SPDX-License-Identifier: Apache-2.0
"""docs/tutorial-jobs.md: each command prints what the page shows, on the cluster of the demo."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from dovetail.cli import wait_report
from dovetail.cli.demo.objects import cluster, others
from tests.cli.clusters import CommandCluster, command_cluster
from tests.docs.pages import page

ELSEWHERE = ("dovetail demo", "export ")
VARYING = (
    (r"team-a/", "default/"),
    (r"gpu-node-[12]", "gpu-node"),
    (r"-[a-z0-9]{5}\b", "-hash"),
    (r"\d+-\d+-\d+ \d+:\d+:\d+", "time"),
    (r"\d+ s\b", "s"),
    (r"\b(root|ada)\b", "user"),
    (r"\s+", " "),
)
"""What differs from run to run, with what stands for it."""


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandCluster]:
    """The cluster as `dovetail demo --keep` leaves it, but for the namespace of the context."""
    monkeypatch.setattr(wait_report, "EVERY_S", 0.05)
    monkeypatch.setenv("LOGNAME", "ada")
    with command_cluster(tmp_path, *cluster(), *others(), scheduler=True) as found:
        found.eventually(
            lambda: [pod["metadata"]["name"] for pod in found.pods() if pod["spec"].get("nodeName")],
            lambda bound: {"eval-0", "eval-1", "notebook"} <= set(bound),
        )
        yield found


def same(line: str) -> str:
    for pattern, stands in VARYING:
        line = re.sub(pattern, stands, line)
    return line.strip()


@pytest.mark.slow
def test_each_command_prints_what_the_page_shows(demo: CommandCluster) -> None:
    shown = [found for block in page("docs/tutorial-jobs.md").blocks for found in block.commands]
    assert len(shown) > 12
    for command, printed in shown:
        if command.startswith(ELSEWHERE):
            continue
        if command.startswith("dovetail logs"):
            demo.eventually(lambda: demo.phases("first"), lambda found: found == ["Running"])
        if command == "dovetail why wide":
            demo.eventually(lambda: len(demo.phases("wide")), lambda found: found == 2)
        done = demo.run(*shlex.split(command)[1:])
        assert done.exit_code == 0, (command, done.output)
        lines = {same(line) for line in done.output.splitlines()}
        assert [line for line in printed if line.strip() and same(line) not in lines] == [], (command, done.output)
