# SPDX-License-Identifier: Apache-2.0
"""Pods come and go, on shared GPUs and MIG instances, while the agent is scraped: no sample names a pod that the
kubelet did not list with that device during the scrape, and the next scrape has each new owner."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dovetail.agent.exporter import exporter
from dovetail.kube.api.config import load_kubeconfig
from tests.agent.exporter.scraped import series_of
from tests.agent.fake_kubelet import Pod, Rejected, pod
from tests.agent.whole_agent import Seat
from tests.patience import PATIENCE_S
from tools.controlplane.plane import Plane
from tools.standin import Standin

SHARED, SLICE = "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"
CONFIG = (
    "version: v1\nflags: {migStrategy: mixed}\n"
    "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 3}]}}\n"
)
PODS = 100
Held = tuple[str, str, str]
"""The uuid of the GPU or MIG instance, the pod, the replica."""


class Ledger:
    """When each pod held each device, by the kubelet; the end is infinite while it holds it."""

    def __init__(self) -> None:
        self._spans: list[tuple[Held, float, list[float]]] = []

    def begin(self, held: Held, begun_s: float) -> None:
        self._spans.append((held, begun_s, [float("inf")]))

    def end(self, name: str, ended_s: float) -> None:
        for held, _, end in self._spans:
            if held[1] == name and end[0] == float("inf"):
                end[0] = ended_s

    def during(self, begun_s: float, ended_s: float) -> set[Held]:
        """What was held at some time between."""
        return {held for held, begin, end in self._spans if begin <= ended_s and end[0] >= begun_s}

    def throughout(self, begun_s: float, ended_s: float) -> set[Held]:
        return {held for held, begin, end in self._spans if begin <= begun_s and end[0] >= ended_s}


async def _scrape(session: aiohttp.ClientSession, port: int) -> tuple[frozenset[Held], frozenset[str]]:
    """What the samples name, and the devices that they show as free."""
    async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        return _read(await answer.text())


@lru_cache(maxsize=1)
def _read(text: str) -> tuple[frozenset[Held], frozenset[str]]:
    """That of a scrape. It is read once where the exporter answers scrapes with the same text."""
    named, free = set(), set()
    for name, samples in series_of(text).items():
        for labels, _ in samples:
            uuid = labels.get("mig_uuid") or labels.get("UUID", "")
            if "pod" in labels and "container" in labels:
                named.add((uuid, labels["pod"], labels.get("vgpu", "")))
            elif name == "dovetail_gpu_allocated_share":
                free.add(uuid)
    return frozenset(named), frozenset(free)


@pytest.mark.plane
async def test_no_sample_names_a_pod_that_the_kubelet_did_not_list(
    crd: Plane,
    standin: Callable[[Any], Standin],
    tmp_path: Path,
    unused_tcp_port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # An owner that is not known in time is no wrong owner, but this test is about those that are.
    monkeypatch.setattr(exporter, "OWNERS_PATIENCE_S", PATIENCE_S)
    machine = standin({"like": "dgx-a100", "mig": {"6": [["1g.5gb", 0], ["1g.5gb", 1]], "7": [["1g.5gb", 0]]}})
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    port = unused_tcp_port
    cluster = load_kubeconfig([crd.kubeconfig])
    chance, ledger, running = random.Random(5), Ledger(), list[Pod]()
    async with (
        Seat(cluster, machine, "churning", config=config, exporter=f"127.0.0.1:{port}") as seat,
        seat.agent(),
        aiohttp.ClientSession() as session,
    ):
        await seat.offers(6 * 3 + 3)

        async def start(number: int) -> None:
            new = pod(f"p{number}", {chance.choice((SHARED, SHARED, SLICE)): 1})
            begun_s = time.monotonic()
            try:
                allocated = await seat.runs(new)
            except Rejected:
                return
            for container in allocated.values():
                for allocation in container.values():
                    for id in allocation.ids:
                        uuid, _, replica = id.partition("::")
                        ledger.begin((uuid, new["metadata"]["name"], replica), begun_s)
            running.append(new)

        async def stop() -> None:
            old = running.pop(chance.randrange(len(running)))
            await seat.ends(old)
            ledger.end(old["metadata"]["name"], time.monotonic())

        async def churn() -> None:
            for number in range(PODS):
                while len(running) > 12 or (running and chance.random() < 0.3):
                    await stop()
                await start(number)

        task = asyncio.create_task(churn())
        scrapes = []
        while not task.done() or len(scrapes) <= 20:
            begun_s = time.monotonic()
            named, _ = await _scrape(session, port)
            scrapes.append((named, begun_s, time.monotonic()))
            await asyncio.sleep(0.1)
        await task
        # The ledger is complete only now: a pod holds its devices before it is entered.
        for named, begun_s, ended_s in scrapes:
            # Scrapes share an answer for a second.
            assert named <= ledger.during(begun_s - 1.0, ended_s)
        # Nothing changes any more: the first scrape that is not shared has each owner, and all else is free.
        await asyncio.sleep(1.0)
        begun_s = time.monotonic()
        named, free = await _scrape(session, port)
        assert named == ledger.throughout(begun_s, time.monotonic())
        assert free.isdisjoint(uuid for uuid, _, _ in named)
        assert named
