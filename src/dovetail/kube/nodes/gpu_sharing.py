# SPDX-License-Identifier: Apache-2.0
"""How the GPUs of a node are divided: shared between pods, or sliced under the name of whole GPUs; and their memory.

Rules
- Labels of GPU feature discovery: `gpu.replicas` and `gpu.sharing-strategy` (older ones without it only knew
  time-slicing), `gpu.memory` of a card, and a product that ends with -SHARED. GPUNode counts before the labels.
- With MIG strategy `single` the product ends with the profile, and count and memory are those of the slices.
- Replicas have the name `nvidia.com/gpu.shared` where the node offers that, else that of whole GPUs.
- The number of shared cards follows from the node's allocatable replicas, which may be fewer than there are.
- Of GPUs of different memory the least counts.
- A contradiction becomes a finding. The node then counts as one with the weakest isolation and an unknown number of
  replicas per card: its replicas are only counted.
Not known here: replicas of MIG slices (strategy `mixed`), which are counted as any other resource.
Source: NVIDIA k8s-device-plugin (internal/lm, internal/plugin), GPU feature discovery.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from dovetail.core.devices.gpu_sharing import Isolation, Sharing
from dovetail.core.devices.mig import names
from dovetail.core.devices.mig.geometry import Geometry
from dovetail.core.devices.mig.static import Card
from dovetail.core.model import GPU, MAX_GPUS, SHARED_GPU, WHOLE_GPU_MILLI, Problem
from dovetail.core.quantities import QuantityError, units
from dovetail.kube.nodes.layouts import PRODUCT, Labels, LayoutFinding
from dovetail.kube.objects import base
from dovetail.kube.objects.topology import GPUNode, GpuSharing
from dovetail.kube.translate.problems import nearest

REPLICAS, STRATEGY = "nvidia.com/gpu.replicas", "nvidia.com/gpu.sharing-strategy"
MEMORY, MIG_STRATEGY = "nvidia.com/gpu.memory", "nvidia.com/mig.strategy"
_UNSHARED = "none"
_MPS = "mps"
_ISOLATION: dict[str, Isolation] = {"time-slicing": "none", _MPS: "memory"}
"""By strategy; see `core.devices.gpu_sharing`."""
_SLICED = re.compile(r".+-MIG-(.+?)(?:-SHARED)?")
_INVALID = "INVALID"
_MOST_MIB = 2**21
"""Parts of a GPU are kept in thousandths of MiB in 31 bits."""
_NUMBER = re.compile(r"[0-9]{1,9}")


class SharedParts(NamedTuple):
    """As in `core.model.Node`."""

    gpu_memory_mib: int = 0
    sharing: Sharing | None = None
    sliced: bool = False
    mig: tuple[Card, ...] = ()
    geometry: Geometry | None = None
    gpus_out: int = 0

    @property
    def divided(self) -> bool:
        """Whether a device that the node offers is less than a GPU."""
        return self.sliced or self.sharing is not None


NO_PARTS = SharedParts()


class SharingOffer(NamedTuple):
    """The labels of a Node about sharing; "" for a label that is not there. `cards` is None without such a label,
    `gpus` and `shared` are how many of the two resources are allocatable, `slices` how many of each MIG resource."""

    product: str
    cards: int | None
    memory: str
    replicas: str
    strategy: str
    mig: str
    gpus: int
    shared: int
    slices: tuple[tuple[str, int], ...] = ()


class _Unclear(Exception):
    """It is not known how the node shares its GPUs; the argument is the finding."""


def offer_of(node: base.Node, labels: Labels) -> SharingOffer:
    named, amounts = node.metadata.labels, node.status.allocatable
    return SharingOffer(
        product=labels.product,
        cards=labels.count,
        memory=named.get(MEMORY, ""),
        replicas=named.get(REPLICAS, ""),
        strategy=named.get(STRATEGY, ""),
        mig=named.get(MIG_STRATEGY, ""),
        gpus=_units(amounts.get(GPU, 0)),
        shared=_units(amounts.get(SHARED_GPU, 0)),
        slices=tuple(
            (name, _units(amount)) for name, amount in sorted(amounts.items()) if names.read(name) is not None
        ),
    )


def _units(amount: base.Quantity) -> int:
    try:
        return max(0, int(units(str(amount))))
    except QuantityError:
        # The node's own label.
        return 0


def parts_of(name: str, offer: SharingOffer, node: GPUNode | None) -> tuple[SharedParts, tuple[LayoutFinding, ...]]:
    """What is known of the parts of a node's GPUs; `node` is the GPUNode, which has more facts."""
    findings: list[LayoutFinding] = []
    found = _SLICED.fullmatch(offer.product)
    if found is not None and found[1] == _INVALID:
        rule = "cards differ, or have no slices: what they offer is taken for slices of no known memory"
        findings.append(_of_label(name, PRODUCT, offer.product, rule))
    elif found is not None and offer.mig not in ("", "single"):
        findings.append(_of_label(name, MIG_STRATEGY, offer.mig, f"{PRODUCT} is of slices: taken for single"))
    memory_mib = _memory_mib(name, offer, None if found else node, findings)
    reported = node.status.sharing if node is not None else None
    try:
        sharing = _sharing(name, offer, None if found else node, reported, findings)
    except _Unclear as unclear:
        findings.append(unclear.args[0])
        sharing = Sharing(_resource(offer), cards=0, replicas=1)
    return SharedParts(memory_mib, sharing, found is not None), tuple(findings)


def _of_label(name: str, key: str, value: str, rule: str) -> LayoutFinding:
    return LayoutFinding("Node", name, Problem(f"metadata.labels[{key}]", value, rule))


def _memory_mib(name: str, offer: SharingOffer, node: GPUNode | None, findings: list[LayoutFinding]) -> int:
    labelled = int(offer.memory) if _NUMBER.fullmatch(offer.memory) else 0
    labelled = labelled if labelled <= _MOST_MIB else 0
    if offer.memory and not labelled and not offer.product.endswith(_INVALID):
        rule = f"must be a whole number of MiB from 1 to {_MOST_MIB}: taken as not known"
        findings.append(_of_label(name, MEMORY, offer.memory, rule))
    reported = min((gpu.memory_mib for gpu in node.status.gpus), default=0) if node is not None else 0
    reported = reported if 0 < reported <= _MOST_MIB else 0
    if reported and labelled and reported != labelled:
        findings.append(_of_label(name, MEMORY, offer.memory, f"GPUNode has {reported}: GPUNode counts"))
    return reported or labelled


def _resource(offer: SharingOffer) -> str:
    return SHARED_GPU if offer.shared else GPU


def _sharing(
    name: str, offer: SharingOffer, node: GPUNode | None, reported: GpuSharing | None, findings: list[LayoutFinding]
) -> Sharing | None:
    """None where GPUs are not shared. `node` is the object where the cards that it lists are the devices that are
    shared. Raises _Unclear."""
    if reported is None:
        strategy, replicas = _labelled(name, offer)
    else:
        strategy, replicas = reported.strategy, reported.replicas
        findings += _against_labels(name, offer, reported)
    if strategy == _UNSHARED or not strategy:
        if reported is not None and offer.shared:
            rule = "in the GPUNode GPUs are not shared: only counted"
            raise _Unclear(
                LayoutFinding("Node", name, Problem(f"status.allocatable[{SHARED_GPU}]", str(offer.shared), rule))
            )
        return None
    if strategy not in _ISOLATION:
        rule = f"must be one of {', '.join(_STRATEGIES)}; nearest valid value: {nearest(strategy, _STRATEGIES)}"
        raise _unclear(name, reported, "strategy", strategy, rule)
    if not 2 <= replicas <= WHOLE_GPU_MILLI:
        shown = str(replicas) if reported is not None else offer.replicas
        raise _unclear(name, reported, "replicas", shown, f"must be a whole number from 2 to {WHOLE_GPU_MILLI}")
    if strategy == _MPS and _SLICED.fullmatch(offer.product):
        raise _unclear(name, reported, "strategy", strategy, f"{PRODUCT} is of MIG slices, which MPS does not share")
    resource = (reported.resource if reported is not None else "") or _resource(offer)
    if resource not in (GPU, SHARED_GPU):
        raise _unclear(name, reported, "resource", resource, f"must be {GPU} or {SHARED_GPU}")
    one_only = strategy == _MPS or (reported is not None and reported.fail_requests_greater_than_one)
    cards = _cards(name, offer, node, resource, replicas, findings)
    return Sharing(resource, cards, replicas, _ISOLATION[strategy], one_only)


_STRATEGIES = (_UNSHARED, *_ISOLATION)


def _unclear(name: str, reported: GpuSharing | None, field: str, value: str, rule: str) -> _Unclear:
    rule = f"{rule}: only counted"
    if reported is not None:
        return _Unclear(LayoutFinding("GPUNode", name, Problem(f"status.sharing.{field}", value, rule)))
    return _Unclear(_of_label(name, {"strategy": STRATEGY, "replicas": REPLICAS}[field], value, rule))


def _labelled(name: str, offer: SharingOffer) -> tuple[str, int]:
    """Strategy and replicas by the labels; "" where no label shows that GPUs are shared."""
    replicas = int(offer.replicas) if _NUMBER.fullmatch(offer.replicas) else 0
    if offer.replicas and not _NUMBER.fullmatch(offer.replicas):
        raise _unclear(name, None, "replicas", offer.replicas, "must be a whole number")
    signs = {
        f"status.allocatable[{SHARED_GPU}] is {offer.shared}": offer.shared > 0,
        f"{REPLICAS} is {replicas}": replicas > 1,
        f"{PRODUCT} ends with -SHARED": offer.product.endswith("-SHARED"),
    }
    sign = next((sign for sign, there in signs.items() if there), "")
    if sign and offer.strategy == _UNSHARED:
        raise _unclear(name, None, "strategy", offer.strategy, sign)
    # Releases without a label of the strategy had only this one.
    return offer.strategy or ("time-slicing" if sign else ""), replicas


def _against_labels(name: str, offer: SharingOffer, reported: GpuSharing) -> Iterable[LayoutFinding]:
    replicas = (str(reported.replicas),) if reported.strategy in _ISOLATION else ("1", "0")
    for key, labelled, ours in (
        (STRATEGY, offer.strategy, (reported.strategy,)),
        (REPLICAS, offer.replicas, replicas),
    ):
        if labelled and labelled not in ours:
            yield _of_label(name, key, labelled, f"GPUNode has {ours[0]}: GPUNode counts")


def _cards(
    name: str, offer: SharingOffer, node: GPUNode | None, resource: str, replicas: int, findings: list[LayoutFinding]
) -> int:
    """How many GPUs the node shares. Raises _Unclear."""
    healthy = sum(gpu.healthy for gpu in node.status.gpus) if node is not None else 0
    amount, count = offer.shared if resource == SHARED_GPU else offer.gpus, healthy or offer.cards
    cards, rest = divmod(amount, replicas)
    field, most = f"status.allocatable[{resource}]", MAX_GPUS if count is None else min(count, MAX_GPUS)
    if not amount:
        return most if count is not None else 0
    if rest or cards > most:
        rule = f"must be {replicas} replicas of each of {count if count is not None else 'its'} GPUs: only counted"
        raise _Unclear(LayoutFinding("Node", name, Problem(field, str(amount), rule)))
    if count is not None and cards < count:
        rule = f"are {replicas} replicas of each of {cards} GPUs of {count}: the others are taken for broken"
        findings.append(LayoutFinding("Node", name, Problem(field, str(amount), rule)))
    return cards
