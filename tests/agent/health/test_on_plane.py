# SPDX-License-Identifier: Apache-2.0
"""The whole agent on a real API server: an XID is an event on the pod at once, and the GPUNode has the states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dovetail.agent import run
from dovetail.agent.exporter import accounting
from dovetail.agent.publish import pod_events
from dovetail.kube.api.config import load_kubeconfig
from dovetail.kube.translate.annotations import DEVICES
from tests.agent.agents import until
from tests.agent.fake_kubelet import pod
from tests.agent.whole_agent import Seat
from tests.patience import PATIENCE_S
from tools.controlplane.plane import Plane
from tools.standin import Standin

Machine = Callable[[Any], Standin]
GPU = "nvidia.com/gpu"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


def events(plane: Plane, reason: str = "GPUError", name: str = "holder") -> list[str]:
    """Their notes."""
    return [
        one["note"]
        for one in plane.request("GET", EVENTS)["items"]
        if (one["reason"], one["regarding"].get("name")) == (reason, name)
    ]


@pytest.mark.plane
async def test_an_xid_is_an_event_on_its_pod_and_the_states_are_in_the_gpu_node(crd: Plane, standin: Machine) -> None:
    machine = standin("dgx-a100")
    async with Seat(load_kubeconfig([crd.kubeconfig]), machine, "unwell", exporter="") as seat, seat.agent():
        await seat.offers(8)
        holder = pod("holder", {GPU: 1})
        holder["metadata"]["annotations"] = {DEVICES: "3"}
        await seat.runs(holder)

        def health(gpu: int) -> dict[str, Any]:
            found: dict[str, Any] = seat.statuses[-1]["gpus"][gpu]["health"]
            return found

        assert {health(gpu)["state"] for gpu in range(8)} == {"healthy"}
        machine.xid(3, 79)
        await until(lambda: bool(events(crd)), PATIENCE_S)
        (note,) = events(crd)
        assert note.startswith("XID 79, fallen off the bus, on GPU-")
        await until(lambda: health(3)["state"] == "draining", PATIENCE_S)
        assert health(3)["code"] == "xid-79" and "reboot the node" in health(3)["next"]
        assert "xid-79" in seat.statuses[-1]["quarantine"]["reason"]
        await seat.ends(holder)
        machine.xid(4, 95)
        await until(lambda: health(4)["state"] == "quarantined", PATIENCE_S)
        await until(lambda: health(3)["state"] == "quarantined", PATIENCE_S)
        assert {health(gpu)["state"] for gpu in range(3)} == {"healthy"}
        assert len(events(crd)) == 1


@pytest.mark.plane
async def test_a_finding_makes_a_gpu_degraded_and_it_is_offered_on(
    crd: Plane, standin: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_CHECK_S", 0.2)
    machine = standin("dgx-a100")
    options = {"exporter": "127.0.0.1:0", "expected_gpus": 9}
    async with Seat(load_kubeconfig([crd.kubeconfig]), machine, "worn", **options) as seat, seat.agent():
        await seat.offers(8)

        def states() -> list[str]:
            return [gpu["health"]["state"] for gpu in seat.statuses[-1]["gpus"]]

        def health_ok() -> str:
            return next(one["message"] for one in seat.statuses[-1]["conditions"] if one["type"] == "HealthOk")

        await until(lambda: "the node: gpus-missing: 1 GPUs fewer than expected are there" in health_ok(), PATIENCE_S)
        machine.ecc(5, uncorrected=1)
        await until(lambda: states()[5] == "quarantined", PATIENCE_S)
        assert seat.statuses[-1]["gpus"][5]["health"]["code"] == "ecc-double-bit"
        machine.set(2, rows_pending=1)
        await until(lambda: states()[2] == "degraded", 2 * PATIENCE_S)
        assert seat.statuses[-1]["gpus"][2]["health"]["code"] == "row-remap-pending"
        assert seat.statuses[-1]["gpus"][2]["healthy"]


@pytest.mark.plane
async def test_a_pod_that_uses_a_gpu_without_a_request_gets_an_event_and_nobody_has_to_scrape(
    crd: Plane, standin: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_CHECK_S", 0.2)
    monkeypatch.setattr(accounting, "PERSISTS_S", 0.5)
    monkeypatch.setattr(pod_events, "COUNT_AGAIN_S", 0.2)
    machine = standin("dgx-a100")
    async with Seat(load_kubeconfig([crd.kubeconfig]), machine, "used", exporter="127.0.0.1:0") as seat, seat.agent():
        await seat.offers(8)
        other = pod("other", {})
        await seat.bind(other)
        for pid, file, text in (
            (2, "comm", "kthreadd"),
            (4242, "cgroup", f"0::/kubepods/pod{other['metadata']['uid']}/x\n"),
        ):
            (machine.proc / str(pid)).mkdir(exist_ok=True)
            (machine.proc / str(pid) / file).write_text(text)
        machine.process(3, 4242, memory_mib=100)
        await until(lambda: bool(events(crd, "GPUUsedWithoutRequest", "other")), 2 * PATIENCE_S)
        (note,) = events(crd, "GPUUsedWithoutRequest", "other")
        assert "Process 4242 of this pod uses GPU-" in note and "(100 MiB)" in note
        await seat.ends(other)
