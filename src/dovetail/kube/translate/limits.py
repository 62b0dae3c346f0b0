# SPDX-License-Identifier: Apache-2.0
"""Limits on the parts of one object that are read, so that each object costs little time and memory.

Rules
- Every limit is far above real use. The API server limits only the size of an object.
- A pod of this scheduler that exceeds a limit stays pending with a Problem that names the field.
- For a bound pod of any scheduler the first entries count, in the order as written: its labels, required anti-affinity
  terms, host ports and claims. Too many containers count as one that requests the sum of all, as if init containers ran
  beside the others: the kubelet grants their requests. Above MOST_SUMMED containers all GPUs are counted, and the pod
  counts as one that takes all CPU and memory of its node.
- Placement rules of a pod are measured in parts, as in `core.complexity`. If they are too many, only required
  anti-affinity terms are read.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from fractions import Fraction
from itertools import islice
from math import ceil
from typing import NamedTuple

from msgspec.structs import replace

from dovetail.core.complexity import BROAD, NEGATIVE, TERM, TEXT
from dovetail.core.devices.mig.geometry import RESOURCE_PREFIX
from dovetail.core.model import CPU, GPU, MEMORY, SHARED_GPU, Problem
from dovetail.core.quantities import MAX_AMOUNT, QuantityError, parse
from dovetail.kube.objects.base import LabelSelector, NodeSelectorTerm, Quantities, Quantity, SelectorRequirement
from dovetail.kube.objects.pods import (
    SIDECAR,
    Affinity,
    Container,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    ResourceRequirements,
    TopologySpreadConstraint,
)

MOST_PARTS = 4096
MOST_LABELS = 256
MOST_CONTAINERS = 64
MOST_SUMMED = 256
"""The containers that are summed at most, those with GPUs first: no node has GPUs for more."""
MOST_AMOUNTS = 256
MOST_RESOURCES = 64
MOST_PORTS = 256
MOST_VOLUMES = 256
MOST_CLAIMS = 128
MOST_LEVELS = 16
MOST_SUBGANGS = 64
MOST_EXPRESSIONS = 8 * 1024
_LONGEST_NAME = 253
_MOST_DIGITS = 64
_STORAGE = "ephemeral-storage"
_NVIDIA = "nvidia.com/"


class Bounded(NamedTuple):
    """A pod reduced to the parts that are read, and a Problem for each limit that it exceeds."""

    pod: Pod
    problems: tuple[Problem, ...]


def bounded(obj: Pod) -> Bounded:
    """The pod itself if it is within all limits, else its reduced form with the Problems."""
    meta, spec = obj.metadata, obj.spec
    every = (*spec.init_containers, *spec.containers) if spec.init_containers else spec.containers
    amounts = ports = 0
    for container in every[: MOST_CONTAINERS + 1]:
        ports += len(container.ports)
        amounts += len(container.resources.requests) + len(container.resources.limits)
    parts = TERM * len(spec.tolerations) + len(spec.node_selector)
    if spec.affinity is not None or spec.topology_spread_constraints:
        parts += _of_peers_and_nodes(spec)
    within = (
        parts <= MOST_PARTS
        and len(every) <= MOST_CONTAINERS
        and amounts <= MOST_AMOUNTS
        and ports <= MOST_PORTS
        and len(meta.labels) <= MOST_LABELS
        and len(spec.volumes) <= MOST_VOLUMES
        and len(spec.resource_claims) <= MOST_CLAIMS
        and not obj.unread
    )
    if within:
        return Bounded(obj, ())
    problems = [Problem(field, "", "is too long to be read") for field in dict.fromkeys(obj.unread)]
    for field, count, most in (
        ("metadata.labels", len(meta.labels), MOST_LABELS),
        ("spec.containers", len(every), MOST_CONTAINERS),
        ("spec.containers[*].resources", amounts, MOST_AMOUNTS),
        ("spec.containers[*].ports", ports, MOST_PORTS),
        ("spec.volumes", len(spec.volumes), MOST_VOLUMES),
        ("spec.resourceClaims", len(spec.resource_claims), MOST_CLAIMS),
    ):
        if problem := too_many(field, count, most):
            problems.append(problem)
    if parts > MOST_PARTS:
        rule = "nodeSelector, affinity, tolerations and topologySpreadConstraints have too many terms and values: they"
        problems.append(Problem("spec.affinity", str(parts), f"{rule} count as so many, the limit is {MOST_PARTS}"))
    if not problems:
        return Bounded(obj, ())
    too_wide = len(every) > MOST_CONTAINERS or amounts > MOST_AMOUNTS
    return Bounded(_cut(obj, parts, too_wide), tuple(problems))


def too_many(field: str, count: int, most: int) -> Problem | None:
    """A Problem if the count is above the limit."""
    return Problem(field, str(count), f"are too many; the limit is {most}") if count > most else None


def _cut(obj: Pod, parts: int, too_wide: bool) -> Pod:
    meta, spec = obj.metadata, obj.spec
    if len(meta.labels) > MOST_LABELS:
        meta = replace(meta, labels=dict(islice(meta.labels.items(), MOST_LABELS)))
    if parts > MOST_PARTS:
        far = spec.affinity.pod_anti_affinity if spec.affinity is not None else None
        terms = _first(far.required) if far is not None else ()
        affinity = Affinity(pod_anti_affinity=PodAffinity(required=terms)) if terms else None
        spec = replace(spec, affinity=affinity, node_selector={}, tolerations=(), topology_spread_constraints=())
    if too_wide:
        placed = bool(spec.node_name or obj.status.nominated_node_name)
        spec = replace(spec, init_containers=(), containers=(_together(spec),) if placed else ())
    volumes, claims = spec.volumes[:MOST_VOLUMES], spec.resource_claims[:MOST_CLAIMS]
    return replace(obj, metadata=meta, spec=replace(spec, volumes=volumes, resource_claims=claims))


def _together(spec: PodSpec) -> Container:
    """One container with the sum of all requests and the host ports of the pod."""
    every = (*spec.containers, *spec.init_containers)
    whole: dict[str, dict[str, int]] = {}
    for container in every:
        requests = container.resources.requests
        for name, quantity in requests.items():
            _add(whole, name, quantity)
        for name, quantity in container.resources.limits.items():
            if name not in requests:
                _add(whole, name, quantity)
    amounts: Quantities = {name: _total(by_unit) for name, by_unit in whole.items()}
    if len(every) > MOST_SUMMED:
        amounts[CPU] = amounts[MEMORY] = amounts[_STORAGE] = str(MAX_AMOUNT)
    equal: Quantities = {name: amount for name, amount in amounts.items() if not is_native(name)}
    beside = (*spec.containers, *[one for one in spec.init_containers if one.restart_policy == SIDECAR])
    ports = tuple(islice((port for container in beside for port in container.ports), MOST_PORTS))
    return Container(every[0].name, every[0].image, ResourceRequirements(amounts, equal), ports)


def _add(whole: dict[str, dict[str, int]], name: str, quantity: Quantity) -> None:
    """Add a quantity to the sum of its resource and unit: whole numbers of one unit are summed as written."""
    by_unit = whole.get(name)
    if by_unit is None:
        if len(whole) >= MOST_RESOURCES and not counts_always(name):
            return
        by_unit = whole[name] = {}
    text = str(quantity)
    unit = text.lstrip("0123456789")
    number = text[: len(text) - len(unit)]
    if not number or unit[:1] == ".":
        with suppress(QuantityError):
            by_unit["m"] = by_unit.get("m", 0) + ceil(1000 * max(parse(text), Fraction(0)))
    elif len(number) <= _MOST_DIGITS:
        by_unit[unit] = by_unit.get(unit, 0) + int(number)


def _total(by_unit: dict[str, int]) -> str:
    total = Fraction(0)
    for unit, number in by_unit.items():
        with suppress(QuantityError):
            total += parse(f"{number}{unit}")
    return f"{ceil(1000 * total)}m"


def counts_always(resource: str) -> bool:
    """Whether the resource is read regardless of the number of others."""
    return is_native(resource) or counts_first(resource)


def is_native(resource: str) -> bool:
    """Whether it is a native resource of Kubernetes; all others are extended resources, counted in whole numbers."""
    return "/" not in resource or resource.partition("/")[0].endswith("kubernetes.io")


def counts_first(resource: str) -> bool:
    """Whether the resource is read before others: it is a GPU or a part of one."""
    return resource.startswith(_NVIDIA) and (resource in (GPU, SHARED_GPU) or resource.startswith(RESOURCE_PREFIX))


def _first(terms: tuple[PodAffinityTerm, ...]) -> tuple[PodAffinityTerm, ...]:
    found, left = [], MOST_PARTS
    for term in terms:
        left -= _of_peers((term,), left)
        if left < 0:
            break
        found.append(term)
    return tuple(found)


def _of_peers_and_nodes(spec: PodSpec) -> int:
    """The parts of the pod's affinity and its spread constraints; above the limit, any number above it."""
    found = 0
    if spec.topology_spread_constraints:
        found += _of_spread(spec.topology_spread_constraints, MOST_PARTS)
    wire = spec.affinity
    if wire is None:
        return found
    if wire.node_affinity is not None:
        if wire.node_affinity.required is not None:
            found += _of_nodes(wire.node_affinity.required.node_selector_terms, MOST_PARTS)
        if wire.node_affinity.preferred:
            found += _of_nodes([term.preference for term in wire.node_affinity.preferred], MOST_PARTS)
    for peers in (wire.pod_affinity, wire.pod_anti_affinity):
        if peers is not None:
            if peers.required:
                found += _of_peers(peers.required, MOST_PARTS)
            if peers.preferred:
                found += _of_peers([term.pod_affinity_term for term in peers.preferred], MOST_PARTS)
    return found


def _of_nodes(terms: Iterable[NodeSelectorTerm], most: int) -> int:
    found = 0
    for term in terms:
        found += TERM + of_requirements(term.match_expressions, most) + of_requirements(term.match_fields, most)
        if found > most:
            break
    return found


def _of_peers(terms: Iterable[PodAffinityTerm], most: int) -> int:
    found = 0
    for term in terms:
        found += _of_term(term.label_selector)
        found += of_selector(term.label_selector, most) + of_selector(term.namespace_selector, most)
        found += len(term.namespaces)
        if found > most:
            break
    return found


def _of_spread(constraints: Iterable[TopologySpreadConstraint], most: int) -> int:
    found = 0
    for constraint in constraints:
        found += _of_term(constraint.label_selector)
        found += of_selector(constraint.label_selector, most) + TERM * len(constraint.match_label_keys)
        if found > most:
            break
    return found


def _of_term(selector: LabelSelector | None) -> int:
    if selector is None or selector.match_labels:
        return TERM
    for one in selector.match_expressions:
        if one.operator not in NEGATIVE:
            return TERM
    return BROAD


def of_selector(wire: LabelSelector | None, most: int = MOST_PARTS) -> int:
    """The parts of a label selector; above the limit, any number above it."""
    if wire is None:
        return 0
    return TERM * len(wire.match_labels) + of_requirements(wire.match_expressions, most)


def of_requirements(wire: Iterable[SelectorRequirement], most: int) -> int:
    """The parts of expressions; above the limit, any number above it."""
    found = 0
    for requirement in wire:
        values = requirement.values
        found += TERM + len(values)
        if found > most:
            break
        for value in values:
            if len(value) >= TEXT:
                found += len(value) // TEXT
    return found


def name(text: str) -> str:
    """A name from a field that the API server does not validate, cut to the longest name that an object can have."""
    return text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}..."
