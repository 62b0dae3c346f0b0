# SPDX-License-Identifier: Apache-2.0
"""Pods: from wire structs to core records.

Rules
- A record has all values resolved (see `core.model`). The rules of amounts are in `requests`, those of selectors in
  `selectors`, those of the `dovetail.dev/` labels and annotations in `annotations`.
- A field that cannot be honoured as written becomes the record's Problem. A pod of another scheduler has none, as only
  the resources that it holds count.
- A pod that requests GPUs and uses the host network or RDMA devices (`rdma/*`) communicates with other nodes: its GPUs
  should be near NICs. The GPUs chosen for a pod are read once it is bound.
- Equal parts are built once: pods of one template share their Request.
- A ResourceClaim not created yet from its template has the name UNMADE plus its name in the pod. The claim for extended
  resources belongs to the pod's claims once the pod is bound.
- Of a pod of another scheduler only the requests are read, and once it is bound or nominated, its host ports and its
  anti-affinity. How much of any pod is read is in `limits`.
Not supported: runtime classes.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from msgspec.structs import replace

from dovetail.core.bounded_cache import Remembered, remembered, same
from dovetail.core.model import (
    GPU,
    NO_WORK,
    SPARE_TOLERATION,
    Effect,
    HostPort,
    Instance,
    Pod,
    Problem,
    Request,
    Spread,
    Toleration,
)
from dovetail.kube.gangs.declared import Membership
from dovetail.kube.gangs.made_for import made_for
from dovetail.kube.gangs.ordinals import ordinals
from dovetail.kube.gangs.owners import owned_by
from dovetail.kube.namespaces import SYSTEM_NAMESPACE
from dovetail.kube.objects.base import ObjectMeta, epoch_ms
from dovetail.kube.objects.pods import SIDECAR, NodeAffinity, PodSpec
from dovetail.kube.objects.pods import Pod as PodObject
from dovetail.kube.objects.pods import Toleration as WireToleration
from dovetail.kube.translate import selectors
from dovetail.kube.translate.annotations import NOTHING, WorkloadOptions, last_checkpoint_ms, options_of
from dovetail.kube.translate.bound import Bound, devices_of
from dovetail.kube.translate.fractions import name_problems, share_problems, with_share
from dovetail.kube.translate.limits import MOST_PORTS, bounded
from dovetail.kube.translate.pod_status import bound_ms
from dovetail.kube.translate.problems import first_of, one_of
from dovetail.kube.translate.requests import Effective, effective
from dovetail.kube.translate.work import work_of

EVERY_IP = "0.0.0.0"
UNMADE = "?"
"""The prefix of the name of a ResourceClaim that is not created yet; no object can have such a name."""
_LONGEST_UID = 189
"""Together with the namespace and the slash this makes at most 253 characters."""

_TOLERATED_EFFECTS: dict[str, Effect | Literal[""]] = {
    "": "", "NoSchedule": "NoSchedule", "PreferNoSchedule": "PreferNoSchedule", "NoExecute": "NoExecute",
}  # fmt: skip
_TOLERATION_OPERATORS: dict[str, Literal["Exists", "Equal", "Lt", "Gt"]] = {
    "": "Equal", "Equal": "Equal", "Exists": "Exists", "Lt": "Lt", "Gt": "Gt",
}  # fmt: skip

shared = Remembered[Request](16384, same)
"""Returns one object for all equal requests."""


def owner_of(meta: ObjectMeta) -> str:
    """The object's controller, as "namespace/uid"; "" if it has none."""
    for reference in meta.owner_references:
        if reference.controller:
            return _owner(meta.namespace, reference.uid[:_LONGEST_UID])
    return ""


@remembered(8192)
def _owner(namespace: str, uid: str) -> str:
    """The uid with the namespace. Any user can write any uid, so it is only valid inside the namespace."""
    return f"{namespace}/{uid}" if uid else ""


class MetadataRecord(NamedTuple):
    """The parsed metadata of a pod: `options` from its `dovetail.dev/` labels and annotations, `owned` from its
    owner."""

    options: WorkloadOptions
    owned: Membership | None


_NO_METADATA = MetadataRecord(NOTHING, None)
"""The value for a pod of another scheduler: its metadata is not read."""


def metadata_of(obj: PodObject) -> MetadataRecord:
    """Parse the metadata of a pod of this scheduler, once for each version: its record and its gang depend on it."""
    meta = obj.metadata
    return MetadataRecord(options_of(meta), owned_by(obj) if meta.owner_references else None)


def problems_of(obj: PodObject) -> list[Problem]:
    """All values of a waiting pod that cannot be honoured, as if this scheduler were its own; `pod` has the first."""
    problems: list[Problem] = []
    pod(obj, obj.spec.scheduler_name, problems=problems)
    return problems


def pod(
    obj: PodObject,
    scheduler_name: str = "dovetail",
    bound: Bound | None = None,
    own: MetadataRecord | None = None,
    problems: list[Problem] | None = None,
) -> Pod:
    """The core's record of an unfinished pod, without its gang, which depends on other objects (see `translator`).
    `bound` is the record written with the Binding; None for a waiting pod. For a pod of another scheduler, which may be
    another instance of this one, only the devices are taken from it. `own` is the parsed metadata; None: it is parsed
    here. `problems` collects all values that cannot be honoured; the record has the first."""
    if problems is None:
        problems = []
    meta, spec, status = obj.metadata, obj.spec, obj.status
    managed = spec.scheduler_name == scheduler_name
    recorded = bound is not None and bound.recorded
    if not managed:
        own = _NO_METADATA
    elif own is None:
        own = metadata_of(obj)
    options = bound.options if bound is not None and recorded else own.options
    read, too_much = bounded(obj)
    asked = effective(read)
    problems += (*(options.problems if bound is None else ()), *too_much, *asked.problems)
    request = _request_of(read, asked, problems, managed)
    if managed and (bound is None or recorded):
        if options.nvlink:
            request = with_nvlink(request, options.nvlink)
        if bound is None and asked.misspelt and not too_much:
            problems += name_problems(asked.misspelt)
        asleep = options.gpu_asleep_mib or options.sleep_engine
        if options.gpu_memory_mib or options.gpu_milli or options.isolation or asleep:
            if bound is None:
                problems += share_problems(obj, asked.resources, options)
            request = with_share(request, options, meta.namespace)
    extended = status.extended_resource_claim_status
    claims, own_volumes = _claims(read) if spec.volumes else ((), ())
    device_claims, own_claims = tuple[str, ...](), tuple[str, ...]()
    if spec.resource_claims or extended is not None:
        device_claims, own_claims = _device_claims(read, problems)
    devices: tuple[int, ...] | None = None
    slices = tuple[Instance, ...]()
    if bound is not None and bound.devices and spec.node_name:
        devices, slices = devices_of(bound.devices, asked.resources)
    if bound is not None and recorded:
        owner = _owner(meta.namespace, bound.owner)
    else:
        owner = owner_of(meta) if meta.owner_references else ""
    checkpoint_ms, work, made = 0, NO_WORK, bound.made_for if bound is not None else ""
    # The records of earlier releases name no object.
    if not made and meta.owner_references and owner == owner_of(meta):
        made = made_for(obj, own.owned if managed else owned_by(obj))
    if managed:
        checkpoint_ms = options.last_checkpoint_ms if bound is None else last_checkpoint_ms(meta)
        owned = own.owned
        work = work_of(
            obj, options if bound is None or recorded else NOTHING, owned.owner if owned is not None else None
        )
    return Pod(
        meta.uid,
        meta.namespace,
        meta.name,
        request,
        tuple(sorted(read.metadata.labels.items())),
        spec.priority or 0,
        epoch_ms(meta.creation_timestamp),
        spec.node_name,
        bound_ms(obj) if spec.node_name else 0,
        status.nominated_node_name,
        bound.gang if bound is not None and managed else "",
        managed,
        bool(spec.scheduling_gates),
        meta.deletion_timestamp is not None,
        claims,
        options.queue if managed else "",
        first_of(problems) if problems and managed else None,
        devices,
        owner,
        device_claims,
        slices,
        asked.containers if managed and not spec.node_name and not too_much else (),
        tuple(sorted({one.resource_name for one in extended.request_mappings or ()})) if extended is not None else (),
        options.user if managed else "",
        checkpoint_ms,
        work,
        recorded,
        own_volumes,
        own_claims,
        f"{meta.namespace}/{options.lease}" if managed and options.lease else "",
        options.fence if managed else 0,
        held=options.hold is True and managed and not spec.node_name,
        made_for=made,
        ordinals=ordinals(meta) if managed and meta.owner_references and not spec.node_name else (),
    )


def with_nvlink(request: Request, nvlink: str) -> Request:
    """The request of a pod with this value of `dovetail.dev/nvlink`."""
    required = nvlink == "required"
    return request if request.nvlink_required == required else shared(replace(request, nvlink_required=required))


def _request_of(obj: PodObject, asked: Effective, problems: list[Problem], ours: bool) -> Request:
    """The Request of a pod of this scheduler (`ours`) or another one; one object for all equal ones."""
    meta, spec = obj.metadata, obj.spec
    resources, managed = asked.resources, asked.managed
    names = [name for name, _ in resources]
    # Its GPUs communicate with those of other nodes.
    near_nics = GPU in names and (spec.host_network or any(name.startswith("rdma/") for name in names))
    placed = bool(spec.node_name or obj.status.nominated_node_name)
    ports = _ports(spec) if ours or placed else ()
    if not ours:
        keeps_away = spec.affinity.pod_anti_affinity if placed and spec.affinity is not None else None
        far, _ = selectors.peers(keeps_away, -1, meta, "spec.affinity.podAntiAffinity", problems)
        return shared(Request(resources, ports=ports, anti_affinity=far, near_nics=near_nics, managed=managed))
    tolerations, bad_tolerations = _tolerations(spec.tolerations)
    problems += bad_tolerations
    if meta.namespace != SYSTEM_NAMESPACE and any(one.key == SPARE_TOLERATION for one in tolerations):
        tolerations = tuple([one for one in tolerations if one.key != SPARE_TOLERATION])
    node_selector = tuple(sorted(spec.node_selector.items()))
    spread = tuple[Spread, ...]()
    if spec.topology_spread_constraints:
        spread = selectors.spread(spec.topology_spread_constraints, meta, "spec.topologySpreadConstraints", problems)
    if spec.affinity is None:
        return shared(Request(
            resources, node_selector=node_selector, tolerations=tolerations, ports=ports, spread=spread,
            near_nics=near_nics, managed=managed,
        ))  # fmt: skip
    wire, path = spec.affinity, "spec.affinity"
    nodes = wire.node_affinity or NodeAffinity()
    node_terms = selectors.node_terms(nodes.required, f"{path}.nodeAffinity.required", problems)
    preferred_nodes = selectors.preferred_nodes(nodes, f"{path}.nodeAffinity.preferred", problems)
    near, prefer_near = selectors.peers(wire.pod_affinity, 1, meta, f"{path}.podAffinity", problems)
    far, prefer_far = selectors.peers(wire.pod_anti_affinity, -1, meta, f"{path}.podAntiAffinity", problems)
    preferred_peers = (*prefer_near, *prefer_far)
    return shared(Request(
        resources, node_selector=node_selector, node_terms=node_terms, preferred_nodes=preferred_nodes,
        tolerations=tolerations, ports=ports, spread=spread, affinity=near, anti_affinity=far,
        preferred_peers=preferred_peers, near_nics=near_nics, managed=managed,
    ))  # fmt: skip


@remembered(4096)
def _tolerations(wire: tuple[WireToleration, ...]) -> tuple[tuple[Toleration, ...], tuple[Problem, ...]]:
    problems: list[Problem] = []
    found = []
    for i, t in enumerate(wire):
        operator = one_of(_TOLERATION_OPERATORS, t.operator, f"spec.tolerations[{i}].operator", problems)
        effect = one_of(_TOLERATED_EFFECTS, t.effect, f"spec.tolerations[{i}].effect", problems)
        if operator is not None and effect is not None:
            found.append(Toleration(t.key, operator, t.value, effect))
    return tuple(found), tuple(problems)


def _ports(spec: PodSpec) -> tuple[HostPort, ...]:
    """The host ports of containers and sidecars, the first MOST_PORTS. On the host network, a container's port is a
    port of the host."""
    ports: set[tuple[str, int, str]] = set()
    sidecars = [c for c in spec.init_containers if c.restart_policy == SIDECAR]
    for container in (*spec.containers, *sidecars):
        for port in container.ports:
            number = port.host_port or (port.container_port if spec.host_network else 0)
            if number > 0 and len(ports) < MOST_PORTS:
                ports.add((port.protocol, number, port.host_ip or EVERY_IP))
    return tuple(HostPort(ip, protocol, number) for protocol, number, ip in sorted(ports)) if ports else ()


def _claims(obj: PodObject) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the claims that the pod mounts, and of those created for it alone: the claim of an ephemeral volume
    is named after pod and volume."""
    names: list[str] = []
    own: list[str] = []
    for volume in obj.spec.volumes:
        if volume.persistent_volume_claim is not None:
            names.append(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            own.append(f"{obj.metadata.name}-{volume.name}")
            names.append(own[-1])
    return tuple(dict.fromkeys(names)), tuple(own)


def _device_claims(obj: PodObject, problems: list[Problem]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The keys of the pod's ResourceClaims, and of those created for it alone. Source: resourceclaim.Name of
    k8s.io/dynamic-resource-allocation."""
    made = {status.name: status.resource_claim_name for status in obj.status.resource_claim_statuses}
    names: list[str] = []
    own: list[str] = []
    for i, claim in enumerate(obj.spec.resource_claims):
        name = claim.resource_claim_name
        if not name and claim.resource_claim_template_name:
            name = made.get(claim.name, UNMADE + claim.name)
            own += [f"{obj.metadata.namespace}/{name}"] if name else []
        elif not name:
            rule = "needs resourceClaimName or resourceClaimTemplateName"
            problems.append(Problem(f"spec.resourceClaims[{i}]", claim.name, rule))
        if name:
            names.append(f"{obj.metadata.namespace}/{name}")
    extended = obj.status.extended_resource_claim_status
    if extended is not None and obj.spec.node_name:
        names.append(f"{obj.metadata.namespace}/{extended.resource_claim_name}")
    return tuple(dict.fromkeys(names)), tuple(own)
