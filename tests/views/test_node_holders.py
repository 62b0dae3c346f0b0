# SPDX-License-Identifier: Apache-2.0
"""The pods that hold GPUs of a node: whole, in parts, of this scheduler and of others."""

from __future__ import annotations

from pathlib import Path

from dovetail.views.held_types import NodeHolder
from dovetail.views.node_holders import node_holders
from tests.bound import bound
from tests.cli.listed_jobs import GPU, SLICE, Document, gang, node, pod
from tests.cli.watch.watched import source, write


def holders(folder: Path, name: str, *documents: Document) -> tuple[NodeHolder, ...]:
    return node_holders(source(write(folder, list(documents))).state(), name)


def test_whole_gpus_of_a_gang_and_of_another_scheduler(tmp_path: Path) -> None:
    other = pod("other", {GPU: "2"}, "g1")
    other["spec"]["schedulerName"] = "default-scheduler"
    cpus = pod("cpus", {"cpu": "4"}, "g1")
    found = holders(tmp_path, "g1", node("g1"), node("g2"), *gang("train", "4", ("g1", "g2")), other, cpus)
    assert found == (
        NodeHolder("ml/other", "", "", "", 2, None, ()),
        NodeHolder("ml/train-0-abcde", "ml/train", "ada", "default", 4, None, ()),
    )


def test_recorded_gpus_come_first_in_their_order(tmp_path: Path) -> None:
    pods = [pod(name, {GPU: "2"}, "g1") for name in ("a", "b", "c")]
    for one, gpus in ((pods[0], "6,7"), (pods[1], "0,1")):
        one["metadata"] |= {"uid": gpus, "annotations": bound(gpus, gpus)}
    found = holders(tmp_path, "g1", node("g1"), *pods)
    assert [(one.pod, one.gpus) for one in found] == [("ml/b", (0, 1)), ("ml/a", (6, 7)), ("ml/c", None)]


def test_mig_instances(tmp_path: Path) -> None:
    (found,) = holders(tmp_path, "m1", node("m1", **{SLICE: "7"}), pod("slice", {SLICE: "2"}, "m1"))
    assert (found.pod, found.job, found.count) == ("ml/slice", "ml/slice", 0)
    assert [(one.kind, one.device.partition("@")[0]) for one in found.parts] == [("instance", "8/1g.10gb")] * 2


def test_a_node_that_does_not_exist_has_none(tmp_path: Path) -> None:
    assert holders(tmp_path, "nowhere", node("g1"), pod("a", {GPU: "1"}, "g1")) == ()
