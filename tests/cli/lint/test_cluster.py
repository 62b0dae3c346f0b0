# SPDX-License-Identifier: Apache-2.0
"""`dovetail lint --cluster` on a playground: what is a guess without a cluster is exact with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dovetail.cli import cli
from dovetail.playground import Fault, Playground

LARGE = """\
apiVersion: v1
kind: Pod
metadata: {name: large, labels: {team: vision}}
spec:
  schedulerName: yunikorn
  nodeSelector: {pool: train}
  containers: [{name: a, image: 'a:1', resources: {limits: {nvidia.com/gpu: 9}}}]
"""
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "gpu-1", "labels": {"pool": "serve"}},
    "status": {"allocatable": {"cpu": "64", "pods": "110", "nvidia.com/gpu": "8"}},
}
BOUND = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "old", "namespace": "default"},
    "spec": {"nodeName": "gpu-1", "schedulerName": "yunikorn", "containers": [{"name": "a", "image": "a:1"}]},
}


@pytest.fixture
async def playground() -> AsyncIterator[Playground]:
    found = Playground()
    await found.start()
    found.put(NODE)
    try:
        yield found
    finally:
        await found.stop()


async def lint(playground: Playground, tmp_path: Path, *options: str) -> Result:
    config = playground.kubeconfig(tmp_path / "kubeconfig")
    manifest = tmp_path / "large.yaml"
    manifest.write_text(LARGE)
    args = ["lint", str(manifest), "--cluster", "--kubeconfig", str(config), *options]
    return await asyncio.to_thread(CliRunner().invoke, cli, args)


async def found(playground: Playground, tmp_path: Path) -> dict[str, dict[str, Any]]:
    answer = json.loads((await lint(playground, tmp_path, "-o", "json")).stdout)
    return {one["rule"]: one for one in answer}


async def test_the_nodes_of_the_cluster_make_guesses_exact(playground: Playground, tmp_path: Path) -> None:
    rules = await found(playground, tmp_path)
    assert not rules["G10"]["guess"] and "no node has pool: train" in rules["G10"]["message"]
    assert not rules["G11"]["guess"] and "the largest node gpu-1 has 8" in rules["G11"]["message"]


async def test_a_scheduler_that_has_bound_pods_is_there(playground: Playground, tmp_path: Path) -> None:
    assert "yunikorn" in (await found(playground, tmp_path))["G13"]["message"]
    playground.put(BOUND)
    assert "G13" not in await found(playground, tmp_path)


async def test_a_forbidden_list_is_named_and_leaves_out_what_needs_it(playground: Playground, tmp_path: Path) -> None:
    playground.faults.add(Fault("answer", "GET", "pods", status=403))
    result = await lint(playground, tmp_path)
    assert "not read: " in result.stderr and "pods" in result.stderr
    assert "G11" in result.stdout and "G13" not in result.stdout


async def test_without_the_nodes_nothing_is_known(playground: Playground, tmp_path: Path) -> None:
    playground.faults.add(Fault("answer", "GET", "nodes", status=403))
    result = await lint(playground, tmp_path)
    assert result.exit_code == 3
    assert "--cluster needs the nodes" in result.stderr
