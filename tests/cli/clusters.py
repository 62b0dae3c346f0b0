# SPDX-License-Identifier: Apache-2.0
"""A playground in a thread of its own, so that commands run against it as a user runs them; with a scheduler, where a
test wants one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml
from click.testing import CliRunner, Result

from dovetail.cli import cli
from dovetail.core.policy import Policy
from dovetail.kube.api.config import load_config
from dovetail.playground import Playground
from dovetail.scheduler.serve import SchedulerOptions, run
from tests.paths import ROOT
from tests.patience import PATIENCE_S

T = TypeVar("T")
BRIEF = """
from dovetail.cli import main, wait_report
wait_report.EVERY_S = 0.05
main()
"""
"""The command, which looks more often than for users."""
Document = dict[str, Any]
JOB_SETS: Document = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "jobsets.jobset.x-k8s.io"},
    "spec": {
        "group": "jobset.x-k8s.io", "scope": "Namespaced",
        "names": {"plural": "jobsets", "singular": "jobset", "kind": "JobSet", "listKind": "JobSetList"},
        "versions": [
            {
                "name": "v1alpha2", "served": True, "storage": True, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}  # fmt: skip
H100 = "NVIDIA-H100-80GB-HBM3"


def node(name: str, gpus: int = 8, product: str = H100) -> Document:
    amounts = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": str(gpus)}
    labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": product}
    return {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": amounts, "capacity": amounts},
    }  # fmt: skip


class CommandCluster:
    """A playground with the namespace team-a, which is the context's; commands are run on it."""

    def __init__(self, playground: Playground, loop: asyncio.AbstractEventLoop, config: Path) -> None:
        self.playground = playground
        self.config = config
        self._loop = loop

    def do(self, work: Callable[[], T]) -> T:
        """Work in the thread of the playground."""

        async def done() -> T:
            return work()

        return self.wait(done())

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def put(self, *documents: Document) -> None:
        self.do(lambda: [self.playground.put(document) for document in documents])

    def put_raw(self, *documents: Document) -> None:
        """Store the objects as they are, with their uids and times."""
        self.do(lambda: [self.playground.put_raw(document) for document in documents])

    def get(self, collection: str, name: str, namespace: str = "team-a") -> Document | None:
        return self.do(lambda: self.playground.store.get(collection, namespace, name))

    def names(self, collection: str) -> list[str]:
        found = self.do(lambda: list(self.playground.store.collection(collection).objects))
        return sorted(name for _, name in found)

    def pods(self) -> list[Document]:
        return self.do(lambda: list(self.playground.store.collection("pods").objects.values()))

    def run(self, *arguments: str, stdin: str | None = None) -> Result:
        """A command with the kubeconfig of the playground."""
        environment = {"KUBECONFIG": str(self.config), "COLUMNS": "200"}
        return CliRunner().invoke(cli, list(arguments), env=environment, input=stdin)

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """The same as a process of its own, which goes on meanwhile."""
        program = [sys.executable, "-c", BRIEF, *arguments]
        environment = os.environ | {"KUBECONFIG": str(self.config), "PYTHONPATH": ":".join(sys.path), "COLUMNS": "200"}
        return subprocess.Popen(
            program,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def eventually(self, question: Callable[[], T], wanted: Callable[[T], bool]) -> T:
        deadline = time.monotonic() + PATIENCE_S
        while not wanted(answer := question()):
            assert time.monotonic() < deadline, answer
            time.sleep(0.05)
        return answer

    def phases(self, job: str) -> list[str]:
        """The phases of the pods of a Job."""
        label = "batch.kubernetes.io/job-name"
        mine = [pod for pod in self.pods() if pod["metadata"].get("labels", {}).get(label) == job]
        return sorted(pod.get("status", {}).get("phase", "") for pod in mine)


@contextmanager
def command_cluster(
    folder: Path, *documents: Document, scheduler: bool = False, still: bool = False
) -> Iterator[CommandCluster]:
    """A playground that serves Queues and has these objects; with a scheduler on request. `still`: no kubelet and no
    controller changes them, and it has nothing else."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def wait(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE_S)

    async def begin() -> Playground:
        found = Playground(start_delay_s=0.01, stop_delay_s=0.01)
        await found.start(still=still)
        for name in ("queue", "gpunode"):
            for document in yaml.safe_load_all((ROOT / f"deploy/crds/{name}.yaml").read_text()):
                found.put(document)
        for name in ("team-a", "dovetail-system"):
            found.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for document in documents:
            found.put(document)
        return found

    playground = wait(begin())
    config = folder / "kubeconfig"
    text = yaml.safe_load(playground.kubeconfig(config).read_text())
    text["contexts"][0]["context"]["namespace"] = "team-a"
    config.write_text(yaml.safe_dump(text))
    tasks: list[asyncio.Task[None]] = []

    async def schedule() -> None:
        options = SchedulerOptions(leader_elect=False, listen="", policy=Policy(attempts_per_step=64))
        tasks.append(asyncio.create_task(run(load_config(str(config)), options)))

    async def end() -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await playground.stop()

    try:
        if scheduler:
            wait(schedule())
        yield CommandCluster(playground, loop, config)
    finally:
        wait(end())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()
