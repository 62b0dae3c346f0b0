# SPDX-License-Identifier: Apache-2.0
"""Processes that are killed in the middle of their writes: `python killed.py DIRECTORY STEPS`.

For each number of steps up to STEPS one process writes to the store `N.sqlite` and is killed with SIGKILL before step N
of its commits, counted over all of them. What it has acknowledged is in `N.acknowledged`, a line each.
"""

import asyncio
import itertools
import os
import signal
import sys
from pathlib import Path

from dovetail.apiserver.objects import Object
from dovetail.apiserver.sqlite_log import SqliteLog
from dovetail.apiserver.store import Store


def half(name: str, value: int) -> Object:
    return {"metadata": {"namespace": "default", "name": name}, "data": {"value": value}}


async def write(file: Path, acknowledged: Path, steps: int) -> None:
    """Writers that write two objects each in one step of the program, again and again, until the process is killed."""
    passed = itertools.count(1)

    def at_step(_: str) -> None:
        if next(passed) == steps:
            os.kill(os.getpid(), signal.SIGKILL)

    store = Store(log=SqliteLog(file, at_step))
    output = os.open(acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def writer(number: int) -> None:
        for value in itertools.count(1):
            store.put_raw("left", half(f"w{number}", value))
            store.put_raw("right", half(f"w{number}", value))
            if value % 3 == 0:
                store.remove("left", ("default", f"w{number}"))
                store.remove("right", ("default", f"w{number}"))
            version = store.version
            await store.written()
            os.write(output, f"{number} {value} {version}\n".encode())
            # Another turn, so that writers do not always share their commits.
            await asyncio.sleep(0.0005 * number)

    await asyncio.gather(*(writer(number) for number in range(3)))


def main() -> None:
    folder, most = Path(sys.argv[1]), int(sys.argv[2])
    for steps in range(1, most + 1):
        child = os.fork()
        if not child:
            asyncio.run(write(folder / f"{steps}.sqlite", folder / f"{steps}.acknowledged", steps))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), status


if __name__ == "__main__":
    main()
