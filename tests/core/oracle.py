# SPDX-License-Identifier: Apache-2.0
"""The filter rules once more: literal, slow, node by node over the records, without any code of the core's arrays.

Rules: what kube-scheduler's in-tree filter plugins answer for one pod on one node (v1.37), and ours where upstream has
none: a node with a problem takes nothing and is no domain to spread over, and what is stated of shares in `Cards`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.core.model import (
    GPU,
    PODS,
    SHARED_GPU,
    LabelSelector,
    Namespace,
    Node,
    NodeTerm,
    PeerTerm,
    Pod,
    Request,
    Requirement,
    Spread,
    StorageClass,
    Taint,
    Toleration,
    Volume,
    VolumeClaim,
)

CORDON = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


class World(Struct):
    """`pods` are those that hold room (`pod.node`), in the order in which they came; `nominated` are pending."""

    nodes: list[Node] = field(default_factory=list)
    pods: list[Pod] = field(default_factory=list)
    nominated: list[Pod] = field(default_factory=list)
    namespaces: list[Namespace] = field(default_factory=list)
    claims: list[VolumeClaim] = field(default_factory=list)
    volumes: list[Volume] = field(default_factory=list)
    classes: list[StorageClass] = field(default_factory=list)

    def on(self, node: Node) -> list[Pod]:
        return [pod for pod in self.pods if pod.node == node.name]

    def labels_of(self, node_name: str) -> Mapping[str, str]:
        return next((dict(node.labels) for node in self.nodes if node.name == node_name), {})

    def claim(self, pod: Pod, name: str) -> VolumeClaim | None:
        return next((c for c in self.claims if (c.namespace, c.name) == (pod.namespace, name)), None)

    def volume(self, name: str) -> Volume | None:
        return next((v for v in self.volumes if v.name == name), None)

    def storage_class(self, name: str) -> StorageClass | None:
        return next((s for s in self.classes if s.name == name), None)


def feasible(world: World, pod: Pod) -> set[str]:
    """Names of the nodes that the pod may go to now."""
    return {node.name for node in world.nodes if claims_allow(world, pod) and allows(world, pod, node)}


def allows(world: World, pod: Pod, node: Node) -> bool:
    """Whether the pod passes every filter on the node: as it is, and as it were with the pods that are nominated to it
    with the same or a higher priority (RunFilterPluginsWithNominatedPods)."""
    expected = [
        replace(other, node=node.name)
        for other in world.nominated
        if other.nominated_node == node.name and other.uid != pod.uid and other.priority >= pod.priority
    ]
    beside = replace(world, pods=[*world.pods, *expected])
    return _passes(world, pod, node) and (not expected or _passes(beside, pod, node))


def _passes(world: World, pod: Pod, node: Node) -> bool:
    return (
        node.problem is None
        and untainted(node, pod.request.tolerations)
        and selected(node, pod.request)
        and not (node.plugin_gone and any("nvidia.com/" in name for name, _ in pod.request.resources))
        and room(world.on(node), pod.request, node)
        and ports_free(world.on(node), pod.request)
        and volumes_reach(world, pod, node)
        and attachable(world, pod, node)
        and spread_out(world, pod, node)
        and near_peers(world, pod, node)
        and away_from_peers(world, pod, node)
        and not_repelled(world, pod, node)
    )


# Labels, selectors, taints.


def integer(text: str) -> int | None:
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits or any(c not in "0123456789" for c in digits):
        return None
    return int(text) if -(2**63) <= int(text) <= 2**63 - 1 else None


def requirement_holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    operator, values = requirement.operator, requirement.values
    if requirement.key not in labels:
        return operator in ("NotIn", "DoesNotExist")
    value = labels[requirement.key]
    if operator == "In":
        return value in values
    if operator == "NotIn":
        return value not in values
    if operator in ("Gt", "Lt"):
        label, bound = integer(value), integer(values[0])
        if label is None or bound is None:
            return False
        return label > bound if operator == "Gt" else label < bound
    return operator == "Exists"


def selector_matches(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    return selector is not None and all(requirement_holds(r, labels) for r in selector.requirements)


def term_holds(term: NodeTerm, node: Node) -> bool:
    if not term.expressions and not term.fields:
        return False
    named = {"metadata.name": node.name}
    return all(requirement_holds(r, dict(node.labels)) for r in term.expressions) and all(
        requirement_holds(r, named) for r in term.fields
    )


def any_term_holds(terms: tuple[NodeTerm, ...] | None, node: Node) -> bool:
    return terms is None or any(term_holds(term, node) for term in terms)


def selected(node: Node, request: Request) -> bool:
    labels = dict(node.labels)
    return all(labels.get(key) == value for key, value in request.node_selector) and any_term_holds(
        request.node_terms, node
    )


def untainted(node: Node, tolerations: Iterable[Toleration]) -> bool:
    taints = [*node.taints, CORDON] if node.unschedulable else list(node.taints)
    return all(any(covers(t, taint) for t in tolerations) for taint in taints if taint.effect != "PreferNoSchedule")


def covers(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if toleration.operator in ("Gt", "Lt"):
        bound, value = _decimal(toleration.value), _decimal(taint.value)
        if bound is None or value is None:
            return False
        return value > bound if toleration.operator == "Gt" else value < bound
    return toleration.operator == "Exists" or toleration.value == taint.value


def _decimal(text: str) -> int | None:
    """No plus sign, no leading zeros, no minus zero (validation.IsDecimalInteger)."""
    value = integer(text)
    return value if value is not None and str(value) == text else None


# Room: resources, GPUs and their shares, host ports.


def room(others: list[Pod], request: Request, node: Node) -> bool:
    has = dict(node.allocatable)
    if len(others) + 1 > has.get(PODS, 0):
        return False
    cards = Cards(node)
    for other in others:
        cards.give(other.request)
    for name, amount in request.resources:
        used = sum(dict(other.request.resources).get(name, 0) for other in others)
        if name == GPU:
            used += len(cards.opened)
        if amount > 0 and used + amount > has.get(name, 0):
            return False
    return cards.may_have(request) and cards.has_room(request)


STRENGTH = {"": 0, "none": 0, "memory": 1, "strong": 2}


class Cards:
    """The GPUs of a node, and their holders.

    Rules. A device plugin that shares offers every card as several replicas; replicas of one card are one GPU, so each
    that a pod asks for is of another card. A pod has of a card what it asks for, or the replica's equal part where it
    asks for none, and with MPS the equal part and no more. A share goes to the tightest card where it fits; several go
    to the cards that could be taken from most often. A pod that asks for no device opens a whole GPU, where these are
    not shared already. A slice is the only one of its pod. A pod that may not have what it asks for, and is there all
    the same, holds nothing. Parts are in thousandths of MiB.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        sharing, offered = node.sharing, dict(node.allocatable).get(GPU, 0)
        divided = node.sliced or (sharing is not None and sharing.resource == GPU)
        self.whole = 0 if divided else offered
        self.card = 1000 * (node.gpu_memory_mib or 1)
        self.opened: list[int] = []
        self.shared = [[self.card, sharing.replicas] for _ in range(sharing.cards)] if sharing is not None else []

    def replicas(self, request: Request) -> int:
        """How many replicas it asks for here."""
        return dict(request.resources).get(self.node.sharing.resource, 0) if self.node.sharing is not None else 0

    def asked(self, request: Request) -> int:
        """The part of a card that it asks for; 0 where it asks for none, more than there is for too much."""
        if not request.gpu_memory_mib:
            return request.gpu_milli * self.card // 1000
        return 1000 * request.gpu_memory_mib if self.node.gpu_memory_mib else self.card + 1

    def part(self, request: Request) -> int:
        """The part of each card that it has."""
        sharing = self.node.sharing
        assert sharing is not None
        if sharing.isolation == "memory" or not self.asked(request):
            return self.card // sharing.replicas
        return self.asked(request)

    def may_have(self, request: Request) -> bool:
        """Whether an empty node could give it what it asks for, amounts aside."""
        sharing, asked, replicas = self.node.sharing, self.asked(request), self.replicas(request)
        devices = [name for name in (GPU, SHARED_GPU) if dict(request.resources).get(name, 0)]
        if asked > self.card or (self.node.sliced and dict(request.resources).get(GPU, 0) > 1):
            return False
        if sharing is None or not replicas:
            # A part of a GPU that nobody offers as such.
            opens = bool(asked) and GPU not in devices
            return not opens or (not devices and sharing is None and not self.node.sliced)
        if STRENGTH[sharing.isolation] < STRENGTH[request.isolation] or (sharing.one_only and replicas > 1):
            return False
        if not sharing.cards:
            return not asked  # Only counted: nothing is promised.
        if sharing.isolation == "memory":
            memory_mib = self.node.gpu_memory_mib // sharing.replicas
            if request.gpu_memory_mib > memory_mib or request.gpu_milli * sharing.replicas > 1000:
                return False
        return replicas <= sharing.cards

    def has_room(self, request: Request) -> bool:
        asked, replicas = self.asked(request), self.replicas(request)
        if replicas and self.shared:
            part = self.part(request)
            return sum(1 for left, seats in self.shared if left >= part and seats) >= replicas
        if asked and not dict(request.resources).get(GPU, 0):
            return self.whole > 0 or any(left >= asked for left in self.opened)
        return True

    def give(self, request: Request) -> None:
        asked, replicas, gpus = self.asked(request), self.replicas(request), dict(request.resources).get(GPU, 0)
        if replicas and self.shared:
            part = self.part(request)
            fitting = [card for card in self.shared if card[0] >= part and card[1]] if self.may_have(request) else []
            fitting.sort(key=lambda card: card[0] if replicas == 1 else -min(card[0] // part, card[1]))
            for card in fitting[:replicas]:
                card[0] -= part
                card[1] -= 1
        elif gpus:
            self.whole -= min(self.whole, gpus)
        elif asked and self.may_have(request):
            fitting_open = [left for left in self.opened if left >= asked]
            if fitting_open:
                self.opened.remove(min(fitting_open))
                self.opened.append(min(fitting_open) - asked)
            elif self.whole:
                self.whole -= 1
                self.opened.append(self.card - asked)


def ports_free(others: list[Pod], request: Request) -> bool:
    used = [port for other in others for port in other.request.ports]
    for wanted in request.ports:
        for port in used:
            same = (wanted.protocol, wanted.port) == (port.protocol, port.port)
            ips = {wanted.ip or "0.0.0.0", port.ip or "0.0.0.0"}
            if same and (len(ips) == 1 or "0.0.0.0" in ips):
                return False
    return True


# Topology spread.


def spread_out(world: World, pod: Pod, node: Node) -> bool:
    required = [constraint for constraint in pod.request.spread if constraint.required]
    keys = [constraint.peers.topology_key for constraint in required]
    here = dict(node.labels)
    if any(key not in here for key in keys):
        return False
    for constraint in required:
        matching: Counter[str] = Counter()
        for other in world.nodes:
            labels = dict(other.labels)
            if other.problem is None and all(key in labels for key in keys) and _counts(constraint, pod, other):
                matching[labels[constraint.peers.topology_key]] += _matching(world, constraint, pod, other)
        least = min(matching.values(), default=2**31 - 1)
        if len(matching) < constraint.min_domains:
            least = 0
        itself = selector_matches(constraint.peers.selector, dict(pod.labels))
        if matching[here[constraint.peers.topology_key]] + itself - least > constraint.max_skew:
            return False
    return True


def _counts(constraint: Spread, pod: Pod, node: Node) -> bool:
    """Whether the node is one to spread over (nodeAffinityPolicy, nodeTaintsPolicy)."""
    if constraint.honor_affinity and not selected(node, pod.request):
        return False
    written = replace(node, unschedulable=False)  # A cordon counts once it is a taint too.
    return not constraint.honor_taints or untainted(written, pod.request.tolerations)


def _matching(world: World, constraint: Spread, pod: Pod, node: Node) -> int:
    if constraint.peers.selector == LabelSelector():
        return 0  # countPodsMatchSelector: an empty selector counts nobody
    return sum(
        1
        for other in world.on(node)
        if not other.deleting
        and other.namespace == pod.namespace
        and selector_matches(constraint.peers.selector, dict(other.labels))
    )


# Affinity and anti-affinity between pods.


def picks(world: World, term: PeerTerm, pod: Pod) -> bool:
    namespace = next((dict(n.labels) for n in world.namespaces if n.name == pod.namespace), {})
    in_namespace = pod.namespace in term.namespaces or selector_matches(term.namespace_selector, namespace)
    return in_namespace and selector_matches(term.selector, dict(pod.labels))


def near_peers(world: World, pod: Pod, node: Node) -> bool:
    terms = pod.request.affinity
    here = dict(node.labels)
    peers = [other for other in world.pods if all(picks(world, term, other) for term in terms)]
    domains = {
        (term.topology_key, world.labels_of(peer.node)[term.topology_key])
        for peer in peers
        for term in terms
        if term.topology_key in world.labels_of(peer.node)
    }
    if any(term.topology_key not in here for term in terms):
        return False
    if all((term.topology_key, here[term.topology_key]) in domains for term in terms):
        return True
    return not domains and all(picks(world, term, pod) for term in terms)


def away_from_peers(world: World, pod: Pod, node: Node) -> bool:
    return not any(
        picks(world, term, other) and _same_domain(world, term, node, other)
        for term in pod.request.anti_affinity
        for other in world.pods
    )


def not_repelled(world: World, pod: Pod, node: Node) -> bool:
    return not any(
        picks(world, term, pod) and _same_domain(world, term, node, other)
        for other in world.pods
        for term in other.request.anti_affinity
    )


def _same_domain(world: World, term: PeerTerm, node: Node, other: Pod) -> bool:
    here, there = dict(node.labels), world.labels_of(other.node)
    return term.topology_key in here and here[term.topology_key] == there.get(term.topology_key)


# Volumes.


def claims_allow(world: World, pod: Pod) -> bool:
    """Whether the pod's claims let it go to any node at all."""
    for name in pod.claims:
        claim = world.claim(pod, name)
        if claim is None or claim.deleting:
            return False
        if claim.volume and world.volume(claim.volume) is None:
            return False
        storage_class = world.storage_class(claim.storage_class)
        if not claim.volume and (storage_class is None or not storage_class.wait):
            return False
        users = [p for p in world.pods if p.namespace == pod.namespace and name in p.claims]
        if "ReadWriteOncePod" in claim.access_modes and users:
            return False
    return True


def volumes_reach(world: World, pod: Pod, node: Node) -> bool:
    claims = [claim for name in pod.claims if (claim := world.claim(pod, name)) is not None]
    taken: set[str] = set()
    for claim in claims:
        volume = world.volume(claim.volume)
        if volume is not None and not any_term_holds(volume.node_terms, node):
            return False
    unbound = [claim for claim in claims if not claim.volume]
    if any(claim.selected_node not in ("", node.name) for claim in unbound):
        return False
    for claim in sorted(unbound, key=lambda c: c.request_bytes):
        volume = None if claim.selected_node else _volume_for(world, claim, node, taken)
        if volume is not None:
            taken.add(volume.name)
        elif not _provisioned(world, claim, node):
            return False
    return True


def _volume_for(world: World, claim: VolumeClaim, node: Node, taken: set[str]) -> Volume | None:
    """The claim's own where one is reserved for it, else the smallest that serves it and reaches the node."""
    large_enough = [
        v
        for v in world.volumes
        if v.name not in taken
        and v.storage_class == claim.storage_class
        and v.capacity_bytes >= claim.request_bytes
        and v.volume_mode == claim.volume_mode
    ]
    for volume in large_enough:
        if volume.claim == claim.key:
            return volume if any_term_holds(volume.node_terms, node) else None
    free = [
        v
        for v in large_enough
        if not v.claim
        and v.available
        and set(claim.access_modes) <= set(v.access_modes)
        and (claim.selector is None or selector_matches(claim.selector, dict(v.labels)))
        and any_term_holds(v.node_terms, node)
    ]
    return min(free, key=lambda v: (v.capacity_bytes, v.name), default=None)


def _provisioned(world: World, claim: VolumeClaim, node: Node) -> bool:
    storage_class = world.storage_class(claim.storage_class)
    return storage_class is not None and storage_class.provisions and any_term_holds(storage_class.topologies, node)


def attachable(world: World, pod: Pod, node: Node) -> bool:
    held = {handle for other in world.on(node) for handle in _handles(world, other)}
    new = set(_handles(world, pod)) - held
    for driver, limit in node.attach_limits:
        asked = sum(1 for handle in new if handle[0] == driver)
        if asked and asked + sum(1 for handle in held if handle[0] == driver) > limit:
            return False
    return True


def _handles(world: World, pod: Pod) -> list[tuple[str, str]]:
    """The CSI volumes of a pod; a claim whose volume is not known counts as one of its storage class's driver."""
    found = []
    for name in pod.claims:
        claim = world.claim(pod, name)
        volume = world.volume(claim.volume) if claim is not None else None
        storage_class = world.storage_class(claim.storage_class) if claim is not None else None
        if claim is not None and volume is not None:
            found.append((volume.driver, volume.name))
        elif claim is not None and storage_class is not None:
            found.append((storage_class.driver, claim.key))
    return [handle for handle in found if handle[0]]
