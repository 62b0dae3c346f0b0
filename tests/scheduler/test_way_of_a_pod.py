# SPDX-License-Identifier: Apache-2.0
"""The way of a plain GPU pod from its watch event to the reply to its bind: the functions that run, and that they stay
few. The core's own functions are not bounded here."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from dovetail.core.policy import Policy
from dovetail.core.state import State
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.discovery import discover
from dovetail.kube.informers import Informers
from dovetail.kube.translate.translator import Translator
from dovetail.playground import Playground
from dovetail.scheduler.clock import Clock
from dovetail.scheduler.driver import Driver
from dovetail.scheduler.events import SchedulerRun
from tests.patience import PATIENCE_S

MOST_FUNCTIONS, MOST_MODULES = 75, 30
"""Of `kube` and `scheduler`."""
MOST_BESIDE_CLIENT = 46
"""Without the API client, `kube.api`."""
ONCE = (
    "kube.translate.known:pod_known", "kube.translate.pods:metadata_of", "kube.translate.pods:pod",
    "kube.translate.annotations:options_of", "kube.translate.limits:bounded", "kube.translate.requests:effective",
    "kube.translate.work:work_of", "kube.gangs.dialects:membership",
)  # fmt: skip
ON_THE_WAY = (
    "kube.api.decoding:Reader.line", "kube.translate.translator:Translator.pods", *ONCE, "core.cycle:step",
    "scheduler.driver:Driver._bind", "scheduler.binder:Binder._carry_out", "scheduler.wire:binding",
    "scheduler.driver:Driver._bound",
)  # fmt: skip
QUIET_S = 0.3


class Server(threading.Thread):
    """A playground in a thread of its own, so that what it runs is not counted."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.loop = asyncio.new_event_loop()
        self.ready = threading.Event()

    def run(self) -> None:
        self.loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self.playground = Playground(bookmark_interval_s=600, start_delay_s=600)
        await self.playground.start()
        self.ready.set()
        await asyncio.Event().wait()

    def put(self, document: dict[str, Any]) -> None:
        async def put() -> None:
            self.playground.put(document)

        asyncio.run_coroutine_threadsafe(put(), self.loop).result(PATIENCE_S)


def node(name: str) -> dict[str, Any]:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
    meta = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": {"allocatable": amounts}}


def pod(name: str) -> dict[str, Any]:
    limits = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}
    spec = {"schedulerName": "dovetail", "containers": [{"name": "m", "image": "i", "resources": {"limits": limits}}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def counting(calls: Counter[str]) -> Callable[[FrameType, str, Any], None]:
    """A profiler that counts calls by "module:function"; what a comprehension does counts for its function."""

    def count(frame: FrameType, what: str, _: Any) -> None:
        module: str = frame.f_globals.get("__name__", "")
        if what == "call" and module.startswith("dovetail."):
            name = frame.f_code.co_qualname
            outer = name
            while outer.endswith(">"):
                outer = outer.removesuffix(".<locals>." + outer.rpartition(".")[2])
                if outer == name:
                    break
            calls[f"{module.removeprefix('dovetail.')}:{outer}"] += outer == name

    return count


async def measured() -> dict[str, dict[str, int]]:
    """Calls by function: while nothing happens, and from the watch event of a pod to the reply to its bind."""
    server = Server()
    server.start()
    assert server.ready.wait(PATIENCE_S)
    for name in ("a", "b"):
        server.put(node(name))
    found: dict[str, dict[str, int]] = {}
    async with Client(ClusterConfig(server.playground.url)) as client:
        informers = Informers(client, await discover(client), Translator())
        state = State(Policy(attempts_per_step=64))
        driver = Driver(state, informers, client, Clock(), leads=lambda: True, run=SchedulerRun("run", "here"))
        tasks = [asyncio.create_task(informers.run())]
        await informers.synced()
        tasks += [asyncio.create_task(part.run()) for part in (driver.binder, driver.reporter, driver)]
        whole = driver.binder._bound
        for case in ("first", "idle", "pod"):
            ended, calls = asyncio.Event(), Counter[str]()

            def bound(*about: Any, ended: asyncio.Event = ended) -> None:
                whole(*about)
                sys.setprofile(None)
                ended.set()

            driver.binder._bound = bound
            await asyncio.sleep(QUIET_S)
            # The core renews some of its numbers once a second: not while a pod is on its way.
            sys.setprofile(counting(calls))
            if case == "idle":
                await asyncio.sleep(QUIET_S)
            else:
                server.put(pod(case))
                await asyncio.wait_for(ended.wait(), PATIENCE_S)
            sys.setprofile(None)
            found[case] = dict(calls)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return found


@pytest.fixture(scope="module")
def way() -> dict[str, int]:
    """In a process in which nothing is compiled, as a profiler does not see compiled functions."""
    program = (
        "import asyncio, json; from tests.scheduler.test_way_of_a_pod import measured;"
        "print(json.dumps(asyncio.run(measured())))"
    )
    environment = os.environ | {"DOVETAIL_NATIVE": "0"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return {name: calls for name, calls in found["pod"].items() if name not in found["idle"]}


@pytest.mark.slow
def test_a_pod_passes_through_few_functions(way: dict[str, int]) -> None:
    passed = [name for name in way if not name.startswith("core.")]
    assert {name for name in ON_THE_WAY if name not in way} == set()
    assert len(passed) <= MOST_FUNCTIONS, sorted(passed)
    assert len({name.partition(":")[0] for name in passed}) <= MOST_MODULES, sorted(passed)
    beside = [name for name in passed if not name.startswith("kube.api.")]
    assert len(beside) <= MOST_BESIDE_CLIENT, sorted(beside)


def test_a_pod_is_translated_once(way: dict[str, int]) -> None:
    assert {name: way[name] for name in ONCE} == dict.fromkeys(ONCE, 1)
