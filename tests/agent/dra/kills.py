# SPDX-License-Identifier: Apache-2.0
"""Kills a process that prepares and unprepares claims, with SIGKILL, at random moments and before random steps, and
checks after each restart that no device is prepared twice and none is lost.

`python -m tests.agent.dra.kills FOLDER [--kills 1000] [--seed 1]`. The journal in the folder is what the kubelet knows:
a claim whose preparation was answered must be there after any kill, one whose end was answered must not.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from pathlib import Path

from dovetail.agent.dra.configs import ClaimError
from dovetail.agent.dra.prepared import PreparedRecord, WantedClaim
from dovetail.agent.machine.nvml import NvmlError
from tests.agent.dra.device_node import STEP, Node, gpu, host

CLAIMS = 12
TROUBLE = 3
WHOLE = ("gpu-2", "gpu-3")


def node_at(root: Path) -> Node:
    return Node(root, host(gpu(0, ()), gpu(1, ()), gpu(2), gpu(3)))


class Journal:
    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, *words: str) -> None:
        """One write, so that a line is there as a whole or not at all."""
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, (" ".join(words) + "\n").encode())
        os.close(file)

    def last(self) -> dict[str, list[str]]:
        """The last word on each claim."""
        if not self._path.exists():
            return {}
        return {line.split()[1]: line.split() for line in self._path.read_text().splitlines()}


def problems(node: Node, journal: Journal) -> list[str]:
    """What is wrong after a restart."""
    found = node.troubles()
    for uid, (word, _, *devices) in journal.last().items():
        record = node.prepared.records.get(uid)
        held = [f"{each.name}={each.uuid}" for each in record.devices] if record is not None else None
        if word == "prepared" and held != devices:
            found.append(f"{uid} was prepared with {devices}, and has {held}")
        if word == "unprepared" and held is not None:
            found.append(f"{uid} was unprepared, and has {held}")
    return found


def again(node: Node, record: PreparedRecord) -> tuple[WantedClaim, ...]:
    """What the record was prepared for."""
    devices = node.devices()
    return tuple(WantedClaim(devices[each.name], each.request, interval=each.interval) for each in record.devices)


def some(node: Node, chance: random.Random) -> tuple[WantedClaim, ...]:
    """Some devices, whether others have them or not."""
    devices = node.devices()
    names = chance.sample(sorted(devices), chance.choice((1, 1, 2, 3)))
    interval = chance.choice((0, 0, 2))
    return tuple(WantedClaim(devices[name], "r", interval=interval if name in WHOLE else 0) for name in names)


def work(root: Path, seed: int) -> None:
    """Prepares and unprepares for ever."""
    chance = random.Random(seed)
    node, journal = node_at(root), Journal(root / "journal")
    node.restart()
    if found := problems(node, journal):
        print(*found, sep="\n", file=sys.stderr)
        os._exit(TROUBLE)
    while True:
        uid = f"claim{chance.randrange(CLAIMS)}"
        record = node.prepared.records.get(uid)
        if record is None or chance.random() < 0.2:
            wanted = again(node, record) if record is not None else some(node, chance)
            if record is None:
                journal.write("prepare", uid)
            try:
                done = node.prepared.prepare(uid, "ns", uid, wanted)
            except (ClaimError, NvmlError):
                journal.write("unprepared", uid)
                continue
            journal.write("prepared", uid, *(f"{each.name}={each.uuid}" for each in done.devices))
        else:
            journal.write("unprepare", uid)
            node.prepared.unprepare(uid)
            journal.write("unprepared", uid)


def spawn(root: Path, seed: int, steps: int) -> int:
    """A process that works until it is killed; by itself before the step `steps`, where that is not 0."""
    child = os.fork()
    if child:
        return child
    try:
        left = [steps]

        def listen(event: str, args: tuple[object, ...]) -> None:
            own = event in ("open", "os.rename", "os.remove", "os.mkdir") and str(root) in str(args[0])
            if own or event == STEP:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        if steps:
            sys.addaudithook(listen)
        work(root, seed)
    except BaseException as error:
        print(f"seed {seed}: {type(error).__name__}: {error}", file=sys.stderr)
    os._exit(TROUBLE)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    for number in range(options.kills):
        steps = chance.randrange(1, 150) if number % 2 else 0
        child = spawn(options.folder, chance.randrange(1 << 30), steps)
        if not steps:
            time.sleep(chance.uniform(0.0, 0.3))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            print(f"after {number} kills the process ended with {os.waitstatus_to_exitcode(status)}", file=sys.stderr)
            return 1
    node = node_at(options.folder)
    node.restart()
    if found := problems(node, Journal(options.folder / "journal")):
        print(*found, sep="\n", file=sys.stderr)
        return 1
    lines = (options.folder / "journal").read_text().splitlines()
    prepared = sum(line.startswith("prepared") for line in lines)
    print(f"{options.kills} kills, {prepared} preparations, {len(node.prepared.records)} claims are prepared now")
    return 0


if __name__ == "__main__":
    sys.exit(main())
