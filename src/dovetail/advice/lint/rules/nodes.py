# SPDX-License-Identifier: Apache-2.0
"""Rules about requirements that no node of the inventory meets: labels, MIG profiles, numbers of GPUs.

The rules are exact for the nodes of the inventory. If Karpenter adds nodes on demand, a finding is a guess. Without GPU
nodes in the inventory the rules are skipped, as a node pool may be scaled to zero.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template, gpus_of, is_gpu
from dovetail.advice.lint.rule import Facts, KnownNode, Rule, RuleMatch, Severity
from dovetail.advice.lint.rules.mig_layouts import impossible_layouts
from dovetail.advice.lint.rules.products import PRODUCT, meant
from dovetail.advice.lint.selection import (
    HOSTNAME,
    REQUIRED,
    allows,
    asked,
    fulfils,
    gpu_nodes,
    grows,
    label_of,
    node_terms,
    offers,
    peer_terms,
    requirement,
    spreads,
    text,
)
from dovetail.core.bounded_cache import remembered
from dovetail.core.devices import products
from dovetail.core.devices.mig import names as mig_names
from dovetail.core.devices.mig import products as mig_products
from dovetail.core.devices.mig.geometry import RESOURCE_PREFIX
from dovetail.core.labels import as_int64
from dovetail.core.model import GPU

_OF_EVERY_KUBELET = (HOSTNAME, "kubernetes.io/os", "kubernetes.io/arch")
_MOST_GPUS = 16
"""The largest number of GPUs in one machine."""
_LABELS = {
    "kubernetes.io": "hostname os arch",
    "topology.kubernetes.io": "zone region",
    "node.kubernetes.io": "instance-type",
    "nvidia.com": (
        "gpu.product gpu.memory gpu.count gpu.family gpu.machine gpu.replicas gpu.sharing-strategy gpu.compute.major "
        "gpu.compute.minor gpu.mode gpu.clique gpu.present mig.capable mig.strategy mig.config mig.config.state "
        "mps.capable cuda.driver-version.major cuda.driver-version.minor cuda.driver-version.full cuda.driver.major "
        "cuda.driver.minor cuda.runtime-version.major cuda.runtime-version.minor cuda.runtime-version.full "
        "cuda.runtime.major cuda.runtime.minor vgpu.present"
    ),
}
_TOPOLOGY = "topology.kubernetes.io"
_SET_BY = (
    ("nvidia.com/", "NVIDIA's GPU Feature Discovery"),
    ("feature.node.kubernetes.io/", "Node Feature Discovery"),
    ("karpenter", "Karpenter"),
    ("cloud.google.com/", "GKE"),
    ("eks.amazonaws.com/", "EKS"),
    ("kubernetes.azure.com/", "AKS"),
    ("topology.kubernetes.io/zone", "the cloud's controller"),
    ("topology.kubernetes.io/region", "the cloud's controller"),
    ("node.kubernetes.io/instance-type", "the cloud's controller"),
)
"""The beginnings of keys that nobody writes by hand, and what sets them."""
_KNOWN = dict.fromkeys(f"{domain}/{name}" for domain, every in _LABELS.items() for name in every.split())
_SIMILARITY = 0.9
"""The least similarity (difflib) at which one name counts as a misspelling of another."""


def _too_many(pod: Template, facts: Facts) -> Iterator[RuleMatch]:
    nodes = gpu_nodes(facts)
    may = [node for node in nodes if allows(pod, node)] or nodes
    for name, (gpus, field) in asked(pod).items():
        if not nodes and name == GPU and gpus > _MOST_GPUS:
            message = f"{gpus} GPUs in one pod, and no machine has more than {_MOST_GPUS}: use more pods"
            yield RuleMatch(field, message, guess=True)
        if not nodes or name.startswith(RESOURCE_PREFIX):
            continue
        largest = max(may, key=lambda node: offers(node, name))
        most = offers(largest, name)
        if not most and gpus:
            offered = sorted({one for node in may for one in node.allocatable if is_gpu(one) and offers(node, one)})
            message = f"{name}: no node for this pod offers it; they offer {', '.join(offered)}"
            yield RuleMatch(field, message, guess=grows(facts))
        elif gpus > most:
            message = f"{name}: {gpus} in one pod, and the largest node {largest.name} has {most}: use more pods"
            yield RuleMatch(field, message, guess=grows(facts))


def _no_such_profile(pod: Template, facts: Facts) -> Iterator[RuleMatch]:
    nodes = gpu_nodes(facts)
    called = sorted({node.labels.get(PRODUCT, "") for node in nodes})
    geometries = {name: mig_products.of_product(name) for name in called}
    if not nodes or any(geometry is None and products.find(name) is None for name, geometry in geometries.items()):
        return
    known = [geometry for geometry in geometries.values() if geometry is not None]
    offered = {name for node in nodes for name in node.allocatable if offers(node, name)}
    for container in pod.all_containers:
        for name, amount in gpus_of(container):
            profile = mig_names.read(name)
            # Another rule reports profiles that no GPU has, as misspelt names.
            if profile is None or all(one.find(profile.profile) is None for one in mig_products.GEOMETRIES):
                continue
            fault = mig_names.fault(name, known, offered)
            if fault:
                yield RuleMatch(amount, f"{name} {fault}", guess=grows(facts))


def _no_such_label(pod: Template, facts: Facts) -> Iterator[RuleMatch]:
    nodes = facts.nodes or ()
    if pod.group_kind == ("apps", "DaemonSet"):
        # A DaemonSet has one pod per matching node, and may have none.
        return
    dead = [*_dead_selectors(pod, nodes), *_dead_affinity(pod, nodes), *_dead_topologies(pod, nodes)] if nodes else []
    yield from (RuleMatch(field, message, guess=grows(facts)) for field, message in dead)
    if nodes and not dead and _is_judged(pod, nodes) and not any(allows(pod, node) for node in nodes):
        selector = pod.spec.at("nodeSelector")
        field = selector if selector else pod.spec.at("affinity", "nodeAffinity", REQUIRED)
        message = "no node has all of these labels: remove those that the pod does not need"
        yield RuleMatch(field, message, guess=grows(facts))
    reported = {field.path for field, _ in dead}
    for field, key in _keys(pod):
        if key in _KNOWN or field.path in reported or any(key in node.labels for node in nodes):
            continue
        domain, _, name = key.rpartition("/")
        if near := _misspelt(key):
            yield RuleMatch(field, f"the label {key} is unknown: did you mean {near}?", guess=True)
        elif domain == _TOPOLOGY:
            message = (
                f"Kubernetes keeps {_TOPOLOGY}/ for itself, and sets no {name} there: nodes have it only if you do"
            )
            yield RuleMatch(field, message, guess=True)


def _dead_selectors(pod: Template, nodes: Iterable[KnownNode]) -> Iterator[tuple[Field, str]]:
    for key, value in pod.spec.at("nodeSelector").entries():
        wanted = text(value.value)
        if not _left_out(nodes, key) and not _renamed(nodes, key, wanted) and wanted not in _values(nodes, key):
            yield value, _no_node(nodes, key, wanted)


def _dead_affinity(pod: Template, nodes: Iterable[KnownNode]) -> Iterator[tuple[Field, str]]:
    """The entries that no node matches, if every alternative term has such an entry."""
    dead = []
    for term, required in node_terms(pod):
        if required:
            found = next((one for one in term.at("matchExpressions").each() if _is_dead(one, nodes)), None)
            if found is None:
                return
            dead.append(found)
    for entry in dead:
        one = requirement(entry)
        if one is not None:
            values = f" {' or '.join(one.values)}" if one.values else ""
            yield entry, _no_node(nodes, one.key, "", f"{one.key} {one.operator}{values}")


def _is_dead(entry: Field, nodes: Iterable[KnownNode]) -> bool:
    one = requirement(entry)
    return (
        one is not None
        and one.operator in ("In", "Exists", "Gt", "Lt")
        and _is_sound(entry, nodes)
        and not any(fulfils(node, entry) for node in nodes)
    )


def _is_judged(pod: Template, nodes: Iterable[KnownNode]) -> bool:
    """Whether this rule applies: no requirement of the pod is reported by another rule or missing in the inventory."""
    selected = pod.spec.at("nodeSelector").entries()
    entries = (one for term, required in node_terms(pod) if required for one in term.at("matchExpressions").each())
    return not any(_left_out(nodes, key) or _renamed(nodes, key, text(value.value)) for key, value in selected) and all(
        _is_sound(entry, nodes) for entry in entries
    )


def _is_sound(entry: Field, nodes: Iterable[KnownNode]) -> bool:
    one = requirement(entry)
    if one is None or _left_out(nodes, one.key) or any(_renamed(nodes, one.key, value) for value in one.values):
        return False
    if one.operator in ("Gt", "Lt"):
        return len(one.values) == 1 and as_int64(one.values[0]) is not None
    return bool(one.values) == (one.operator in ("In", "NotIn"))


def _dead_topologies(pod: Template, nodes: Iterable[KnownNode]) -> Iterator[tuple[Field, str]]:
    """The required topology keys that no node has. Preferences and anti-affinity are skipped, as they do not block."""
    holders = [term for term, required in peer_terms(pod, "podAffinity") if required]
    holders += [one for one in spreads(pod) if one.at("whenUnsatisfiable").text == "DoNotSchedule"]
    for holder in holders:
        key = holder.at("topologyKey").text
        if key and not _left_out(nodes, key) and not _values(nodes, key):
            yield holder.at("topologyKey"), _no_node(nodes, key, "")


def _no_node(nodes: Iterable[KnownNode], key: str, value: str, wanted: str = "") -> str:
    there = sorted(_values(nodes, key))
    if there:
        more = f", and {len(there) - 3} more" if len(there) > 3 else ""
        return f"no node has {wanted or f'{key}: {value}'}; the values of {key} are {', '.join(there[:3])}{more}"
    keys = sorted({other for node in nodes for other in node.labels})
    near = difflib.get_close_matches(key, keys, 1, 0.7)
    by = next((by for prefix, by in _SET_BY if key.startswith(prefix)), "")
    remedy = f"{by} sets it on its nodes: run that, or remove it" if by else "label the nodes, or remove it"
    return f"no node has the label {key}" + (f": did you mean {near[0]}?" if near else f"; {remedy}")


def _values(nodes: Iterable[KnownNode], key: str) -> set[str]:
    return {value for node in nodes if (value := label_of(node, key)) is not None}


def _left_out(nodes: Iterable[KnownNode], key: str) -> bool:
    """Whether every kubelet sets this label, and the inventory leaves it out."""
    return key in _OF_EVERY_KUBELET and not any(key in node.labels for node in nodes)


def _renamed(nodes: Iterable[KnownNode], key: str, value: str) -> bool:
    """Whether another rule suggests the right product."""
    return key == PRODUCT and bool(meant(value, _values(nodes, key))[0])


def _keys(pod: Template) -> Iterator[tuple[Field, str]]:
    """(field, key) of all node labels that the pod selects by."""
    yield from ((field, key) for key, field in pod.selector.entries())
    for term, _ in node_terms(pod):
        yield from ((entry.at("key"), entry.at("key").text) for entry in term.at("matchExpressions").each())
    peers = (term for kind in ("podAffinity", "podAntiAffinity") for term, _ in peer_terms(pod, kind))
    for holder in (*peers, *spreads(pod)):
        yield holder.at("topologyKey"), holder.at("topologyKey").text


@remembered(64)
def _misspelt(key: str) -> str:
    """The label of Kubernetes or NVIDIA that a key misspells, "" if there is none. A known name in the wrong domain,
    such as `kubernetes.io/zone`, counts as well."""
    domain, _, name = key.rpartition("/")
    if not domain:
        return ""
    letters = name.casefold().replace("_", "-")
    for known in _KNOWN:
        of, _, there = known.rpartition("/")
        equal = letters.replace("-", ".") == there.replace("-", ".")
        if of == domain and (equal or difflib.SequenceMatcher(None, name, there).ratio() > _SIMILARITY):
            return known
        if there == name and domain != of and {domain, of} <= {"kubernetes.io", "topology.kubernetes.io"}:
            return known
    return ""


_POD = """\
apiVersion: v1
kind: Pod
metadata: {name: train, labels: {team: vision}}
spec:
  restartPolicy: Never
  priorityClassName: batch
  %scontainers:
  - name: train
    image: registry.example.com/train:1.4
    resources: {limits: {%s}}
---
apiVersion: v1
kind: Node
metadata: {name: gpu-1, labels: {example.com/rack: r1, nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB}}
status: {allocatable: {nvidia.com/gpu: 8}}
"""
_SHM = "volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 8Gi}}]\n  "
_WIDE = (_POD % (_SHM, "nvidia.com/gpu: %d")).replace(
    "---", "    volumeMounts: [{name: shm, mountPath: /dev/shm}]\n---"
)
_PENDING = "The pod stays Pending: "

RULES = (
    Rule(
        id="G06",
        level=Severity.ERROR,
        title="No GPU of the nodes, or no GPU at all, supports the MIG profile",
        effect=_PENDING + "`0/4 nodes are available: 4 Insufficient nvidia.com/mig-1g.5gb`.",
        bad=_POD % ("", "nvidia.com/mig-1g.5gb: 1"),
        good=_POD % ("", "nvidia.com/mig-1g.10gb: 1"),
        template=_no_such_profile,
        whole=impossible_layouts,
        needs_nodes=True,
        source="https://docs.nvidia.com/datacenter/tesla/mig-user-guide/: supported MIG profiles",
    ),
    Rule(
        id="G10",
        level=Severity.ERROR,
        title="No node has a label that the pod requires",
        effect=(
            _PENDING + "`node(s) didn't match Pod's node affinity/selector`, `node(s) didn't match pod affinity rules` "
            "or `node(s) didn't match pod topology spread constraints (missing required label)`. A misspelt "
            "preference has no effect, and no message."
        ),
        bad=_POD % ("nodeSelector: {example.com/rack: r2}\n  ", "nvidia.com/gpu: 1"),
        good=_POD % ("nodeSelector: {example.com/rack: r1}\n  ", "nvidia.com/gpu: 1"),
        template=_no_such_label,
        needs_nodes=True,
        source="https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/",
    ),
    Rule(
        id="G11",
        level=Severity.ERROR,
        title="A pod requests more GPUs than any node has",
        effect=_PENDING + "`0/4 nodes are available: 4 Insufficient nvidia.com/gpu`. A pod runs on one node.",
        bad=_WIDE % 16,
        good=_WIDE % 8,
        template=_too_many,
        needs_nodes=True,
        source="https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/",
    ),
)
