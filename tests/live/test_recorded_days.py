# SPDX-License-Identifier: Apache-2.0
"""What the scheduler decides on a cluster is recorded, and replayed to the same decisions."""

from __future__ import annotations

from pathlib import Path

from dovetail.recording.reader import find
from dovetail.recording.replay import replay
from tests.live.conftest import Cluster, eventually


async def test_two_starts_of_the_scheduler_are_two_runs_that_replay_equal(cluster: Cluster, tmp_path: Path) -> None:
    for name in "ab":
        await cluster.node(name)
    await cluster.pod_group("train", 3)
    async with cluster.scheduler(recording=tmp_path):
        for number in range(3):
            await cluster.pod(f"train{number}", 4, schedulingGroup={"podGroupName": "train"})
        await eventually(cluster.bound, lambda bound: len(bound) == 3)
        await cluster.pod("waits", 6)
        await cluster.reported("waits", "NoNodeFits")
    async with cluster.scheduler(recording=tmp_path):
        await cluster.delete(cluster.pods_path("train0"))
        await cluster.delete(cluster.pods_path("train1"))
        await cluster.delete(cluster.pods_path("train2"))
        await eventually(cluster.bound, lambda bound: set(bound) == {"waits"})
    runs, wrong = find([tmp_path])
    assert wrong == []
    first, second = (replay(run) for run in runs)
    assert (first.verdict, first.difference, first.problem) == ("equal", None, "")
    assert (second.verdict, second.difference, second.problem) == ("equal", None, "")
    assert first.decisions >= 4
    assert second.decisions >= 1
