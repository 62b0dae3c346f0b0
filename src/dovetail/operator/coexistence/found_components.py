# SPDX-License-Identifier: Apache-2.0
"""What of NVIDIA's stack is in a cluster: recognised by what its pods run, as names and labels are everybody's own.

Rules
- A DaemonSet selects a node by its nodeSelector and its required node affinity; taints are not asked, so that a node is
  rather taken to have a component than not.
- The GPU Operator adds its switches to a node some time after the node has joined. Until then they count as `true`,
  unless the node has none of its components (nvidia.com/gpu.deploy.operands=false, or a workload other than
  containers). A value paused-for-... is that of a component that comes back.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.labels import holds
from dovetail.core.model import NodeTerm, Problem
from dovetail.kube.objects.pods import Toleration
from dovetail.kube.objects.stack import ForeignComponent, NodePool
from dovetail.kube.translate.selectors import node_terms
from dovetail.operator.coexistence.table import (
    COMPONENTS,
    OPERANDS,
    TAKEN_OVER,
    AgentFunction,
    NvidiaComponent,
)
from dovetail.operator.found import Found, Rival
from dovetail.operator.nodes.facts import STARTUP_EFFECT, STARTUP_TAINT
from dovetail.operator.pools import pool_of
from dovetail.operator.rendering.stack_objects import AGENT_NAMESPACE, MANAGED_BY
from dovetail.operator.watched.pods import WatchedContainerSpec, WatchedOwner, WatchedPod

WORKLOAD = "nvidia.com/gpu.workload.config"
_PAUSED = "paused"
_WORD = re.compile(r"[A-Za-z0-9][-.\w]*")
_OPERATORS = ("ClusterPolicy", "NVIDIADriver", "GPUCluster")
_SIDECARS = ("config-manager",)
"""Programs beside a component's own, in its image."""
_AGENT = "dovetail-agent"
_LONGEST_VERSION = 64


class ForeignDaemon(Struct, frozen=True):
    """A DaemonSet, or a Deployment, with the components that its pods run. `terms` is its required node affinity, None
    without one. `starts_tainted`: its pods tolerate the start-up taint."""

    kind: str
    namespace: str
    name: str
    uid: str
    components: tuple[NvidiaComponent, ...]
    version: str = ""
    managed_by: str = ""
    node_selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[NodeTerm, ...] | None = None
    pod_labels: tuple[tuple[str, str], ...] = ()
    starts_tainted: bool = True

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    def has(self, function: AgentFunction) -> bool:
        """Whether one of its components does what this function of the agent does."""
        return any(one.function is function for one in self.components)

    def selects(self, labels: Mapping[str, str], node: str) -> bool:
        """Whether it runs, or will run, on the node with these labels."""
        if self.kind != "DaemonSet":
            return False
        seen = _with_switches(labels, self.node_selector)
        if any(seen.get(key) != value for key, value in self.node_selector):
            return False
        return self.terms is None or any(_matches(term, seen, node) for term in self.terms)

    def paused(self, labels: Mapping[str, str]) -> bool:
        """Whether NVIDIA's own tools have paused it on the node."""
        return any(labels.get(key, "").startswith(_PAUSED) for key, _ in self.node_selector)

    def switch_off(self, labels: Mapping[str, str], node: str) -> dict[str, str] | None:
        """The labels with which it leaves the node; None if no label does that that anybody but its owner may write. As
        the record of the takeover each of its components has one of our own, whatever switches it off."""
        own = {f"{TAKEN_OVER}{one.name}": "true" for one in self.components if not one.kept}
        for one in self.components:
            for extra in ({one.switch: "false"} if one.switch else {}, *({key: "true"} for key in one.off)):
                if extra and not self.selects({**labels, **extra}, node):
                    return {**extra, **own}
        return own if not self.selects({**labels, **own}, node) else None


def components_in(containers: Iterable[WatchedContainerSpec]) -> tuple[NvidiaComponent, ...]:
    """The components that these containers of one pod run, in the order of the table."""
    found = {one.name for container in containers if (one := _component(container)) is not None}
    return tuple(one for one in COMPONENTS if one.name in found)


def _component(container: WatchedContainerSpec) -> NvidiaComponent | None:
    # The end of an argument list may be a shell script: the program is one of its words.
    words = set(_WORD.findall(" ".join((*container.command, *container.args))))
    if words.intersection(_SIDECARS):
        return None
    name = container.name.removesuffix("-ctr")
    image = _image(container.image)[0]
    for one in COMPONENTS:
        if name in one.containers or words & one.programs:
            return one
    return next((one for one in COMPONENTS if image in one.images), None)


def _image(image: str) -> tuple[str, str]:
    """The last part of the repository, and the tag or the digest."""
    path, _, digest = image.partition("@")
    last = path.rpartition("/")[2]
    repository, _, tag = last.partition(":")
    return repository, (tag or digest)[:_LONGEST_VERSION]


def foreign_daemons(daemon_sets: Iterable[WatchedOwner], deployments: Iterable[WatchedOwner]) -> list[ForeignDaemon]:
    """What of NVIDIA's stack is among these, by namespace and name; what the operator made is not of it."""
    key, ours = MANAGED_BY
    found = [
        made
        for kind, owners in (("DaemonSet", daemon_sets), ("Deployment", deployments))
        for owner in owners
        if owner.metadata.labels.get(key) != ours and (made := _daemon(kind, owner)) is not None
    ]
    return sorted(found, key=lambda one: (one.namespace, one.name, one.kind))


def _daemon(kind: str, owner: WatchedOwner) -> ForeignDaemon | None:
    spec = owner.spec.template.spec
    components = components_in(spec.containers)
    if not components:
        return None
    first = next(one for one in spec.containers if _component(one) is not None)
    problems: list[Problem] = []
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    selector = owner.spec.selector.match_labels or owner.spec.template.metadata.labels
    return ForeignDaemon(
        kind,
        owner.metadata.namespace,
        owner.metadata.name,
        owner.metadata.uid,
        components,
        _image(first.image)[1],
        _manager(owner),
        tuple(sorted(spec.node_selector.items())),
        node_terms(affinity.required if affinity is not None else None, "affinity", problems),
        tuple(sorted(selector.items())),
        any(_covers_startup_taint(one) for one in spec.tolerations),
    )


def _covers_startup_taint(toleration: Toleration) -> bool:
    """As kube-scheduler and the DaemonSet controller decide; the taint has no value."""
    return (
        toleration.effect in ("", STARTUP_EFFECT)
        and toleration.key in ("", STARTUP_TAINT)
        and (toleration.operator == "Exists" or (bool(toleration.key) and not toleration.value))
    )


def _manager(owner: WatchedOwner) -> str:
    """Whose it is, as far as the object shows it."""
    meta = owner.metadata
    for one in meta.owner_references:
        if one.kind in _OPERATORS:
            return f"{one.kind} {one.name}"
    if meta.labels.get("app.kubernetes.io/managed-by") == "Helm":
        return f"Helm release {meta.annotations.get('meta.helm.sh/release-name', '')}".strip()
    if "addonmanager.kubernetes.io/mode" in meta.labels:
        return "the cluster's addon manager"
    return ""


def _with_switches(labels: Mapping[str, str], wanted: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    none = labels.get(OPERANDS) == "false" or labels.get(WORKLOAD, "container") != "container"
    coming = {
        key: "true"
        for key, _ in wanted
        if key.startswith("nvidia.com/gpu.deploy.")
        and (labels.get(key, "").startswith(_PAUSED) or (key not in labels and not none))
    }
    return {**labels, **coming} if coming else labels


def _matches(term: NodeTerm, labels: Mapping[str, str], node: str) -> bool:
    if not term.expressions and not term.fields:
        return False
    return all(holds(one, labels.get(one.key)) for one in term.expressions) and all(
        holds(one, node if one.key == "metadata.name" else None) for one in term.fields
    )


class AgentOnNode(Struct, frozen=True):
    """What the agent's pods on a node do: `does` those that are not gone, `ready` those that are ready."""

    does: frozenset[AgentFunction] = frozenset()
    ready: frozenset[AgentFunction] = frozenset()


class PodsOnNodes(Struct, frozen=True):
    """By node: the components of NVIDIA's stack whose pods are not gone, those of them that stay, and what the agents
    do."""

    foreign: Mapping[str, frozenset[str]]
    agents: Mapping[str, AgentOnNode]
    staying: Mapping[str, frozenset[str]] = {}


def pods_on_nodes(pods: Iterable[WatchedPod]) -> PodsOnNodes:
    """Sorts the pods of a cluster; those that are no daemons are of no account."""
    foreign: defaultdict[str, set[str]] = defaultdict(set)
    staying: defaultdict[str, set[str]] = defaultdict(set)
    does: defaultdict[str, set[AgentFunction]] = defaultdict(set)
    ready: defaultdict[str, set[AgentFunction]] = defaultdict(set)
    for pod in pods:
        node = pod.spec.node_name
        if pod.gone or not node:
            continue
        if pod.metadata.labels.get("app.kubernetes.io/name") == _AGENT:
            functions = agent_functions(pod.spec.containers)
            does[node] |= functions
            if pod.ready:
                ready[node] |= functions
        elif pod.metadata.namespace != AGENT_NAMESPACE and _of_daemon_set(pod):
            names = {one.name for one in components_in(pod.spec.containers)}
            foreign[node] |= names
            if not pod.metadata.deletion_timestamp:
                staying[node] |= names
    return PodsOnNodes(
        {node: frozenset(names) for node, names in foreign.items() if names},
        {node: AgentOnNode(frozenset(does[node]), frozenset(ready[node])) for node in does},
        {node: frozenset(names) for node, names in staying.items() if names},
    )


def kept_off(daemons: Iterable[ForeignDaemon], labels: Mapping[str, str], node: str, pods: PodsOnNodes) -> bool:
    """Whether the start-up taint keeps off the node, or would, what belongs there: a DaemonSet selects it, has no pod
    there that stays, and does not tolerate the taint. A pod that runs is not kept off."""
    there = pods.staying.get(node, frozenset())
    return any(
        not one.starts_tainted and one.selects(labels, node) and any(each.name not in there for each in one.components)
        for one in daemons
    )


def _of_daemon_set(pod: WatchedPod) -> bool:
    return any(one.kind == "DaemonSet" for one in pod.metadata.owner_references)


def agent_functions(containers: Iterable[WatchedContainerSpec]) -> frozenset[AgentFunction]:
    """What an agent does, by its options."""
    agent = next((one for one in containers if one.name == "agent"), None)
    if agent is None:
        return frozenset()
    found = set()
    if "--no-device-plugin" not in agent.args or "--claims" in agent.args:
        found.add(AgentFunction.ALLOCATION)
    if "--exporter=" not in agent.args:
        found.add(AgentFunction.EXPORTER)
    if "--labels" in agent.args:
        found.add(AgentFunction.LABELS)
    if "--mig" in agent.args:
        found.add(AgentFunction.MIG)
    return frozenset(found)


def rivals_of(daemons: Iterable[ForeignDaemon]) -> tuple[Rival, ...]:
    """The pods that no agent with GPUs to offer may run beside. A DaemonSet whose labels other components have, too, is
    not among them: the agent could never run beside those."""
    known = list(daemons)
    return tuple(
        Rival(one.namespace, one.pod_labels)
        for one in known
        if one.has(AgentFunction.ALLOCATION)
        and one.pod_labels
        and not any(
            other.namespace == one.namespace
            and set(one.pod_labels) <= set(other.pod_labels)
            and not other.has(AgentFunction.ALLOCATION)
            for other in known
        )
    )


def with_foreign(
    found: Found, daemons: Iterable[ForeignDaemon], pools: Sequence[NodePool], nodes: Mapping[str, Mapping[str, str]]
) -> Found:
    """The facts of the cluster with these, and `nodes`, labels by name. One DaemonSet of a kind is enough for all
    pools: nodes that join later must not begin with an agent that offers, if the other side may come there too."""
    known = list(daemons)
    names = frozenset(pool.name for pool in pools)
    drivers = [one for one in known if any(each.name == "driver" for each in one.components)]
    driven = {
        pool.name
        for name, labels in (nodes.items() if drivers else ())
        if (pool := pool_of(pools, labels)) is not None and any(one.selects(labels, name) for one in drivers)
    }

    def where(function: AgentFunction) -> frozenset[str]:
        return names if any(one.kind == "DaemonSet" and one.has(function) for one in known) else frozenset()

    return replace(
        found,
        foreign_allocation=where(AgentFunction.ALLOCATION),
        foreign_exporters=where(AgentFunction.EXPORTER),
        rivals=rivals_of(known),
        driver_containers=frozenset(driven),
    )


def foreign_status(
    daemons: Iterable[ForeignDaemon], nodes: Mapping[str, Mapping[str, str]], pods: PodsOnNodes
) -> tuple[ForeignComponent, ...]:
    """For the GPUStack's status: each component with the nodes (of `nodes`, labels by name) where it runs or will run.
    It is taken over where Dovetail's record is on a node and it runs on none."""
    found = []
    for daemon in daemons:
        for one in daemon.components:
            on = [
                name
                for name, labels in nodes.items()
                if daemon.selects(labels, name) or one.name in pods.foreign.get(name, frozenset())
            ]
            taken = any(f"{TAKEN_OVER}{one.name}" in labels for labels in nodes.values())
            found.append(
                ForeignComponent(
                    one.name, daemon.kind, daemon.namespace, daemon.name, daemon.version, daemon.managed_by, len(on),
                    taken and not on,
                )
            )  # fmt: skip
    return tuple(found)
