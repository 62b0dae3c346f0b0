# SPDX-License-Identifier: Apache-2.0
"""What `dovetail why` prints of files: for the time of a snapshot, and without control characters."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from dovetail.cli import cli
from dovetail.cli.output import printable
from dovetail.kube.translate.durations import duration_ms
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
