# SPDX-License-Identifier: Apache-2.0
"""`dovetail operator` as a process that can be killed, with a fast clock for its rollouts; all else has the real time.

Arguments: a kubeconfig, its identity, and the Unix time at which the fast clock had the real time.
"""

from __future__ import annotations

import asyncio
import sys
import time

from dovetail.kube.api.config import load_config
from dovetail.operator.coexistence.takeovers import Takeovers
from dovetail.operator.nodes import NodeWalks
from dovetail.operator.parts import SharedByParts, StackPart
from dovetail.operator.rollout import Rollouts
from dovetail.operator.run import OperatorOptions, run

FAST = 20
"""How many times faster."""


async def main(kubeconfig: str, identity: str, since: str) -> None:
    """Run until killed."""
    since_ms, made = round(1000 * float(since)), list[Rollouts]()

    def clock_ms() -> int:
        return since_ms + FAST * (round(1000 * time.time()) - since_ms)

    def parts(shared: SharedByParts) -> tuple[StackPart, ...]:
        walks = NodeWalks(shared, alone=False)
        made.append(Rollouts(shared, clock_ms=clock_ms))
        return Takeovers(shared, walks.kept_off), walks, *made

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.1)
            for one in made:
                one.wake()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(tick())
        tasks.create_task(
            run(
                load_config(kubeconfig),
                OperatorOptions(listen="", image="dovetail:1", identity=identity),
                parts_of=parts,
            )
        )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
