# SPDX-License-Identifier: Apache-2.0
"""Device plugins are killed at random moments while pods come and go, and started again.

    python -m tests.agent.plugin.killed --rounds 1000 --seed 7

Each round: an agent starts, pods of 1 to 4 GPUs are bound with the devices that were chosen for them, admitted and
ended, now and then the kubelet restarts; meanwhile the agent is killed with SIGKILL. After each round it must hold that
no device is allocated twice, none is lost, and every pod that was admitted has exactly what was chosen for it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from msgspec import Struct

from dovetail.playground import Playground
from tests.agent.agents import GPU, until, uuid
from tests.agent.fake_kubelet import FakeKubelet, Pod, Rejected, pod

GPUS = 8


class Result(Struct):
    rounds: int = 0
    killed: int = 0
    admitted: int = 0
    rejected: int = 0
    kubelet_restarts: int = 0


class Killing:
    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.kubelet = FakeKubelet(folder, seed)
        self.api = Playground(start_delay_s=0.0)
        self.folder = folder
        self.result = Result()
        self.running: dict[str, tuple[Pod, frozenset[str]]] = {}
        self.agent = 0
        self._names = 0

    async def __aenter__(self) -> Killing:
        await self.kubelet.start()
        url = await self.api.start()
        self._zygote = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.agent.plugin.process", str(self.folder), url, str(GPUS),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        return self

    async def __aexit__(self, *error: object) -> None:
        if self.agent:
            self.kill()
        assert self._zygote.stdin is not None
        self._zygote.stdin.close()
        await self._zygote.wait()
        await self.kubelet.stop()
        await self.api.stop()

    async def start_agent(self) -> None:
        assert self._zygote.stdin is not None and self._zygote.stdout is not None
        self._zygote.stdin.write(b"start\n")
        self.agent = int(await self._zygote.stdout.readline())

    def kill(self) -> None:
        os.kill(self.agent, signal.SIGKILL)
        self.agent = 0
        self.result.killed += 1

    async def round(self) -> None:
        await self.start_agent()
        early = self.chance.random() < 0.3
        if not early:
            await self.kubelet.until(lambda: self.kubelet.capacity(GPU) == (GPUS, GPUS))
        work = asyncio.create_task(self.churn())
        await asyncio.sleep(self.chance.choice((0.005, 0.02, 0.1, 0.4)) * self.chance.random() + 0.001 * early)
        self.kill()
        await work
        self.check()
        self.result.rounds += 1

    async def churn(self) -> None:
        for _ in range(self.chance.randint(1, 4)):
            what = self.chance.random()
            if what < 0.6:
                await self.bind()
            elif what < 0.9 and self.running:
                self.end(self.chance.choice(sorted(self.running)))
            elif what > 0.95:
                self.result.kubelet_restarts += 1
                await self.kubelet.restart(kill=self.chance.random() < 0.5)
            await asyncio.sleep(0)

    async def bind(self) -> None:
        held = {id for _, ids in self.running.values() for id in ids}
        free = [i for i in range(GPUS) if uuid(i) not in held]
        size = self.chance.randint(1, 4)
        if size > len(free):
            return
        chosen = sorted(self.chance.sample(free, size))
        self._names += 1
        one = pod(f"p{self._names}", {GPU: size}, devices=",".join(map(str, chosen)))
        one["metadata"]["uid"] = self.api.put(one)["metadata"]["uid"]
        try:
            await self.kubelet.admit(one)
        except Rejected:
            self.result.rejected += 1
            self.api.put(one | {"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError"}})
            return
        self.result.admitted += 1
        wanted = frozenset(map(uuid, chosen))
        self.running[one["metadata"]["uid"]] = (one, wanted)
        statuses = [{"name": "c0", "image": "i", "imageID": "", "ready": True, "restartCount": 0}]
        self.api.put(one | {"status": {"phase": "Running", "containerStatuses": statuses}})

    def end(self, uid: str) -> None:
        one, _ = self.running.pop(uid)
        self.kubelet.remove(uid)
        self.api.put(one | {"status": {"phase": "Succeeded"}})
        self.api.delete("pods", "default", one["metadata"]["name"])

    def check(self) -> None:
        held = {uid: ids for uid, ids in self.kubelet.held(GPU).items() if ids}
        assert sum(map(len, held.values())) == len({id for ids in held.values() for id in ids}), (
            f"allocated twice: {held}"
        )
        assert held == {uid: {*ids} for uid, (_, ids) in self.running.items()}, f"{held} against {self.running}"


async def run(rounds: int, seed: int, progress: Any = None) -> Result:
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:
        async with Killing(Path(folder), seed) as killing:
            for i in range(rounds):
                await killing.round()
                if progress is not None and i % 50 == 49:
                    progress(killing.result)
            await killing.start_agent()
            await killing.kubelet.until(lambda: killing.kubelet.capacity(GPU) == (GPUS, GPUS))
            assert {*killing.kubelet.listed(GPU)} == {uuid(i) for i in range(GPUS)}
            # One agent, one socket: whatever the killed ones left is gone.
            await until(lambda: len(list(killing.kubelet.plugins.glob("dovetail-*.sock"))) == 1)
            return killing.result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    # The playground logs every connection that a killed agent leaves.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    began_s = time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):
        result = asyncio.run(run(options.rounds, options.seed, lambda so_far: print(so_far, flush=True)))
        print(f"{result}, {time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    main()
