# SPDX-License-Identifier: Apache-2.0
"""What the containers of claims get for their network, in the CDI specification of the claim.

Rules
- A claim that was made for one pod (it is owned by it) names its containers: those that use it, or the request of the
  device. What they get is right for the whole GPUs that they have by all claims of the pod.
- For a claim that further pods can use nothing is set: a CDI specification is for all of them, and what it sets
  replaces their own variables. Their pods have an Event.
- MIG instances and devices with admin access get nothing, as with the device plugin.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from dovetail.agent.cdi import Edits
from dovetail.agent.dra.configs import ConfiguredClaim
from dovetail.agent.dra.prepared import PreparedDevice, WantedClaim
from dovetail.agent.kubelet.allocations import Allocations
from dovetail.agent.kubelet.bound_pods import BoundPod
from dovetail.agent.kubelet.container_networks import ContainerNetwork
from dovetail.agent.plugin.job_network import JobNetwork

log = logging.getLogger(__name__)

Devices = Iterable[WantedClaim | PreparedDevice]


class ClaimNetworks:
    """`pods` are those of the node."""

    def __init__(self, network: JobNetwork, pods: Allocations) -> None:
        self._network, self._pods = network, pods

    async def joined(
        self, claim: ConfiguredClaim, wanted: Sequence[WantedClaim], claims: Mapping[tuple[str, str], Devices]
    ) -> tuple[WantedClaim, ...]:
        """The devices of a claim with what their containers get. `claims` are the devices of all claims of the node by
        namespace and name of the claim, at least those of its pod."""
        gpus = [one.whole_gpu for one in wanted if one.whole_gpu]
        if not self._network.wanted or not gpus:
            return tuple(wanted)
        pods = [one for one in claim.status.reserved_for if one.resource == "pods"]
        owners = {owner.uid for owner in claim.metadata.owner_references}
        if len(pods) != 1 or pods[0].uid not in owners:
            for shared in await self._pods.pods_known([one.uid for one in pods]):
                self._network.lacks(shared, gpus, f"further pods can use the claim {claim.metadata.name}")
            return tuple(wanted)
        pod = next(iter(await self._pods.pods_known([pods[0].uid])), None)
        if pod is None:
            name = f"{claim.metadata.namespace}/{pods[0].name}"
            log.warning("%s gets nothing for its network: no pod of this node has the uid %s", name, pods[0].uid)
            return tuple(wanted)
        return self._of_pod(pod, claim.metadata.name, wanted, claims)

    def _of_pod(
        self, pod: BoundPod, claim: str, wanted: Sequence[WantedClaim], claims: Mapping[tuple[str, str], Devices]
    ) -> tuple[WantedClaim, ...]:
        def gpus(network: ContainerNetwork) -> tuple[str, ...]:
            """All that the container has by claims, in the order of the claims."""
            return tuple(
                device.whole_gpu
                for name in network.claimed
                for device in claims.get((pod.namespace, name), ())
                if device.whole_gpu and network.has(name, device.request)
            )

        # Devices of the same containers get the same, and the pod one Event.
        made: dict[tuple[str, ...], Edits] = {}
        found = []
        for one in wanted:
            having = tuple(name for name, network in pod.networks.items() if network.has(claim, one.request))
            if not one.whole_gpu or not having:
                found.append(one)
                continue
            if having not in made:
                containers = [(pod.networks[name], gpus(pod.networks[name])) for name in having]
                made[having] = self._network.edits_by_claim(pod, containers)
            found.append(replace(one, network=made[having]))
        return tuple(found)
