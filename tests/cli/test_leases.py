# SPDX-License-Identifier: Apache-2.0
"""`dovetail leases`, as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from dovetail.cli import cli
from tests.views.agents import AT, CLUSTER, Document, lease, plane, request


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def run(folder: Path, documents: Iterable[Document], *arguments: str) -> Result:
    file = folder / "cluster.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    arguments = ("leases", *arguments, "-f", str(file), "--at", AT)
    return CliRunner().invoke(cli, arguments, env={"COLUMNS": "200"})


def lines(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [" ".join(line.split()) for line in result.stdout.splitlines()]


def test_the_tables(folder: Path) -> None:
    found = lines(run(folder, CLUSTER))
    assert "ada/train ada/ada Burst 8 GPUs on n1 0,1,2,3,4,5,6,7 Active in 20 min 0 ada/worker" in found
    assert "bob/small bob/bob Burst 2 GPUs on n2 0,1 Revoking in 40 s 2 none" in found
    assert "bob/small is taken back (NodeMaintenance), 40 s are left: its node has to get empty." in found
    assert "ada/train is named by ada/full, ada/stale, which wait." in found
    (many,) = [line for line in found if line.startswith("bob/many bob/bob")]
    assert many.endswith("or 1 other Offered 10 min 1 offer, which stands for 10 s more")
    (train,) = [line for line in found if line.startswith("bob/train bob/bob")]
    assert train.endswith("GangDoesNotFit: it waits; it starts in 20 min at the latest")
    assert "bob/many.1.0 now 1 GPU, for 1h, Burst 1 is free" in found
    (cy,) = [line for line in found if line.startswith("cy/cy agents Silent")]
    assert "10 s ago" in cy


def test_what_belongs_to_one_plane_and_to_none(folder: Path) -> None:
    found = "\n".join(lines(run(folder, CLUSTER, "cy/cy")))
    assert "No lease is live." in found and "cy/one" in found and "bob/" not in found
    result = run(folder, CLUSTER, "nobody")
    assert result.exit_code == 1 and "no namespace and no control plane is called nobody" in result.output


def test_all_of_it_as_json(folder: Path) -> None:
    found: Any = json.loads(run(folder, CLUSTER, "-o", "json").stdout)
    assert {name: len(found[name]) for name in ("planes", "requests", "leases")} == {
        "planes": 3, "requests": 3, "leases": 2,
    }  # fmt: skip
    assert found["leases"][0]["class"] == "Burst"


def test_a_cluster_without_agents(folder: Path) -> None:
    (line,) = lines(run(folder, CLUSTER[:1]))
    assert line == "There is no control plane of a software agent, no request for a lease, and no lease."


def test_what_agents_write_is_neither_markup_nor_a_command_for_the_terminal(folder: Path) -> None:
    bad = "[bold]a\x1b[2Jb\u202ec"
    status = {"state": bad, "reason": bad, "message": bad + "x" * 5000}
    revoked = {"state": bad, "revocation": {"cause": bad, "deadline": AT, "message": bad}, "refused": bad}
    documents = [
        plane("ada", bad), lease("ada", "a", bad, (0,), revoked), request("ada", "r", {"models": [bad]}, status=status),
        lease("ada", "b", "n", (0,), {"cause": bad, "state": "Ended", "ended": AT}),
    ]  # fmt: skip
    result = run(folder, documents)
    assert result.exit_code == 0, result.output
    assert "[bold]a [2Jb c" in result.stdout
    assert not [c for c in result.stdout if not c.isprintable() and c != "\n"]
