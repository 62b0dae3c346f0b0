# SPDX-License-Identifier: Apache-2.0
"""Whether the agent is alive and ready, and its metrics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from dovetail.agent.endpoints import serving
from dovetail.agent.health.health import Unhealthy
from dovetail.agent.machine.host import GpuInstance, Host
from dovetail.agent.metrics import STUCK_S, AgentMetrics, Looks, metrics, stuck, waits
from dovetail.agent.plugin.plugins import Counts
from dovetail.agent.publish.publisher import NodeFacts
from dovetail.cli.agent.run import command
from dovetail.kube.api.config import load_kubeconfig
from tests.agent.agents import host, until
from tests.agent.whole_agent import Seat
from tests.deploy.agent.test_privileges import BASE, container
from tests.paths import ROOT
from tests.patience import PATIENCE_S
from tools.controlplane.plane import Plane
from tools.standin import Standin

GPUS = host(3)
SEEN = NodeFacts(
    replace(
        GPUS, gpus=(replace(GPUS.gpus[0], mig=(GpuInstance("MIG-1", "1g.5gb", 7, 0, 0, 1, 4864),)), *GPUS.gpus[1:])
    ),
    unhealthy=(Unhealthy(GPUS.gpus[1].uuid, "xid-79", "gone", 0), Unhealthy("MIG-1", "xid-94", "one", 0)),
    offered=frozenset({"nvidia.com/gpu"}),
    registered=frozenset({"nvidia.com/gpu"}),
    unregistered=("", ""),
    faults=("CDI: no room",),
)
WELL = AgentMetrics(3.0, Looks(4, 0.25, 100.0), True, True, SEEN, True, 2, Counts(1, 5, 3, 1, 1), 1)


def test_it_is_stuck_without_a_look_for_a_quarter_of_an_hour() -> None:
    assert not stuck(replace(WELL, idle_s=STUCK_S))
    assert "no look at the machine has ended for 901 s" in stuck(replace(WELL, idle_s=STUCK_S + 1))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ()),
        ({"found": False, "published": False}, ("not all GPUs have been seen yet",)),
        ({"published": False}, ("the GPUNode is not written yet",)),
        ({"seen": replace(SEEN, unregistered=("KubeletGone", "no process listens"))}, ("no process listens",)),
        ({"claims": False}, ("the kubelet has not registered the DRA driver",)),
        ({"seen": NodeFacts(Host(sight="none")), "claims": None, "counts": None}, ()),
    ],
)
def test_it_is_ready_when_there_is_nothing_to_wait_for(changes: dict[str, Any], why: tuple[str, ...]) -> None:
    assert waits(replace(WELL, **changes)) == why


def values(vitals: AgentMetrics) -> dict[str, float]:
    return {
        ",".join((sample.name.removeprefix("dovetail_agent_"), *sample.labels.values())): sample.value
        for family in metrics(vitals)
        for sample in family.samples
    }


def test_every_metric_has_a_help_text() -> None:
    assert [family.name for family in metrics(WELL) if not family.documentation] == []


def test_the_metrics_have_the_values_of_the_agent() -> None:
    assert values(WELL) == {
        "gpus,healthy": 2, "gpus,ill": 1, "mig_instances": 1, "illnesses,xid-79": 1, "illnesses,xid-94": 1,
        "unread_fields": 0, "faults": 1, "looks_total": 4, "look_seconds": 0.25, "look_age_seconds": 3,
        "registered,nvidia.com/gpu": 1, "registrations_total": 1, "allocations_total": 5, "preferences_total,chosen": 3,
        "preferences_total,unchosen": 1, "preferences_total,unmet": 1, "differences": 0, "differed_total": 1,
        "driver_registered": 1, "claims_prepared": 2,
    }  # fmt: skip
    alone = values(replace(WELL, claims=None, counts=None))
    assert not {"registrations_total", "driver_registered", "claims_prepared"} & alone.keys()


async def get(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


async def test_the_endpoints_answer_so() -> None:
    now = WELL
    async with serving("127.0.0.1:0", lambda: now) as port:
        for path in ("/livez", "/healthz", "/readyz"):
            assert await get(port, path) == (200, "ok\n")
        now = replace(WELL, idle_s=STUCK_S + 1, published=False)
        assert (await get(port, "/livez"))[0] == (await get(port, "/healthz"))[0] == 503
        assert await get(port, "/readyz") == (503, "the GPUNode is not written yet\n")
        status, text = await get(port, "/metrics")
        assert status == 200
        names = {family.name for family in text_string_to_metric_families(text)}
        assert {"dovetail_agent_gpus", "process_resident_memory_bytes"} <= names
        with pytest.raises(OSError, match="in use"):
            async with serving(f"127.0.0.1:{port}", lambda: now):
                pass


async def test_idle_clients_keep_no_probe_from_its_answer() -> None:
    async with serving("127.0.0.1:0", lambda: WELL) as port:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
        for _ in range(3):
            assert await get(port, "/livez") == (200, "ok\n")
        for _, writer in idle:
            writer.close()


@pytest.mark.plane
async def test_an_agent_is_not_ready_before_the_kubelet_has_what_it_offers(
    plane: Plane, standin: Callable[[Any], Standin], unused_tcp_port: int
) -> None:
    plane.kubectl("apply", f"--filename={ROOT / 'deploy/crds/gpunode.yaml'}")
    plane.kubectl("wait", "--for=condition=Established", "crd", "gpunodes.dovetail.dev", "--timeout=60s")
    machine, port = standin("dgx-a100"), unused_tcp_port
    machine.slow("nvmlInit", 1500)
    seen: list[tuple[int, str]] = []

    async def until_ready(wanted: bool) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not seen or (seen[-1][0] == 200) != wanted:
                await asyncio.sleep(0.05)
                with contextlib.suppress(aiohttp.ClientError):
                    seen.append(await get(port, "/readyz"))

    cluster = load_kubeconfig([plane.kubeconfig])
    async with Seat(cluster, machine, "probed", listen=f"127.0.0.1:{port}") as seat, seat.agent():
        await until_ready(True)
        assert seen[0] == (503, "not all GPUs have been seen yet\n")
        assert (await get(port, "/livez"))[0] == 200
        await until(lambda: bool(seat.statuses) and len(seat.statuses[-1]["gpus"]) == 8)
        _, text = await get(port, "/metrics")
        assert 'dovetail_agent_gpus{state="healthy"} 8.0' in text
        assert 'dovetail_agent_registered{resource="nvidia.com/gpu"} 1.0' in text
        await seat.kubelet.stop()
        await until_ready(False)
        assert "kubelet" in seen[-1][1]
        await seat.kubelet.start()
        await until_ready(True)


def test_the_daemonset_asks_where_the_agent_answers() -> None:
    (listen,) = (option for option in command.params if option.name == "listen")
    agent = container(BASE)
    assert {"name": "http", "containerPort": int(str(listen.default).rpartition(":")[2])} in agent["ports"]
    assert agent["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "http"}
    assert agent["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
