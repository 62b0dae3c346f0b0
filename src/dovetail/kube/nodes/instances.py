# SPDX-License-Identifier: Apache-2.0
"""MIG instances: those of a node, and those in a pod's annotation.

Rules
- A GPUNode lists the cards in MIG mode with their instances. Without one, the node's resources have the number of
  instances of each profile, and its label the product: then their places are assumed, on as few cards as can
  have them, numbered after the whole GPUs. An impossible set is a finding, and the instances are only counted.
- The annotation writes an instance as `GPU/PROFILE@START`: `0/1g.5gb@6` starts at memory slice 6 of GPU 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from dovetail.core.devices.mig import names
from dovetail.core.devices.mig import slices as costs
from dovetail.core.devices.mig.geometry import Geometry, GeometryError
from dovetail.core.devices.mig.products import of_product
from dovetail.core.devices.mig.static import Card, layout_from_counts
from dovetail.core.model import MAX_GPUS, Instance, Problem
from dovetail.kube.nodes.layouts import LayoutFinding
from dovetail.kube.objects.topology import GPUNode

_MOST = 8 * MAX_GPUS
_WRITTEN = re.compile(r"(0|[1-9][0-9]?)/([1-9]\d?g\.[1-9]\d{0,3}gb(?:\+[a-z.]+|-me)?)@(0|[1-9][0-9]?)")
_MOST_CARDS = 16


class NodeInstances(Struct, frozen=True):
    """`cards` are those in MIG mode; `geometry` is that of the whole GPUs."""

    cards: tuple[Card, ...] = ()
    geometry: Geometry | None = None
    findings: tuple[LayoutFinding, ...] = ()


def divided(name: str, product: str, slices: Mapping[str, int], whole: int, gpu_node: GPUNode | None) -> NodeInstances:
    """What is known of the instances of a node. `product` is the label of its GPUs, "" for none; `slices` are its MIG
    resources, `whole` the whole GPUs that it offers."""
    counts = {
        resource: amount
        for resource, amount in slices.items()
        if amount > 0 and (read := names.read(resource)) is not None and not read.shared
    }
    geometry = of_product(product) if product else None
    if gpu_node is not None and any(gpu.mig is not None for gpu in gpu_node.status.gpus):
        cards, findings = _reported_cards(gpu_node, product)
        return NodeInstances(cards, geometry or (cards[0].geometry if cards else None), findings)
    if not counts:
        return NodeInstances((), geometry)
    if geometry is None:
        missing = "the node's label nvidia.com/gpu.product is missing"
        what = f"no MIG profiles are known for {product!r}" if product else missing
        return NodeInstances((), None, (_unused(name, counts, f"{what}: only counted"),))
    try:
        cards = _assumed(geometry, counts, whole)
    except GeometryError as error:
        return NodeInstances((), geometry, (_unused(name, counts, f"{error}: only counted"),))
    if not cards:
        rule = f"no {_MOST_CARDS} cards of {geometry.key} can have these instances: only counted"
        return NodeInstances((), geometry, (_unused(name, counts, rule),))
    return NodeInstances(cards, geometry)


def _unused(name: str, counts: Mapping[str, int], rule: str) -> LayoutFinding:
    resource, amount = min(counts.items())
    return LayoutFinding("Node", name, Problem(f"status.allocatable[{resource}]", str(amount), rule))


def _assumed(geometry: Geometry, counts: Mapping[str, int], whole: int) -> tuple[Card, ...]:
    if sum(counts.values()) > _MOST_CARDS * geometry.memory_slices:
        return ()
    held = [geometry.profiles[geometry.index(resource)] for resource, count in counts.items() for _ in range(count)]
    least = -(-costs.slices(geometry, held).milli // costs.CARD_MILLI)
    for number in range(max(least, 1), _MOST_CARDS + 1):
        cards = layout_from_counts(geometry, counts, number)
        if cards is not None:
            return tuple(Card(whole + card.gpu, geometry, card.instances, assumed=True) for card in cards)
    return ()


def _reported_cards(gpu_node: GPUNode, product: str) -> tuple[tuple[Card, ...], tuple[LayoutFinding, ...]]:
    cards: list[Card] = []
    findings: list[LayoutFinding] = []
    name = gpu_node.metadata.name
    for i, gpu in enumerate(gpu_node.status.gpus):
        if gpu.mig is None or not (gpu.healthy or gpu.mig):
            # Whoever would divide a card that does not work has nothing of it.
            continue
        reported, path = gpu.product or product, f"status.gpus[{i}]"
        geometry = of_product(reported)
        if geometry is None:
            rule = "no MIG profiles are known for this product: the instances are only counted"
            findings.append(LayoutFinding("GPUNode", name, Problem(f"{path}.product", reported, rule)))
            continue
        try:
            bits = geometry.bits((one.profile, one.start) for one in gpu.mig)
            cards.append(Card(i, geometry, bits))
        except GeometryError as error:
            shown = ", ".join(f"{one.profile}@{one.start}" for one in gpu.mig)
            problem = Problem(f"{path}.mig", shown, f"{error}: the instances are only counted")
            findings.append(LayoutFinding("GPUNode", name, problem))
    return tuple(cards), tuple(findings)


def written(text: str) -> tuple[Instance, ...] | None:
    """The instances in the text of an annotation; None where it is no list of different ones."""
    parts = [_WRITTEN.fullmatch(part) for part in text.split(",", _MOST)]
    found = [Instance(int(part[1]), part[2], int(part[3])) for part in parts if part is not None]
    return tuple(found) if len(found) == len(parts) == len({*found}) else None


def shown(instance: Instance) -> str:
    return f"{instance.gpu}/{instance.profile}@{instance.start}"
