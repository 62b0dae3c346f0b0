# SPDX-License-Identifier: Apache-2.0
"""What `dovetail why` prints of files: for the time of a snapshot, and without control characters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dovetail.cli import cli
from dovetail.cli.console import Console
from dovetail.cli.output import printable
from dovetail.cli.why_report import show
from dovetail.core.devices.collectives import AllReduce
from dovetail.kube.translate.durations import duration_ms
from dovetail.views.why_types import GangView, Why
from tests.bound import bound
from tests.cli.listed_jobs import AT, EVIL, Document, cluster

RECORD = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "Snapshot", "takenAt": AT, "dovetail": "9"}


def recorded(item: Document) -> Document:
    """With what the scheduler wrote down when it bound the pod: of a snapshot nothing else is believed."""
    if not item.get("spec", {}).get("nodeName"):
        return item
    meta = item["metadata"]
    uid, runs = f"u-{meta['name']}", meta["annotations"].get("dovetail.dev/max-runtime", "")
    record = bound(uid, max_runtime_ms=duration_ms(runs) if runs else 0)
    return item | {"metadata": meta | {"uid": uid, "annotations": meta["annotations"] | record}}


def printed(folder: Path, *arguments: str, snapshot: bool = False) -> str:
    file = folder / "cluster.json"
    items = [RECORD, *map(recorded, cluster())] if snapshot else cluster()
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    done = CliRunner().invoke(cli, ["why", *arguments, "-f", str(file)])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_starts_are_relative_to_the_time_of_the_snapshot(tmp_path: Path) -> None:
    text = printed(tmp_path, "ml/next", snapshot=True)
    assert "Starts in 3 h: " in text
    assert text == printed(tmp_path, "ml/next", "--at", AT)


def test_holders_are_named_without_control_characters(tmp_path: Path) -> None:
    text = printed(tmp_path, "ml/next", "--at", AT)
    assert "\x1b" not in text and f"\n{printable(f'ml/{EVIL}')} " in text
    assert printed(tmp_path, f"ml/{EVIL}", "--at", AT).startswith(f"{printable(f'ml/{EVIL}')} is on node g5")


def test_a_gang_has_its_expected_all_reduce(capsys: pytest.CaptureFixture[str]) -> None:
    expected = AllReduce("ring", 5_000_000, 383_100, "dovetail.dev/rack")
    gang = GangView("g", 2, 2, 2, (), ())
    show(Why("ml/w0", "Bound", node="a", gang=gang, all_reduce=expected), Console(), 0)
    assert (
        "Expected: all-reduce at 383.1 GB/s at most (ring), inside one dovetail.dev/rack.\n" in capsys.readouterr().out
    )
    # The links between the GPUs of a pod on its own are in its first line.
    show(Why("ml/w0", "Bound", node="a", all_reduce=expected), Console(), 0)
    assert "Expected" not in capsys.readouterr().out
