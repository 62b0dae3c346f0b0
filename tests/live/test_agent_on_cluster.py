# SPDX-License-Identifier: Apache-2.0
"""An agent on the real API server, with the rights of the role dovetail-software-agent and no others, and a scheduler
with its own."""

from __future__ import annotations

import asyncio

import pytest

from dovetail.kube.api.client import Client
from dovetail.kube.api.config import load_config
from dovetail.plane import Accept, BrokerRefused, CounterOffer, EndCause, OfferRound, Option, on_cluster
from dovetail.plane.policies import Move
from tests.live.conftest import NAMESPACE, Cluster, eventually
from tests.patience import PATIENCE_S
from tools.controlplane.plane import Plane

pytestmark = pytest.mark.plane
HERE, QUEUE = "agent-lives", "agents-live"


def smaller(table: OfferRound) -> Move:
    if table.rounds == 0:
        return CounterOffer(Option(gpus=2, minutes=0.2).alternative(table.now_ms))
    return Accept(table.offers[0].id)


async def test_an_agent_bargains_renews_and_returns_with_its_own_rights(deployed_plane: Plane) -> None:
    plane = deployed_plane
    for kind in ("queues", "agentcontrolplanes", "leaserequests", "gpuleases"):
        plane.kubectl("wait", "--for=condition=Established", f"crd/{kind}.dovetail.dev", "--timeout=60s")
    plane.kubectl("create", "namespace", HERE)
    scheduler_config = load_config(str(plane.service_account_kubeconfig(NAMESPACE, "dovetail-scheduler")))
    async with Client(load_config(str(plane.kubeconfig))) as client:
        cluster = Cluster(client, scheduler_config, None)
        cluster.namespace = HERE
        await eventually(lambda: cluster.get(f"/api/v1/namespaces/{HERE}/serviceaccounts/default"), bool)
        node = await cluster.node("n", gpus=4)
        group = "/apis/dovetail.dev/v1alpha1"
        head = {"apiVersion": "dovetail.dev/v1alpha1"}
        await cluster.create(
            f"{group}/queues", head | {"kind": "Queue", "metadata": {"name": QUEUE}, "spec": {"planes": True}}
        )
        spec = {"queue": QUEUE, "heartbeat": "1s", "grace": "4s", "idle": "0s"}
        meta = {"name": "agent", "namespace": HERE}
        await cluster.create(
            f"{group}/namespaces/{HERE}/agentcontrolplanes",
            head | {"kind": "AgentControlPlane", "metadata": meta, "spec": spec},
        )
        agent_config = str(plane.service_account_kubeconfig(HERE, "default"))
        with pytest.raises(BrokerRefused, match=r"403 Forbidden.*bind the ClusterRole dovetail-software-agent"):
            async with on_cluster(f"{HERE}/agent", kubeconfig=agent_config):
                pass
        plane.kubectl(
            "create", "rolebinding", "agent", "--clusterrole=dovetail-software-agent",
            f"--serviceaccount={HERE}:default", f"--namespace={HERE}",
        )  # fmt: skip
        account = f"--as=system:serviceaccount:{HERE}:default"

        async def rights() -> str:
            return plane.kubectl("auth", "can-i", "--list", account, f"--namespace={HERE}")

        await eventually(rights, lambda found: "gpuleases.dovetail.dev" in found)
        try:
            async with cluster.scheduler(), asyncio.timeout(2 * PATIENCE_S):
                await _lives(agent_config, node)
                for kind in ("leaserequests", "gpuleases"):
                    await eventually(
                        lambda kind=kind: cluster.get(f"{group}/namespaces/{HERE}/{kind}"),
                        lambda found: not found["items"],
                    )
        finally:
            plane.kubectl("delete", "namespace", HERE, "--wait=false")
            plane.kubectl("delete", "queue", QUEUE)
            await cluster.delete(f"/api/v1/nodes/{node}")


async def _lives(kubeconfig: str, node: str) -> None:
    async with on_cluster(f"{HERE}/agent", kubeconfig=kubeconfig) as agent:
        with pytest.raises(BrokerRefused, match=r"spec\.alternatives\[0\]\.nvlink: Invalid value"):
            await agent.negotiate(Option(gpus=3, nvlink=True))
        async with agent.lease(Option(gpus=4, minutes=1), policy=smaller) as lease:
            assert {device.node for device in lease.devices} == {node} and len(lease.devices) == 2
            await agent.clock.sleep(9000)
            await lease.renew(0.2)
            assert lease.record.renewals == 1 and lease.live
        assert lease.cause is EndCause.RETURNED
        held = await agent.negotiate(Option(gpus=4, minutes=5))
        assert len(held.devices) == 4
