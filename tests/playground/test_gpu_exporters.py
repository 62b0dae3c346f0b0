# SPDX-License-Identifier: Apache-2.0
"""The simulated exporters follow the pods that run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from dovetail.kube.reading.exposition import parse
from dovetail.kube.reading.gpu_samples import NAMES, DeviceSample, devices_of
from dovetail.playground import Playground
from tests.kube.reading.test_gpu_exporters import agent, node, pod

PATH = "/api/v1/namespaces/kube-system/pods/{}:9400/proxy/{}"


@pytest.fixture
async def session(playground: Playground) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(playground.url) as found:
        yield found


async def read(session: aiohttp.ClientSession, name: str = "agent-n1", query: str = "") -> list[DeviceSample]:
    async with session.get(PATH.format(name, "metrics") + query) as reply:
        assert reply.status == 200, await reply.text()
        return devices_of(parse(await reply.text(), NAMES))


def on_gpu(name: str, devices: str, **notes: str) -> dict[str, Any]:
    document = pod(name, "n1")
    document["metadata"]["annotations"] = {"dovetail.dev/devices": devices} | notes
    return document


async def test_a_pod_is_on_its_devices_with_its_load(playground: Playground, session: aiohttp.ClientSession) -> None:
    playground.put(node("n1", 3))
    playground.put(agent("n1"))
    load = {"playground.dovetail.dev/gpu-load": "sm=40, memory=50,dram=nonsense"}
    playground.store.put_raw("pods", on_gpu("a", "0,2", **load))
    found = await read(session)
    assert [[holder.pod for holder in one.holders] for one in found] == [["a"], [], ["a"]]
    assert 0.38 <= found[0].values["DCGM_FI_PROF_SM_ACTIVE"] <= 0.42
    assert found[0].values["DCGM_FI_PROF_DRAM_ACTIVE"] > 0.2
    assert found[1].values["DCGM_FI_PROF_SM_ACTIVE"] == 0
    assert found[0].values["DCGM_FI_DEV_POWER_USAGE"] > found[1].values["DCGM_FI_DEV_POWER_USAGE"]


async def test_shares_are_each_pod_s_own(playground: Playground, session: aiohttp.ClientSession) -> None:
    playground.put(node("n1", 1))
    playground.put(agent("n1"))
    for name, share in (("a", "0.5"), ("b", "0.25")):
        playground.store.put_raw("pods", on_gpu(name, "0", **{"dovetail.dev/gpu-fraction": share}))
    (found,) = await read(session)
    assert [(one.pod, one.share) for one in found.holders] == [("a", 0.5), ("b", 0.25)]


async def test_instances_are_those_of_the_gpunode(playground: Playground, session: aiohttp.ClientSession) -> None:
    playground.put(node("n1", 1))
    playground.put(agent("n1"))
    gpu_node = {
        "apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": "n1"},
        "status": {"gpus": [{"index": 0, "mig": [{"profile": "3g.40gb", "start": 0}]}]},
    }  # fmt: skip
    playground.store.put_raw("gpunodes.dovetail.dev", gpu_node)
    playground.store.put_raw("pods", on_gpu("a", "0/3g.40gb@0"))
    whole, instance = await read(session)
    assert (whole.profile, whole.holders) == ("", ())
    assert (instance.profile, [one.pod for one in instance.holders]) == ("3g.40gb", ["a"])


async def test_only_requested_names_are_answered(playground: Playground, session: aiohttp.ClientSession) -> None:
    playground.put(node("n1", 1))
    playground.put(agent("n1"))
    (found,) = await read(session, query="?name[]=DCGM_FI_PROF_SM_ACTIVE")
    assert list(found.values) == ["DCGM_FI_PROF_SM_ACTIVE"]


async def test_other_pods_have_no_server(playground: Playground, session: aiohttp.ClientSession) -> None:
    playground.put(node("n1", 1))
    playground.put(agent("n1"))
    playground.put(pod("other", "n1", "kube-system"))
    for name, path, status in (("other", "metrics", 503), ("none", "metrics", 404), ("agent-n1", "x", 503)):
        async with session.get(PATH.format(name, path)) as reply:
            assert reply.status == status
