# SPDX-License-Identifier: Apache-2.0
"""What of a container on this node decides which interfaces and NICs it can use.

Only variables with a prefix of `PREFIXES` are kept. One whose value comes from elsewhere (`valueFrom`, `$(NAME)`) has
the value None. Those that `envFrom` brings are not known: the agent reads no ConfigMaps and Secrets. A pod that was too
long to be read counts as one that has opted out.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from dovetail.kube.objects.pods import ExtendedClaimStatus
from dovetail.kube.objects.pods_on_node import PodOnNode
from dovetail.kube.translate.annotations import options_of

PREFIXES = ("NCCL_", "UCX_", "NVSHMEM_")
_REFERENCE = "$("
_NETWORKS = "k8s.v1.cni.cncf.io/networks"
"""The annotation by which Multus gives a pod further interfaces."""


class ContainerNetwork(Struct, frozen=True):
    """wanted: the pod has not opted out. host_network: it is on the network of the node. further_networks: it has
    interfaces beside that of the pod network. claims: the pod has devices by claims. privileged: it sees all
    devices of the node. resources: the extended resources that it requests. own: its own variables; None for a value
    that is not in the pod. more_own: it may have further ones, by `envFrom`. claimed: by the name of a ResourceClaim
    the requests whose devices it has, "" for all."""

    wanted: bool = True
    host_network: bool = False
    further_networks: bool = False
    claims: bool = False
    privileged: bool = False
    resources: frozenset[str] = frozenset()
    own: Mapping[str, str | None] = {}
    more_own: bool = False
    claimed: Mapping[str, frozenset[str]] = {}

    def has(self, claim: str, request: str) -> bool:
        """Whether it has the devices of a request, which may be an alternative: request/alternative."""
        having = self.claimed.get(claim, frozenset())
        return "" in having or request.partition("/")[0] in having


def networks_of(pod: PodOnNode) -> dict[str, ContainerNetwork]:
    """By the name of the container."""
    meta, spec = pod.metadata, pod.spec
    wanted = options_of(meta).network_environment is not False and not pod.unread
    names = {one.name: one.resource_claim_name for one in spec.resource_claims}
    # Those that were made from templates.
    names |= {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses}
    extended = pod.status.extended_resource_claim_status or ExtendedClaimStatus()
    found = {}
    for one in (*spec.init_containers, *spec.containers):
        own = {
            variable.name: variable.value if variable.value_from is None and _REFERENCE not in variable.value else None
            for variable in one.env
            if variable.name.startswith(PREFIXES)
        }
        resources = frozenset(name for name in one.resources.limits if "/" in name)
        privileged = one.security_context is not None and one.security_context.privileged
        claimed: dict[str, set[str]] = {}
        for use in one.resources.claims:
            claimed.setdefault(names.get(use.name, ""), set()).add(use.request)
        for mapping in extended.request_mappings or ():
            if mapping.container_name == one.name:
                claimed.setdefault(extended.resource_claim_name, set()).add(mapping.request_name)
        found[one.name] = ContainerNetwork(
            wanted, spec.host_network, bool(meta.annotations.get(_NETWORKS)), bool(spec.resource_claims), privileged,
            resources, own, any(_may_bring(source.prefix) for source in one.env_from),
            {name: frozenset(requests) for name, requests in claimed.items() if name},
        )  # fmt: skip
    return found


def _may_bring(prefix: str) -> bool:
    """Whether a name that begins so can be that of a variable that is kept."""
    return any(prefix.startswith(one) or one.startswith(prefix) for one in PREFIXES)
