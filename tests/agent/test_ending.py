# SPDX-License-Identifier: Apache-2.0
"""An agent that is stopped first gives devices to the pods that are already bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dovetail.agent.kubelet.allocations import Allocations
from dovetail.kube.api.config import load_kubeconfig
from dovetail.kube.translate.annotations import DEVICES
from tests.agent.fake_kubelet import pod
from tests.agent.kubelet.test_allocations import GPU, bind, candidate, change
from tests.agent.kubelet.test_allocations import chosen as chosen
from tests.agent.kubelet.test_allocations import pod as bound
from tests.agent.whole_agent import Seat
from tools.controlplane.plane import Plane
from tools.standin import Standin

Machine = Callable[[Any], Standin]


@pytest.mark.plane
async def test_a_pod_that_waits_for_its_devices_gets_them_before_the_agent_ends(crd: Plane, standin: Machine) -> None:
    async with Seat(load_kubeconfig([crd.kubeconfig]), standin("dgx-a100"), "ending") as seat:
        async with seat.agent() as agent:
            await seat.offers(8)
            seat.forget()
            one = pod("ending", {GPU: 2})
            one["metadata"]["annotations"] = {DEVICES: "2,5"}
            await seat.bind(one)
            agent.cancel()
            await asyncio.sleep(2)
            allocated = await seat.kubelet.admit(one)
            began_s = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began_s < 10
        assert [len(found.ids) for container in allocated.values() for found in container.values()] == [2]
        assert seat.plugin[-1] == "AgentEnds"
        await seat.ends(one)


async def test_the_end_waits_only_for_pending_pods_and_not_beyond_the_limit(chosen: Allocations) -> None:
    clock = asyncio.get_running_loop().time

    async def took_s(*resources: str) -> float:
        began_s = clock()
        await chosen.drained(resources, quiet_s=0.05, within_s=0.5)
        return clock() - began_s

    assert await took_s(GPU) < 0.4
    one = bound("a")
    bind(chosen, one)
    assert await took_s(GPU) >= 0.5
    assert await took_s("nvidia.com/gpu.shared") < 0.4
    assert await candidate(chosen) == "a"
    assert await took_s(GPU) < 0.4
    bind(chosen, bound("b"))
    draining = asyncio.ensure_future(chosen.drained([GPU], quiet_s=0.05, within_s=30))
    await asyncio.sleep(0.2)
    assert not draining.done()
    change(chosen, bound("b"), "deleted")
    await asyncio.wait_for(draining, 10)
