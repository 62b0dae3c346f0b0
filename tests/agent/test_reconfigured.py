# SPDX-License-Identifier: Apache-2.0
"""The configuration of a node changes while pods hold its GPUs: they go on, and no device is allocated twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail.agent.config_watch import LABEL
from dovetail.kube.api.client import MERGE_PATCH
from dovetail.kube.api.config import load_kubeconfig
from dovetail.kube.api.resources import NODES
from tests.agent.agents import GPU, until
from tests.agent.fake_kubelet import pod
from tests.agent.whole_agent import Seat
from tools.controlplane.plane import Plane
from tools.standin import Standin

SHARED = "nvidia.com/gpu.shared"
TWO = "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"


@pytest.mark.plane
async def test_a_gpu_that_a_pod_holds_as_a_whole_one_is_shared_when_the_pod_has_ended(
    crd: Plane, standin: Callable[[Any], Standin], tmp_path: Path
) -> None:
    (tmp_path / "default").write_text("")
    (tmp_path / "shared").write_text(TWO)
    machine = standin("dgx-a100")
    async with Seat(load_kubeconfig([crd.kubeconfig]), machine, "reconfigured", config=tmp_path) as seat:

        async def label(value: str | None) -> None:
            body = {"metadata": {"labels": {LABEL: value}}}
            await seat._client.request("PATCH", NODES.path(name=seat.name), body, content_type=MERGE_PATCH)

        async with seat.agent() as agent:
            await seat.offers(8)
            running = pod("running", {GPU: 2})
            allocated = await seat.runs(running)
            held = {id for container in allocated.values() for id in container[GPU].ids}
            await label("shared")
            await seat.kubelet.until(lambda: seat.kubelet.capacity(SHARED)[0] == 16)
            await seat.kubelet.until(lambda: seat.kubelet.capacity(SHARED)[1] == 12)
            unhealthy = {
                id.partition("::")[0] for id, one in seat.kubelet.listed(SHARED).items() if one.health != "Healthy"
            }
            assert unhealthy == held
            assert seat.kubelet.capacity(GPU)[1] == 0
            await until(lambda: sum(gpu["healthy"] for gpu in seat.statuses[-1]["gpus"]) == 6)
            assert seat.statuses[-1]["sharing"]["replicas"] == 2
            # A configuration that is not there changes nothing else, and is reported at once.
            await label("nowhere")
            await until(lambda: "names nowhere" in str(seat.statuses[-1]["unread"]), 5.0)
            await label("shared")
            await until(lambda: "names nowhere" not in str(seat.statuses[-1]["unread"]), 5.0)
            await seat.ends(running)
            await seat.kubelet.until(lambda: seat.kubelet.capacity(SHARED)[1] == 16)
            assert not agent.done()
