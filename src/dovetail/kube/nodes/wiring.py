# SPDX-License-Identifier: Apache-2.0
"""The wiring of each node, merged fact by fact from the objects that describe it.

Rules
- GPUNode counts before ResourceSlices, these before the NodeResourceTopology, this before the labels. The first object
  sets the GPUs and their number; a missing fact comes from the next object, as far as that describes the same GPUs:
  those of equal uuid or, without uuids, of equal number.
- A NodeResourceTopology counts GPUs per NUMA node. It places single GPUs only where all are on one NUMA node. Facts
  that are assumed from labels and contradict its counts are dropped.
- NVLinks, NICs and rates that no object has are assumed from the product, and marked so in the layout.
- How GPUs are divided between pods is read in `gpu_sharing`; the wiring of divided GPUs is not used.
- A difference between two objects becomes a finding, and so does a value that cannot be used. A node with findings
  stays in use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.devices import products
from dovetail.core.devices.kubelet.inventory import Inventory
from dovetail.core.devices.layout import BOARD, LEVELS, MAX_LINKED_GPUS, NODE, PHB, UNKNOWN, Layout, Matrix
from dovetail.core.model import GPU, Problem
from dovetail.kube.nodes import instances, inventories, layouts
from dovetail.kube.nodes.gpu_sharing import NO_PARTS, SharedParts, SharingOffer, offer_of, parts_of
from dovetail.kube.nodes.inventories import Zones
from dovetail.kube.nodes.layouts import Description, Labels, LayoutFinding
from dovetail.kube.objects import base
from dovetail.kube.objects.claims import ResourceSlice
from dovetail.kube.objects.topology import GPUNode, NodeResourceTopology

_CLIQUE = "nvidia.com/gpu.clique"
_LABELS = "labels"


class Wiring(Struct, frozen=True):
    """What is known of one node. `origin` is the kind of the object that describes its GPUs: `labels` where their
    wiring is assumed from these, "" without a description. `parts` is how these GPUs are divided."""

    layout: Layout | None = None
    origin: str = ""
    inventory: Inventory | None = None
    parts: SharedParts = NO_PARTS
    findings: tuple[LayoutFinding, ...] = ()


class Wirings:
    """The objects that describe nodes. The methods that take one return the name of its node, "" for none."""

    def __init__(self) -> None:
        self.gpu_nodes: dict[str, GPUNode] = {}
        self._described: dict[str, layouts.Read] = {}
        self._zones: dict[str, tuple[Zones, tuple[LayoutFinding, ...]]] = {}
        self._slices: dict[str, dict[str, ResourceSlice]] = {}
        self._known: dict[str, tuple[_Seen, Wiring]] = {}
        self._out: dict[str, int] = {}
        """The GPUs that were unhealthy when description and allocatable GPUs last agreed, or since then, as bits."""

    def put_gpu_node(self, obj: GPUNode, deleted: bool) -> str:
        name = obj.metadata.name
        if deleted:
            self.gpu_nodes.pop(name, None)
            self._described.pop(name, None)
        else:
            self.gpu_nodes[name] = obj
            self._described[name] = layouts.of_gpu_node(obj)
        return self._changed(name)

    def put_topology(self, obj: NodeResourceTopology, deleted: bool) -> str:
        name = obj.metadata.name
        self._zones.pop(name, None)
        if not deleted:
            self._zones[name] = inventories.zones_of(obj)
        return self._changed(name)

    def put_slice(self, obj: ResourceSlice, deleted: bool) -> str:
        """Slices of other drivers, and slices that are not of one node, are ignored."""
        name, node = obj.metadata.name, obj.spec.node_name
        if obj.spec.driver != layouts.DRIVER or not node:
            return ""
        slices = self._slices.setdefault(node, {})
        slices.pop(name, None)
        if not deleted:
            slices[name] = obj
        elif not slices:
            del self._slices[node]
        return self._changed(node)

    def _changed(self, name: str) -> str:
        self._known.pop(name, None)
        return name

    def forget(self, name: str) -> None:
        """Forget a node that is gone. Its GPUNode and other objects stay, as they may outlive it."""
        self._known.pop(name, None)
        self._out.pop(name, None)

    def of(self, node: base.Node) -> Wiring:
        name = node.metadata.name
        seen = _Seen.of(node)
        known = self._known.get(name)
        if known is None or known[0] != seen:
            known = self._known[name] = (seen, self._worked_out(name, seen))
        return known[1]

    def _worked_out(self, name: str, seen: _Seen) -> Wiring:
        gpu_node, reported = self.gpu_nodes.get(name), self._described.get(name, (None, ()))
        zones, of_zones = self._zones.get(name, (None, ()))
        sliced = layouts.of_slices(self._slices.get(name, {}).values())
        findings = [*reported[1], *sliced[1], *of_zones]
        described = [found for found, _ in (reported, sliced) if found is not None]
        if seen.labels.unreadable:
            rule = "must be a whole number: not used"
            problem = Problem(f"metadata.labels[{layouts.COUNT}]", seen.labels.unreadable, rule)
            findings.append(LayoutFinding("Node", name, problem))
        layout = _layout(name, described, zones, seen, findings)
        parts, unclear = parts_of(name, seen.offer, gpu_node)
        divided = instances.divided(name, seen.offer.product, dict(seen.offer.slices), seen.offer.gpus, gpu_node)
        out = 0
        if layout is not None and reported[0] is not None and not parts.divided:
            out = self._still_out(name, layout, _out(gpu_node), seen)
        parts = parts._replace(mig=divided.cards, geometry=divided.geometry, gpus_out=out)
        findings += [*unclear, *divided.findings]
        # What zones count where GPUs are divided is not GPUs.
        inventory, contradictions = inventories.inventory_of(name, gpu_node, zones, None if parts.divided else layout)
        findings += contradictions
        origin = described[0].kind if described else _LABELS
        if layout is None:
            return Wiring(inventory=inventory, parts=parts, findings=tuple(findings))
        if not parts.divided:
            findings += _uncounted(name, layout, out, origin, described, seen)
        return Wiring(layouts.shared(layout), origin, inventory, parts, tuple(findings))

    def _still_out(self, name: str, layout: Layout, out: int, seen: _Seen) -> int:
        """The GPUs that the node's allocatable GPUs do not contain yet, as bits. A kubelet writes these every ten
        seconds (nodeStatusUpdateFrequency), so later than the agent reports that a GPU is healthy again or has left MIG
        mode: until then the GPU stays out, and the others are known. The same holds while a kubelet that restarts
        offers nothing for a moment."""
        before = self._out[name] = out | self._out.get(name, 0)
        for bits in (before, out):
            if seen.gpus is not None and seen.gpus + bits.bit_count() == layout.gpus:
                self._out[name] = bits
                return bits
        return out


class _Seen(Struct, frozen=True):
    """The parts of a Node object that matter here. `gpus` is None where the node offers none."""

    labels: Labels
    clique: str
    offer: SharingOffer

    @property
    def gpus(self) -> int | None:
        return self.offer.gpus or None

    @staticmethod
    def of(node: base.Node) -> _Seen:
        labels = layouts.of_labels(node.metadata.labels)
        return _Seen(labels, node.metadata.labels.get(_CLIQUE, ""), offer_of(node, labels))


def _layout(
    name: str, described: list[Description], zones: Zones | None, seen: _Seen, findings: list[LayoutFinding]
) -> Layout | None:
    labels = seen.labels
    if not described:
        found = layouts.assumed(labels.product, labels.count, labels.host) if labels.count else None
        return _beside(found, zones, findings) if found is not None else None
    best = described[0]
    for other in described[1:]:
        best = _merged(best, other, findings)
    findings += _against_labels(name, best, seen)
    if zones is not None:
        best = _with_zones(best, zones, findings)
    product = best.product or labels.product
    guess = layouts.assumed(product, best.gpus, labels.host) if product else None
    if best.nvlinks is not None and best.nics is not None:
        return layouts.layout_of(replace(best, product=product))
    sure = best.nvlinks is not None
    if guess is not None:
        # NICs were worked out from the NUMA nodes that the type of machine has.
        nics = guess.nics if best.numa == guess.numa else ()
        best = replace(best, nvlinks=best.nvlinks or guess.nvlinks, nics=nics if best.nics is None else best.nics)
    return layouts.layout_of(replace(best, product=product), assumed=not sure or bool(guess and best.nics))


def _merged(best: Description, other: Description, findings: list[LayoutFinding]) -> Description:
    """`best`, the GPUNode, completed with facts of its GPUs from `other`, the ResourceSlices."""
    counts = f"{best.kind} counts"
    if best.gpus != other.gpus:
        rule = f"are not the {best.gpus} GPUs of {best.kind}: {counts}"
        findings.append(LayoutFinding(other.kind, other.name, Problem("spec.devices", str(other.gpus), rule)))
        return best
    order: Sequence[int] = range(best.gpus)
    if all(best.uuids) and all(other.uuids):
        if set(best.uuids) != set(other.uuids):
            odd = next(uuid for uuid in other.uuids if uuid not in best.uuids)
            rule = f"is no GPU of {best.kind}: {counts}"
            findings.append(
                LayoutFinding(other.kind, other.name, Problem("spec.devices[].attributes[uuid]", odd, rule))
            )
            return best
        place = {uuid: i for i, uuid in enumerate(other.uuids)}
        order = [place[uuid] for uuid in best.uuids]
    numa = tuple(other.numa[i] for i in order)
    pcie = tuple(tuple(other.pcie[i][j] for j in order) for i in order)
    findings += _first_differing_numa(best, numa, other.kind)
    findings += _first_differing_pair(best, pcie, other.kind)
    if best.product and other.product and products.find(best.product) != products.find(other.product):
        rule = f"{best.kind} has {best.product}: {counts}"
        findings.append(
            LayoutFinding(
                other.kind, other.name, Problem("spec.devices[].attributes[productName]", other.product, rule)
            )
        )
    return replace(
        best,
        uuids=tuple(uuid or other.uuids[i] for uuid, i in zip(best.uuids, order, strict=True)),
        numa=tuple(mine if mine != UNKNOWN else theirs for mine, theirs in zip(best.numa, numa, strict=True)),
        pcie=tuple(
            tuple(mine if mine != UNKNOWN else theirs for mine, theirs in zip(mine_row, their_row, strict=True))
            for mine_row, their_row in zip(best.pcie, pcie, strict=True)
        ),
        product=best.product or other.product,
    )


def _first_differing_numa(best: Description, numa: tuple[int, ...], kind: str) -> Iterable[LayoutFinding]:
    differing = [i for i, theirs in enumerate(numa) if UNKNOWN not in (theirs, best.numa[i]) and theirs != best.numa[i]]
    if differing:
        i = differing[0]
        more = f" (and so on for {len(differing) - 1} more)" if len(differing) > 1 else ""
        rule = f"{kind} has {numa[i]}{more}: {best.kind} counts"
        yield LayoutFinding(best.kind, best.name, Problem(f"status.gpus[{i}].numaNode", str(best.numa[i]), rule))


def _first_differing_pair(best: Description, pcie: Matrix, kind: str) -> Iterable[LayoutFinding]:
    """One that shares a PCIe root here and is further apart than a host bridge there."""
    for i, row in enumerate(pcie):
        for j, level in enumerate(row[:i]):
            if level == PHB and best.pcie[i][j] >= NODE:
                shown = LEVELS[best.pcie[i][j]]
                rule = f"{kind} has these GPUs on one PCIe root: {best.kind} counts"
                yield LayoutFinding(best.kind, best.name, Problem(f"status.pcieLevels[{i}][{j}]", shown, rule))
                return


def _against_labels(name: str, best: Description, seen: _Seen) -> Iterable[LayoutFinding]:
    labels = seen.labels
    if labels.count is not None and labels.count != best.gpus and "-MIG-" not in labels.product:
        rule = f"{best.kind} has {best.gpus}: {best.kind} counts"
        yield LayoutFinding("Node", name, Problem(f"metadata.labels[{layouts.COUNT}]", str(labels.count), rule))
    reported, labelled = products.find(best.product), products.find(labels.product)
    if reported is not None and labelled is not None and reported != labelled:
        rule = f"{best.kind} has {best.product}: {best.kind} counts"
        yield LayoutFinding("Node", name, Problem(f"metadata.labels[{layouts.PRODUCT}]", labels.product, rule))
    if best.clique and seen.clique and best.clique != seen.clique:
        rule = f"{best.kind} has {best.clique}: the label counts, as the fabric is read from labels"
        yield LayoutFinding("Node", name, Problem(f"metadata.labels[{_CLIQUE}]", seen.clique, rule))


def _with_zones(best: Description, zones: Zones, findings: list[LayoutFinding]) -> Description:
    counts = zones.per_numa(GPU)
    if not counts:
        return best
    mine = Counter(numa for numa in best.numa if numa != UNKNOWN)
    fits = sum(counts.values()) == best.gpus and all(mine[numa] <= counts.get(numa, 0) for numa in mine)
    if not fits:
        shown = ", ".join(f"node-{numa}: {count}" for numa, count in sorted(counts.items()))
        ours = ", ".join(f"{numa}: {count}" for numa, count in sorted(mine.items())) or "none"
        rule = f"{best.kind} has {best.gpus} GPUs, by NUMA node {ours}: {best.kind} counts"
        problem = Problem(f"zones[].resources[{GPU}].capacity", shown, rule)
        findings.append(LayoutFinding("NodeResourceTopology", zones.name, problem))
        return best
    if len(counts) == 1:
        return replace(best, numa=tuple(counts) * best.gpus)
    return best


def _beside(assumed: Layout, zones: Zones | None, findings: list[LayoutFinding]) -> Layout:
    """An assumed layout as far as the counts of a NodeResourceTopology leave it possible."""
    counts = zones.per_numa(GPU) if zones is not None else {}
    if zones is None or not counts or counts == Counter(assumed.numa):
        return assumed
    if sum(counts.values()) != assumed.gpus:
        rule = f"the labels of the node have {assumed.gpus}: the labels count"
        problem = Problem(f"zones[].resources[{GPU}].capacity", str(sum(counts.values())), rule)
        findings.append(LayoutFinding("NodeResourceTopology", zones.name, problem))
        return assumed
    numa = (tuple(counts) if len(counts) == 1 else (UNKNOWN,)) * assumed.gpus
    order = range(assumed.gpus)
    return replace(
        assumed, numa=numa, pcie=tuple(tuple(BOARD if i == j else UNKNOWN for j in order) for i in order), nics=()
    )


def _out(gpu_node: GPUNode | None) -> int:
    """The GPUs that the node does not offer as whole ones: broken ones, and cards in MIG mode."""
    gpus = gpu_node.status.gpus if gpu_node is not None else ()
    return sum(1 << gpu.index for gpu in gpus if not gpu.healthy or gpu.mig is not None)


def _uncounted(
    name: str, layout: Layout, out: int, origin: str, described: list[Description], seen: _Seen
) -> Iterable[LayoutFinding]:
    """The findings where the layout does not match the node's allocatable GPUs."""
    field = f"status.allocatable[{GPU}]"
    if seen.gpus is not None and not layout.gpus - out.bit_count() <= seen.gpus <= layout.gpus:
        broken = described[0].unhealthy if described else ()
        why = f" (not healthy: {', '.join(map(str, broken))})" if broken else ""
        source = f"{origin} has" if described else "the labels of the node have"
        rule = f"{source} {layout.gpus} GPUs{why}: they are only counted"
        yield LayoutFinding("Node", name, Problem(field, str(seen.gpus), rule))
    elif seen.gpus is not None and layout.gpus > MAX_LINKED_GPUS:
        rule = f"wiring is worked out for up to {MAX_LINKED_GPUS} GPUs of a node: they are only counted"
        yield LayoutFinding("Node", name, Problem(field, str(seen.gpus), rule))
