# SPDX-License-Identifier: Apache-2.0
"""Kills the MIG manager again and again, and looks at what it leaves: `python -m tests.agent.mig.rounds --rounds 1000`.

Each round a process of its own changes a machine to another layout and is killed with SIGKILL: by itself, at one of the
moments that matter (before and after each call that changes a GPU, each fsync and each rename), or by its parent at any
time. Others take over and are killed too; the last one is not. Then every GPU must be as it was or as it was asked to
be, each instance whole, and no instance that a pod holds may ever have been destroyed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from dovetail.agent.machine.discovery import discover
from dovetail.agent.machine.nvml import Nvml
from dovetail.agent.machine.sysfs import Sysfs
from dovetail.agent.mig.geometry import arranged
from dovetail.agent.mig.layouts import Candidate, Layouts, WantedLayout
from dovetail.agent.mig.manager import Decision, MigManager, NamedLayout, Target
from dovetail.core.devices.mig.products import of_product
from tools.standin import Standin, loaded

HOSTS = ("pcie-a100-bridged", "gh200", "gb200-nvl72", "small-2numa", "dgx-a100", "dgx-h100")
CHANGING = frozenset(
    {
        "nvmlDeviceSetMigMode",
        "nvmlGpuInstanceDestroy",
        "nvmlComputeInstanceDestroy",
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceCreateComputeInstance",
    }
)
POINTS_PER_GPU = 30
SLOWEST_S = 0.6
NEVER = 0

Division = tuple[bool, tuple[tuple[str, int], ...]]
Held = frozenset[tuple[int, int]]
"""Instances by GPU and start."""


class Broken(Exception):
    """The machine is as it must not be."""


class Mortal(Nvml):
    """Counts the moments that matter, dies at one of them, and puts on paper when it destroys what is held."""

    def __init__(self, dies_at: int, held: Mapping[tuple[str, int], str], paper: Path) -> None:
        self._left = dies_at
        self._held = held
        self._paper = paper

    def point(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def call(self, name: str, *arguments: Any) -> Any:
        if name not in CHANGING:
            return super().call(name, *arguments)
        if name == "nvmlGpuInstanceDestroy":
            info = super().call("nvmlGpuInstanceGetInfo", *arguments)
            uuid = self._held.get((super().call("nvmlDeviceGetUUID", info.device), info.placement.start))
            if uuid:
                self._paper.write_text(f"{uuid} is held and was destroyed")
        self.point()
        answer = super().call(name, *arguments)
        self.point()
        return answer


def around(function: Callable[..., Any], point: Callable[[], None]) -> Callable[..., Any]:
    def called(*arguments: Any) -> Any:
        point()
        answer = function(*arguments)
        point()
        return answer

    return called


def live(machine: Standin, target: Target | None, held: Held, dies_at: int, journal: Path, paper: Path) -> NoReturn:
    """The life of a process: it takes up what was cut off, then goes for the target."""

    async def run() -> None:
        sysfs = Sysfs(machine.sysfs, machine.proc)
        with Nvml() as plain:
            gpus = discover(plain, sysfs).gpus
        uuids = {
            (gpu.uuid, one.start): one.uuid for gpu in gpus for one in gpu.mig or () if (gpu.index, one.start) in held
        }

        async def holders() -> set[str]:
            return {*uuids.values()}

        async def changed() -> None:
            pass

        with Mortal(dies_at, uuids, paper) as nvml:
            os.fsync = around(os.fsync, nvml.point)
            Path.replace = around(Path.replace, nvml.point)  # type: ignore[method-assign]
            manager = MigManager(nvml, lambda: discover(nvml, sysfs), holders, changed, journal)
            await manager.recover()
            if target is not None:
                await manager.apply(target)

    status = 1
    try:
        with loaded(machine):
            asyncio.run(run())
        status = 0
    finally:
        os._exit(status)


def division(machine: Standin, gpu: int) -> Division:
    parts = machine.parts(gpu)
    torn = [part for part in parts if len(part.cis) != 1]
    if torn:
        raise Broken(f"GPU {gpu}: {torn} is not whole")
    return machine.mig_mode(gpu)[0], tuple(sorted((part.profile, part.start) for part in parts))


class Rounds:
    """Rounds on one machine after another, each as the round before left it."""

    def __init__(self, seed: int, hosts: Sequence[str], folder: Path) -> None:
        self._random = random.Random(seed)
        self._hosts = hosts
        self._folder = folder
        self._machines: dict[str, Standin] = {}
        self.counts: Counter[str] = Counter()

    def one(self, number: int) -> None:
        """Raises Broken."""
        name = self._hosts[number % len(self._hosts)]
        if name not in self._machines:
            self._machines[name] = Standin(self._folder / name, name)
        machine = self._machines[name]
        gpus = [
            Candidate(gpu.index, gpu.product["name"], 0, True, of_product(gpu.product["name"]))
            for gpu in machine.description.gpus
        ]
        before = {gpu.index: division(machine, gpu.index) for gpu in gpus}
        held = frozenset(
            (index, start) for index, (_, parts) in before.items() for _, start in parts if self._random.random() < 0.1
        )
        target, wanted = self._target(machine, gpus)
        later = [(None, self._moment(len(gpus))) for _ in range(self._random.choice((0, 0, 1, 2)))]
        for goal, moment in ((target, self._moment(len(gpus))), *later, (None, NEVER)):
            self._live(machine, goal, held, moment)
        for index, old in before.items():
            new = division(machine, index)
            if new != old and not fits(new, wanted.get(index)):
                raise Broken(f"round {number}, {name}, {target}, GPU {index}: it was {old}, it is {new}")
            lost = {start for gpu, start in held if gpu == index} - {start for _, start in new[1]}
            if lost:
                raise Broken(f"round {number}, {name}, GPU {index}: held instances at {lost} are gone")
            self.counts["as it was" if new == old else "as asked for"] += 1

    def _moment(self, gpus: int) -> int | float:
        """The number of a moment that matters, or seconds."""
        if self._random.random() < 0.7:
            return self._random.randint(1, POINTS_PER_GPU * gpus)
        return self._random.uniform(0.01, SLOWEST_S)

    def _live(self, machine: Standin, target: Target | None, held: Held, moment: int | float) -> None:
        name, paper = machine.folder.name, self._folder / "paper"
        child = os.fork()
        if child == 0:
            live(
                machine,
                target,
                held,
                moment if isinstance(moment, int) else NEVER,
                self._folder / f"{name}.json",
                paper,
            )
        if isinstance(moment, float):
            time.sleep(moment)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if paper.exists():
            raise Broken(paper.read_text())
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            raise Broken(f"{name}, {target}: a process failed instead of dying")
        self.counts["killed" if os.WIFSIGNALED(status) else "ended"] += 1

    def _target(self, machine: Standin, gpus: list[Candidate]) -> tuple[Target, dict[int, WantedLayout]]:
        layouts = Layouts()
        name = self._random.choice(layouts.names(gpus))
        wanted = layouts.of(name, gpus)
        if self._random.random() < 0.7 or not wanted[0].mig:
            return NamedLayout(name), wanted
        some = self._random.sample(gpus, self._random.randint(1, len(gpus)))
        placed = {gpu.index: arranged(gpu.geometry, wanted[gpu.index].counts, (), ()) or () for gpu in some}  # type: ignore[arg-type]
        uuids = {machine.description.gpus[index].uuid: parts for index, parts in placed.items()}
        return Decision(str(self.counts["rounds"]), uuids), {index: wanted[index] for index in placed}


def fits(found: Division, wanted: WantedLayout | None) -> bool:
    return wanted is not None and found[0] == wanted.mig and Counter(name for name, _ in found[1]) == wanted.counts


def main() -> int:
    parser = argparse.ArgumentParser(description="kill the MIG manager again and again")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hosts", nargs="+", default=HOSTS, choices=HOSTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rounds = Rounds(options.seed, options.hosts, Path(folder))
        try:
            for number in range(options.rounds):
                rounds.one(number)
        except Broken as broken:
            print(broken, file=sys.stderr)
            return 1
        print(json.dumps(rounds.counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
