# SPDX-License-Identifier: Apache-2.0
"""A real kubelet is restarted under a stream of pods: none of them is sent where it would be rejected for good."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.node.cluster import GPU, Cluster, pods, registered, running
from tools.node.node import Node

pytestmark = [pytest.mark.node, pytest.mark.slow]
RESTARTS = 2
ENDED = ("Succeeded", "Failed")


@pytest.fixture(scope="module")
def cluster(real_node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(real_node, tmp_path_factory.mktemp("restarts"), "restarts") as cluster:
        cluster.agent()
        cluster.scheduler()
        cluster.ready()
        yield cluster


def statuses(cluster: Cluster) -> dict[str, Any]:
    return {name: pod["status"] for name, pod in pods(cluster).items()}


def test_pods_that_come_while_the_kubelet_restarts_all_run(cluster: Cluster) -> None:
    names = [f"stream-{restart}-{i}" for restart in range(RESTARTS) for i in range(6)]
    for restart in range(RESTARTS):
        cluster.node.stop_kubelet()
        cluster.until(lambda: registered(cluster) == "False", "the agent reports that the kubelet is gone", 5)
        for i in range(6):
            cluster.pod(f"stream-{restart}-{i}", {GPU: 1, "cpu": "10m", "memory": "16Mi"}, args=("show", "1"))
        time.sleep(3)
        mine = {name: status for name, status in statuses(cluster).items() if name.startswith(f"stream-{restart}-")}
        assert {status["phase"] for status in mine.values()} == {"Pending"}
        assert all("PodScheduled" not in json.dumps(s) or '"False"' in json.dumps(s) for s in mine.values())
        cluster.node.start_kubelet()
        cluster.until(lambda: registered(cluster) == "True", "the kubelet has the plugin again")
        cluster.until(lambda: all(one["phase"] in ENDED for one in statuses(cluster).values()), "they end", 90)
    found = statuses(cluster)
    failed = {name: status.get("message") for name, status in found.items() if status["phase"] == "Failed"}
    assert failed == {} and set(found) == set(names)
