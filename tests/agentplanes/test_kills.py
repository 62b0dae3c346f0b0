# SPDX-License-Identifier: Apache-2.0
"""The carrier is killed before or after any of its writes, and another process goes on; or the host and the broker
answer wrongly, late, or not at all. No pod of an endpoint has two pods on the host (`World` checks that with every
change), and in the end none is left without its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from dovetail.apiserver.objects import Object
from dovetail.plane.fake import FakeFault, FaultKind
from dovetail.playground import Fault
from tests.agentplanes.world import JOBS, World, has, job, phases, world
from tests.breadth import seeds

MOST_WRITES = 40


async def story(w: World) -> None:
    """Pods come to their end, are deleted on either side, and never fit."""
    await w.create(JOBS, job("train", 2, 0.03, pods=2))
    await w.create(JOBS, job("prepare", 0, 0.03))
    await w.create(JOBS, job("serve", 1, None))
    await w.when(JOBS, lambda jobs: has("Complete")([j for j in jobs if j["metadata"]["name"] != "serve"]))

    def serves(pods: list[Object]) -> list[Object]:
        return [pod for pod in pods if pod["metadata"]["name"].startswith("serve")]

    await w.when("pods", lambda pods: phases(serves(pods))[-1:] == ["Running"])
    await w.delete(JOBS, "serve")
    await w.when("pods", lambda pods: not serves(pods))
    assert phases(await w.listed("pods")) == ["Succeeded"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(3))
async def test_a_kill_at_any_write_loses_and_doubles_nothing(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    async with world(tmp_path) as w:
        w.kills.left, w.kills.after = random.randrange(MOST_WRITES // 2), random.random() < 0.5
        await story(w)
        w.kills.left, w.kills.after = random.randrange(4), random.random() < 0.5
        await w.restart()
        await w.create(JOBS, job("again", 1, 0.01))
        await w.when(JOBS, lambda jobs: has("Complete")(jobs))
        w.kills.left = None
        await w.quiet()
        assert w.killed


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
async def test_it_is_killed_at_each_write_in_turn(tmp_path: Path, after: bool) -> None:
    for write in range(8):
        async with world(tmp_path / str(write)) as w:
            w.kills.left, w.kills.after = write, after
            await w.create(JOBS, job("train", 1, 0.01))
            await w.when(JOBS, has("Complete"))
            await w.quiet()
            assert w.killed or w.kills.writes <= write


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(2))
async def test_faults_of_host_and_broker_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    async with world(tmp_path) as w:
        for _ in range(6):
            effect = random.choice(["answer", "drop-before", "drop-after", "delay"])
            verb = random.choice(["POST", "DELETE", "WATCH", "GET"])
            status = random.choice([429, 500, 503])
            w.playground.faults.add(Fault(effect, verb, "pods", times=2, status=status, delay_s=0.05))

        def broken(operation: str) -> FakeFault | None:
            rate = 0.05 if operation == "news" else 0.2
            return FakeFault(random.choice([FaultKind.LOST, FaultKind.ANSWER_LOST])) if random.random() < rate else None

        w.broker.faults = broken
        time_goes_on = asyncio.create_task(w.passing())
        try:
            await story(w)
        finally:
            time_goes_on.cancel()
        w.broker.faults = None
        await w.quiet()
