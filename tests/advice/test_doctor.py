# SPDX-License-Identifier: Apache-2.0
"""`dovetail doctor`: each finding has a cluster that shows it, and a near miss; the command on a playground."""

from __future__ import annotations

import asyncio
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dovetail.advice.doctor import CHECKS, Node, Pending, Plugin, Seen, examine
from dovetail.cli import cli
from dovetail.cli.doctor import Answer
from dovetail.playground import Fault, Playground
from tests.docs.pages import page

GPU = {"nvidia.com/gpu.present": "true"}
FULL = Seen((Node("a", GPU, {"nvidia.com/gpu": 8}),), (Plugin("kube-system/p", "a"),), (), {})
BARE = replace(FULL, nodes=(Node("a", GPU, {"nvidia.com/gpu": 0}),))
DRA = {"gpu.nvidia.com": frozenset({"a"})}
WAITS = Pending("default/w", "default-scheduler", False, "Unschedulable", "0/1 nodes")
CASES = [
    ("node-without-gpus/no-plugin", replace(BARE, plugins=()), replace(BARE, plugins=(), drivers=DRA)),
    ("node-without-gpus/no-plugin", replace(BARE, plugins=(Plugin("k/p", "b"),)), BARE),
    ("node-without-gpus/silent-plugin", BARE, replace(BARE, nodes=(Node("a", {}, {}),))),
    ("node-without-gpus/mig-failed", replace(FULL, nodes=(Node("a", {"nvidia.com/mig.config.state": "failed"}, {}),)),
     replace(FULL, nodes=(Node("a", {"nvidia.com/mig.config.state": "success"}, {}),))),
    ("device-plugins/two-on-one-node", replace(FULL, plugins=(Plugin("k/p", "a"), Plugin("k/q", "a"))),
     replace(FULL, plugins=(Plugin("k/p", "a"), Plugin("k/q", "b")))),
    ("device-plugins/beside-dra", replace(FULL, drivers=DRA), replace(FULL, drivers={"nic.example": frozenset({"a"})})),
    ("pod-pending/unscheduled", replace(FULL, pending=(WAITS,)), replace(FULL, pending=(replace(WAITS, reason=""),))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "wrong", "near"), CASES)
def test_found_and_nearly(name: str, wrong: Seen, near: Seen) -> None:
    assert name in {one.id for one in examine(wrong)}
    assert name not in {one.id for one in examine(near)}


def test_every_check_has_a_case_and_a_row() -> None:
    rows = page("docs/reference/cli.md").section("dovetail doctor").rows("finding")
    assert {one.id for one in CHECKS} == {case[0] for case in CASES}
    assert [(row.code[0][0], row.code[1][0]) for row in rows] == [(one.id, one.level) for one in CHECKS]
    told = page("docs/reference/cli.md").section("dovetail doctor").rows("field")
    assert [row.code[0][0] for row in told] == [one.name for one in fields(Answer)]


def test_what_was_not_read_is_not_judged() -> None:
    assert examine(replace(BARE, plugins=None)) == ()


async def doctor(kubeconfig: Path) -> tuple[int, dict[str, Any]]:
    arguments = ["doctor", "--kubeconfig", str(kubeconfig), "-o", "json"]
    result = await asyncio.to_thread(CliRunner().invoke, cli, arguments)
    return result.exit_code, json.loads(result.stdout)


async def test_on_a_playground(tmp_path: Path) -> None:
    playground = Playground()
    await playground.start()
    kubeconfig = playground.kubeconfig(tmp_path / "kubeconfig")
    try:
        assert await doctor(kubeconfig) == (0, {"findings": [], "left_out": [], "unread": []})
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "labels": GPU}}
        playground.put({**node, "status": {"allocatable": {"cpu": "8"}}})
        code, answer = await doctor(kubeconfig)
        assert (code, [one["id"] for one in answer["findings"]]) == (1, ["node-without-gpus/no-plugin"])
        shown = await asyncio.to_thread(CliRunner().invoke, cli, ["doctor", "--kubeconfig", str(kubeconfig)])
        assert "label nvidia.com/gpu.present=true" in shown.output and "1 finding of 6 checks." in shown.output
        playground.faults.add(Fault("answer", "GET", "pods", times=1, status=403))
        code, answer = await doctor(kubeconfig)
        assert (code, answer["findings"]) == (0, [])
        assert "node-without-gpus/no-plugin" in answer["left_out"] and "pods" in answer["unread"][0]
    finally:
        await playground.stop()
    gone = await asyncio.to_thread(CliRunner().invoke, cli, ["doctor", "--kubeconfig", str(kubeconfig)])
    assert gone.exit_code == 1 and "no reply" in gone.output


def pod(name: str, container: dict[str, Any], labels: dict[str, str], node: str = "") -> dict[str, Any]:
    spec = {"nodeName": node, "containers": [{"image": "none", **container}]} if node else {"containers": [container]}
    meta = {"name": name, "namespace": "default", "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"schedulerName": "dovetail", **spec}}


AGENT = {"app.kubernetes.io/name": "dovetail-agent"}


@pytest.mark.parametrize(
    ("container", "labels", "found"),
    [
        ({"name": "nvidia-device-plugin-ctr"}, {}, "silent-plugin"),
        ({"name": "gpu-feature-discovery-ctr"}, {}, "no-plugin"),
        ({"name": "agent", "args": ["agent", "run"]}, AGENT, "silent-plugin"),
        ({"name": "agent", "args": ["agent", "run", "--claims", "--no-device-plugin"]}, AGENT, "no-plugin"),
    ],
)
async def test_who_is_a_device_plugin(
    tmp_path: Path, container: dict[str, Any], labels: dict[str, str], found: str
) -> None:
    playground = Playground()
    await playground.start()
    try:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "labels": GPU}}
        playground.put({**node, "status": {"allocatable": {"cpu": "8"}}})
        playground.put({**pod("p", container, labels, "a"), "status": {"phase": "Running"}})
        wanting = {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
        playground.put({**pod("w", wanting, {}), "status": {"phase": "Pending", "conditions": [said]}})
        _, answer = await doctor(playground.kubeconfig(tmp_path / "kubeconfig"))
    finally:
        await playground.stop()
    assert [one["id"] for one in answer["findings"]] == [f"node-without-gpus/{found}", "pod-pending/unscheduled"]
    assert (
        answer["findings"][1]["fix"] == "dovetail why -n default w" and "no room" in answer["findings"][1]["evidence"]
    )
