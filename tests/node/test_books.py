# SPDX-License-Identifier: Apache-2.0
"""The scheduler's accounts of a node, device by device, equal its kubelet's allocations, under restarts of any part.

The books are those of the process that decides: its recording is decided again up to now. They are held against the
kubelet's PodResources and against the checkpoint of its device manager.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dovetail.agent.apis.serving import SocketError
from dovetail.core.cluster import Cluster as Books
from dovetail.recording.reader import find
from dovetail.recording.replay import Player, Replay
from tests.breadth import BREADTH
from tests.node.cluster import GPU, Cluster, on_the_way, pods, registered, running
from tools.node.gpus import real_devices
from tools.node.node import Node

pytestmark = [pytest.mark.node, pytest.mark.slow]
DOWN_S = float(os.environ.get("DOVETAIL_BOOKS_DOWN_S", "5"))
"""How long the kubelet is away."""
ROUNDS = int(os.environ.get("DOVETAIL_BOOKS_ROUNDS", "1"))
"""How often everything happens."""
PODS = int(os.environ.get("DOVETAIL_BOOKS_PODS", "4"))
"""That come with each of the things that happen."""
SHARED, SLICE = "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"
CONFIGS = {
    "shared": "version: v1\nsharing: {timeSlicing: {renameByDefault: true, failRequestsGreaterThanOne: true,"
    f" resources: [{{name: {GPU}, replicas: 2}}]}}}}\n",
    "divided": "version: v1\nflags: {migStrategy: mixed}\n",
}
RESOURCES = {"whole": (GPU, 8), "shared": (SHARED, 16), "divided": (SLICE, 56)}
# Prints the MIG devices of a machine: uuid, index of the GPU and where the instance begins.
MIG_DEVICES = """
import pynvml as nvml
nvml.nvmlInit()
for index in range(nvml.nvmlDeviceGetCount()):
    gpu = nvml.nvmlDeviceGetHandleByIndex(index)
    for i in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, i)
        except nvml.NVMLError_NotFound:
            continue
        part = nvml.nvmlDeviceGetGpuInstanceById(gpu, nvml.nvmlDeviceGetGpuInstanceId(mig))
        print(nvml.nvmlDeviceGetUUID(mig), index, nvml.nvmlGpuInstanceGetInfo(part).placement.start)
"""
Devices = tuple[str, ...]
"""Such as 3, and of an instance 3@4: the index of the GPU and where it begins. Sorted."""


class Scene:
    """A cluster whose scheduler records, and the names of its node's devices."""

    def __init__(self, cluster: Cluster, kind: str) -> None:
        self.cluster = cluster
        self.resource, self.count = RESOURCES[kind]
        self.recording = cluster.folder / "recording"
        self.options = ["--labels"] if kind != "divided" else ["--labels", "--mig"]
        if kind in CONFIGS:
            config = cluster.folder / "config.yaml"
            config.write_text(CONFIGS[kind])
            self.options.append(f"--config={config}")
        self.caught: set[str] = set()
        """The pods that were on the way when the kubelet was killed."""
        self._begin_agent()
        if kind == "divided":
            node = cluster.node
            node.plane.kubectl("label", "node", node.name, "nvidia.com/mig.config=all-1g.5gb")
            cluster.until(lambda: cluster.allocatable(SLICE) == self.count, "the instances are allocatable", 120)
            real_devices(cluster.standin.dev)
        self._begin_scheduler()
        self.ready()
        self.names = {gpu["uuid"]: str(gpu["index"]) for gpu in cluster.gpu_node()["gpus"]}
        if kind == "divided":
            environment = os.environ | cluster.standin.environment
            command = [sys.executable, "-c", MIG_DEVICES]
            listed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
            self.names |= {uuid: f"{index}@{start}" for uuid, index, start in map(str.split, listed.splitlines())}

    def ready(self) -> None:
        cluster = self.cluster
        cluster.until(lambda: cluster.allocatable(self.resource) == self.count, "the devices are allocatable")
        cluster.until(lambda: registered(cluster) == "True", "the kubelet has the plugin", 60)

    def _begin_agent(self) -> None:
        self.agent = self.cluster.agent(*self.options)

    def _begin_scheduler(self) -> None:
        self.scheduler = self.cluster.scheduler(recording=self.recording)

    def restart_agent(self) -> None:
        self.cluster.stop(self.agent)
        self._begin_agent()

    def restart_scheduler(self) -> None:
        self.scheduler.kill()
        self.scheduler.wait()
        self._begin_scheduler()

    def restart_both(self) -> None:
        self.scheduler.kill()
        self.restart_agent()
        self.scheduler.wait()
        self._begin_scheduler()

    def restart_kubelet(self) -> None:
        # The kubelet itself fails pods whose containers it was making: also while it is stopped.
        self.caught |= on_the_way(self.cluster)
        self.cluster.node.stop_kubelet()
        self.cluster.until(
            lambda: registered(self.cluster) == "False", "the agent reports that the kubelet is gone", 10
        )
        # Pods that are not bound by now wait until there is a kubelet.
        self.caught |= on_the_way(self.cluster)
        time.sleep(DOWN_S)
        self.cluster.node.start_kubelet()

    def named(self, ids: list[str]) -> Devices:
        return tuple(sorted(self.names[one.partition("::")[0]] for one in ids))

    # What each pod has, by uid.

    def books(self) -> dict[str, Devices]:
        """By the scheduler."""
        runs, wrong = find([self.recording])
        assert wrong == []
        player = Player(Replay("", "", ""), lambda _: None)
        player.play(runs[-1])
        books = player.state.cluster
        assert books.check() == []
        return {uid: held for uid in books.placements if (held := _held(books, uid))}

    def pod_resources(self, uids: dict[str, str]) -> dict[str, Devices]:
        """By the kubelet's service; `uids` of the pods by name."""
        listed = asyncio.run(self.cluster.node.pod_resources.list())
        mine = [one for one in listed if one.namespace == self.cluster.namespace]
        return {uids.get(one.name, one.name): self.named([*ids]) for one in mine if (ids := one.ids(self.resource))}

    def checkpoint(self) -> dict[str, Devices]:
        """By what the kubelet's device manager has written down."""
        path = self.cluster.node.device_plugins / "kubelet_internal_checkpoint"
        found: dict[str, list[str]] = {}
        for entry in json.loads(path.read_text())["Data"]["PodDeviceEntries"] or ():
            if entry["ResourceName"] == self.resource:
                ids = [one for some in entry["DeviceIDs"].values() for one in some]
                found.setdefault(entry["PodUID"], []).extend(ids)
        return {uid: self.named(ids) for uid, ids in found.items()}

    def differences(self) -> list[str]:
        """The differences, one sentence each; none where all agree on the devices of each pod."""
        there = pods(self.cluster)
        uids = {name: pod["metadata"]["uid"] for name, pod in there.items()}
        name_of = {uid: name for name, uid in uids.items()}
        active = {uids[name] for name, pod in there.items() if pod["status"]["phase"] in ("Pending", "Running")}
        try:
            views = {"the books": self.books(), "PodResources": self.pod_resources(uids)}
        except SocketError as error:
            return [f"the kubelet does not report: {error}"]
        # The device manager forgets pods that have ended when it is next asked for devices.
        views["the checkpoint"] = {uid: held for uid, held in self.checkpoint().items() if uid in active}
        wrong = []
        for uid in sorted({uid for held in views.values() for uid in held}):
            if len({held.get(uid, ()) for held in views.values()}) > 1:
                differences = ", ".join(
                    f"{view}: {','.join(held.get(uid, ('nothing',)))}" for view, held in views.items()
                )
                wrong.append(f"{name_of.get(uid, uid)}: {differences}")
        free = Counter(device for held in views["PodResources"].values() for device in held)
        most = 2 if self.resource == SHARED else 1
        wrong += [f"{device} is allocated {count} times" for device, count in free.items() if count > most]
        return wrong


def _held(books: Books, uid: str) -> Devices:
    placement = books.placements[uid]
    instances = books.slices.instances(placement)
    return tuple(sorted([*map(str, placement.devices), *(f"{one.gpu}@{one.start}" for one in instances)]))


@contextmanager
def coming(create: Callable[[int], object], count: int, every_s: float) -> Iterator[None]:
    """Pods come while something else happens; at the end all are there."""

    def work() -> None:
        for number in range(count):
            create(number)
            time.sleep(every_s)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@pytest.fixture(params=sorted(RESOURCES)[:BREADTH])
def scene(request: pytest.FixtureRequest, real_node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder: Path = tmp_path_factory.mktemp(f"books-{request.param}")
    with running(real_node, folder, folder.name) as cluster:
        try:
            yield Scene(cluster, request.param)
        finally:
            cluster.delete("--all")
            real_node.plane.kubectl("label", "node", real_node.name, "nvidia.com/mig.config-")


def test_the_accounts_equal_the_kubelets_allocations(scene: Scene) -> None:
    cluster, dice = scene.cluster, random.Random(1)
    most = 3 if scene.resource == GPU else 1

    def settled() -> None:
        def done() -> bool:
            found = {name: pod["status"]["phase"] for name, pod in pods(cluster).items()}
            return all(
                phase in ("Succeeded", "Failed") or (phase == "Running" and name.startswith("stays"))
                for name, phase in found.items()
            )

        cluster.until(done, "all pods have ended, but those that stay", 90 + DOWN_S)
        wrong: list[str] = []

        def agreed() -> bool:
            wrong[:] = scene.differences()
            return not wrong

        try:
            cluster.until(agreed, "", 20)
        except TimeoutError:
            raise AssertionError(wrong) from None

    # Some pods of each scheduler end: an account that counted devices from zero would move those of the others.
    for name, foreign in (("goes-0", True), ("stays-0", True), ("goes-1", False), ("stays-1", False)):
        where = {"scheduler": "other", "nodeName": cluster.node.name} if foreign else {}
        cluster.pod(name, {scene.resource: 1}, **where)  # type: ignore[arg-type]
        cluster.until(lambda name=name: cluster.phase(name) == "Running", f"{name} runs")  # type: ignore[misc]
    cluster.delete("goes-0", "goes-1")
    settled()
    for number in range(ROUNDS):
        happens = (scene.restart_scheduler, scene.restart_agent, scene.restart_both, scene.restart_kubelet)
        for happening in dice.sample(happens, len(happens)):
            name = f"r{number}-{happening.__name__.replace('_', '-')}"
            sizes = [(dice.randint(1, most), dice.randint(1, 3)) for _ in range(PODS)]

            def create(i: int, name: str = name, sizes: list[tuple[int, int]] = sizes) -> None:
                cluster.pod(f"{name}-{i}", {scene.resource: sizes[i][0]}, args=("show", str(sizes[i][1])))

            with coming(create, PODS, 0.5):
                time.sleep(1)
                happening()
            scene.ready()
            settled()
    statuses = {name: pod["status"] for name, pod in pods(cluster).items()}
    failed = {name: why(status) for name, status in statuses.items() if status["phase"] == "Failed"}
    assert {name: reason for name, reason in failed.items() if name not in scene.caught} == {}
    print(f"{len(statuses)} pods, {len(scene.caught)} on the way when the kubelet was killed; failed: {failed}")


def why(status: dict[str, Any]) -> list[str]:
    """The reason and message of a pod that failed, and of its containers."""
    ended = [one["state"].get("terminated", {}) for one in status.get("containerStatuses", ())]
    reasons = [f"{one.get('reason', '')}: {one.get('message', '')}" for one in (status, *ended)]
    return [text for text in reasons if text != ": "]
