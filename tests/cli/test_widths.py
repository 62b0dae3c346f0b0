# SPDX-License-Identifier: Apache-2.0
"""What each command that looks prints on terminals from 20 to 200 columns, and in a pipe."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from dovetail.cli import cli
from tests.cli.listed_jobs import AT, EVIL, JOBS, cluster
from tests.terminal import environment

WIDTHS = (20, 60, 80, 200)
QUEUE = "a-queue-of-a-team-with-a-long-name"
COMMANDS = [
    line.split()
    for line in (
        "jobs --all",
        "jobs -o wide --all",
        "jobs no-such-job",
        "queue",
        "queue --basis",
        "nodes",
        "nodes -o wide",
        "why ml/next",
        "why ml/train",
        "why ml/big",
        "why ml/half",
        f"why {QUEUE}",
        "why ml/nxet",
        "priority ml/next",
        "priority ml/train",
        "share",
        "leases",
        "free",
        "free --shape 4x8xH100",
        "defrag ml/next",
        "whatif drain g1",
        "whatif add-nodes --like g1 --count 4",
        "drain g1 --dry-run",
        "topology g1",
        "topology m1",
        "topology g",
        f"share {QUEUE}",
        f"whatif stop {QUEUE}",
    )
]
NAMES = [*(name.partition("/")[2] for name in JOBS), "g1", "g2", "m1", QUEUE]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    documents: list[dict[str, Any]] = cluster()
    documents.append({"apiVersion": "dovetail.dev/v1alpha1", "kind": "Queue", "metadata": {"name": QUEUE}})
    for one in documents:
        if one["kind"] == "Pod":
            one["metadata"]["labels"]["dovetail.dev/queue"] = QUEUE
    found = tmp_path_factory.mktemp("cluster") / "cluster.yaml"
    found.write_text(yaml.safe_dump_all(documents))
    return str(found)


def run(file: str, command: list[str], width: int = 0) -> Result:
    """0: in a pipe."""
    result = CliRunner().invoke(
        cli, [*command, "-f", file, "--at", AT], env=environment(width) if width else {"COLUMNS": "20"}
    )
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


def words(text: str) -> set[str]:
    return set(re.split(r"[\s,;:()`'\"=]+", text))


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_names_are_whole_and_sentences_fit_at_every_width(file: str, command: list[str]) -> None:
    piped = run(file, command)
    known = {name for name in NAMES if name in words(piped.output)}
    for width in WIDTHS:
        shown = run(file, command, width)
        assert shown.exit_code == piped.exit_code
        assert known <= words(shown.output), f"{width} columns: {known - words(shown.output)}\n{shown.output}"
        for line in shown.stdout.splitlines():
            # A row of a table goes on in the next line of the terminal.
            assert len(line) <= width or "  " in line.strip() or " " not in line.strip(), f"{width} columns: {line!r}"
        for text in (piped.output, shown.output):
            assert "Traceback" not in text and EVIL not in text and not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text)


def test_all_commands_that_read_files_are_tried(file: str) -> None:
    reading = {
        name
        for name, command in cli.commands.items()
        if any(one.name == "at_ms" for one in command.params) or name == "whatif"
    }
    assert reading - {"simulate"} <= {command[0] for command in COMMANDS}
