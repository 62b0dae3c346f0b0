# SPDX-License-Identifier: Apache-2.0
"""What containers get for their network by a claim, and whose variables have precedence."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail.agent.config import Config
from dovetail.agent.dra.claim_networks import ClaimNetworks
from dovetail.agent.dra.configs import ConfiguredClaim
from dovetail.agent.dra.offer import Offered, offered
from dovetail.agent.dra.prepared import WantedClaim
from dovetail.agent.kubelet.allocations import Allocations
from dovetail.agent.plugin.job_network import EXPLANATION, LACKING_REASON, REASON, JobNetwork
from dovetail.agent.plugin.nccl_conf import CONF, NcclFiles
from dovetail.agent.publish.pod_events import PodEvent
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.reflector import Change
from dovetail.kube.objects.pods_on_node import PodOnNode
from tests.agent.plugin.nics import FOUR, machine

HOST = machine(*FOUR)
Document = dict[str, Any]


class Claims:
    """The claims of a node and its pods; what the devices of a claim get."""

    def __init__(self, folder: Path, pods: Allocations) -> None:
        self.config = Config(network_environment=True)
        self.events: list[PodEvent] = []
        self._pods = pods
        self._devices: dict[tuple[str, str], tuple[WantedClaim, ...]] = {}
        network = JobNetwork(NcclFiles(folder), lambda: HOST, lambda: self.config, self.events.append)
        self._networks = ClaimNetworks(network, pods)

    def pod(self, name: str, *containers: Document, **options: str) -> None:
        spec = {
            "nodeName": "n1",
            "containers": [{"name": f"c{at}", **one} for at, one in enumerate(containers)],
            "resourceClaims": [
                {"name": "gpus", "resourceClaimTemplateName": "t"}, {"name": "more", "resourceClaimName": "b"}
            ],
        }  # fmt: skip
        meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "annotations": options}
        status = {"phase": "Pending", "resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": "a"}]}
        document = {"metadata": meta, "spec": spec, "status": status}
        self._pods.update([Change("added", msgspec.convert(document, PodOnNode))])

    def claim(self, name: str, devices: dict[str, str]) -> None:
        """The claim has these devices, by their name, for these requests."""
        there: dict[str, Offered] = {one.name: one for one in offered(HOST, False, {})}
        wanted = [WantedClaim(there[device], request) for device, request in devices.items()]
        self._devices["ns", name] = tuple(wanted)

    async def get(self, name: str, *pods: str, owner: str = "uid-p") -> dict[str, tuple[dict[str, str], list[str]]]:
        """By device the variables, without the explanation, and the mounts."""
        consumers = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods or ("p",)]
        meta = {"namespace": "ns", "name": name, "ownerReferences": [{"uid": owner}] if owner else []}
        document = {"metadata": meta, "status": {"reservedFor": consumers}}
        claim, wanted = msgspec.convert(document, ConfiguredClaim), self._devices["ns", name]
        found = await self._networks.joined(claim, wanted, self._devices)
        return {
            one.device.name: (
                {key: value for key, value in one.network.env if key != EXPLANATION},
                [mount.container_path for mount in one.network.mounts],
            )
            for one in found
        }


@pytest.fixture
async def claims(tmp_path: Path) -> AsyncIterator[Claims]:
    """Without a watch: tests apply the pods."""
    async with Client(ClusterConfig("http://127.0.0.1:1")) as client:
        yield Claims(tmp_path, Allocations(client, "n1", wait_s=0.05))


def using(*claims: str, **more: Any) -> Document:
    named = [{"name": claim, **({"request": request} if request else {})} for claim, _, request in
             (one.partition("/") for one in claims)]  # fmt: skip
    return {"resources": {"claims": named}, **more}


PRIVILEGED = {"securityContext": {"privileged": True}}
INTERFACE = {"NCCL_SOCKET_IFNAME": "=eth0", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "eth0"}


async def test_the_devices_of_a_claim_have_what_fits_all_gpus_of_the_container(claims: Claims) -> None:
    claims.pod("p", using("gpus", "more", **PRIVILEGED))
    claims.claim("a", {"gpu-0": "r", "gpu-1": "r"})
    claims.claim("b", {"gpu-3": "r"})
    first, then = await claims.get("a"), await claims.get("b")
    assert {**first, **then}.keys() == {"gpu-0", "gpu-1", "gpu-3"}
    for env, mounts in (*first.values(), *then.values()):
        assert env["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1,mlx5_3" and env.items() >= INTERFACE.items() and not mounts
    assert [(one.pod, one.reason, one.warns) for one in claims.events] == [("p", REASON, False)] * 2


async def test_a_container_that_uses_one_request_has_what_fits_its_devices(claims: Claims) -> None:
    claims.pod("p", using("gpus/left", **PRIVILEGED), using("gpus/right", **PRIVILEGED), {})
    claims.claim("a", {"gpu-0": "left", "gpu-2": "right/large"})
    found = await claims.get("a")
    assert {name: env["NCCL_IB_HCA"] for name, (env, _) in found.items()} == {"gpu-0": "=mlx5_0", "gpu-2": "=mlx5_2"}


async def test_containers_that_share_devices_have_what_is_right_for_each(claims: Claims) -> None:
    own = {"env": [{"name": "NCCL_SOCKET_IFNAME", "value": "net1"}], **PRIVILEGED}
    claims.pod("p", using("gpus", **PRIVILEGED), using("gpus", **own))
    claims.claim("a", {"gpu-0": "r"})
    env, _ = (await claims.get("a"))["gpu-0"]
    assert env == {"NCCL_IB_HCA": "=mlx5_0"}
    (event,) = claims.events
    assert event.reason == LACKING_REASON and "each of the 2 containers that have the same devices" in event.note


async def test_variables_that_may_come_from_elsewhere_are_not_replaced(claims: Claims) -> None:
    """The container runtime applies CDI specifications last."""
    claims.config = Config(network_environment=True, nccl_conf=True)
    claims.pod("p", using("gpus", envFrom=[{"configMapRef": {"name": "own"}}], **PRIVILEGED))
    claims.claim("a", {"gpu-0": "r"})
    # NCCL reads the file after the environment.
    assert (await claims.get("a"))["gpu-0"] == ({}, [CONF])
    (event,) = claims.events
    assert "left out NCCL_SOCKET_IFNAME" in event.note and "NCCL_IB_HCA" in event.note and "envFrom" in event.note


@pytest.mark.parametrize(("pods", "owner"), [(("p",), ""), (("p", "q"), "uid-p"), (("p",), "uid-q")])
async def test_a_claim_that_further_pods_can_use_has_nothing(claims: Claims, pods: tuple[str, ...], owner: str) -> None:
    for pod in pods:
        claims.pod(pod, using("gpus"))
    claims.claim("a", {"gpu-0": "r"})
    assert (await claims.get("a", *pods, owner=owner))["gpu-0"] == ({}, [])
    assert [(one.pod, one.reason) for one in claims.events] == [(pod, LACKING_REASON) for pod in pods]
    assert "further pods can use the claim a" in claims.events[0].note


async def test_opted_out_unknown_or_not_configured_it_is_nothing(
    claims: Claims, caplog: pytest.LogCaptureFixture
) -> None:
    claims.claim("a", {"gpu-0": "r"})
    nothing = {"gpu-0": ({}, [])}
    assert await claims.get("a") == nothing and "no pod of this node has the uid uid-p" in caplog.text
    claims.pod("p", using("gpus"), **{"dovetail.dev/network-environment": "false"})
    assert await claims.get("a") == nothing
    claims.pod("q", using("gpus"))
    claims.config = Config()
    assert await claims.get("a", "q", owner="uid-q") == nothing and not claims.events


async def test_a_claim_for_extended_resources_is_that_of_the_containers_which_request_them(claims: Claims) -> None:
    mapping = [{"containerName": "c0", "resourceName": "nvidia.com/gpu", "requestName": "one"}]
    pod = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "uid-p"},
        "spec": {"containers": [{"name": "c0"}, {"name": "c1"}]},
        "status": {"extendedResourceClaimStatus": {"resourceClaimName": "a", "requestMappings": mapping}},
    }
    claims._pods.update([Change("added", msgspec.convert(pod, PodOnNode))])
    claims.claim("a", {"gpu-0": "one", "gpu-1": "other"})
    found = await claims.get("a")
    assert (found["gpu-0"][0].items() >= INTERFACE.items(), found["gpu-1"]) == (True, ({}, []))
