# SPDX-License-Identifier: Apache-2.0
"""What still fits on a cluster, by GPU model and size, and what blocks the next size.

Rules
- Each number is the scheduler's own answer for a pod that requests only GPUs, MIG instances, a share or devices, and an
  amount of CPU and memory for each (`probe.Beside`). Closed nodes are counted separately.
- Whole GPUs are grouped by the label nvidia.com/gpu.product, GPUs in MIG mode by the geometry of their product. If the
  GPUs of MIG instances are not known, only the number of instances is. Slices are those that instances really occupy,
  not the digit in their name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dovetail.core.cluster.columns import ABSENT, Mask
from dovetail.core.devices.gpu_sharing import Isolation
from dovetail.core.devices.mig.geometry import RESOURCE_PREFIX, Geometry, MigProfile
from dovetail.core.devices.mig.slices import slices
from dovetail.core.dra.asks import MOST_RESULTS
from dovetail.core.dra.types import Claim, ClaimSpec, DeviceRequest
from dovetail.core.model import GPU, WHOLE_GPU_MILLI, Pod
from dovetail.core.state import State
from dovetail.views.claimed import Claimed
from dovetail.views.free_types import (
    Beside,
    ClassDevices,
    Domain,
    Free,
    FreeGpus,
    FreeShare,
    FreeSize,
    Instances,
    MigCards,
    SharedCards,
)
from dovetail.views.probe import NAME, Probe
from dovetail.views.stranded import of_waiting

SHARES_MILLI = (125, 250, 500)


def free(state: State, beside: Beside | None = None) -> Free:
    """What fits now. The state decides afterwards as before."""
    ask = Probe(state, beside or Beside())
    found = tuple(_gpus(ask)), tuple(_mig(ask)), tuple(_shared(ask)), tuple(_classes(ask))
    return Free(*found, of_waiting(ask))


def _gpus(ask: Probe) -> Iterator[FreeGpus]:
    nodes, amounts = ask.nodes, ask.allocatable(GPU)
    replicas = [sharing is not None and sharing.resource == GPU for sharing in nodes.sharings]
    whole = ask.there & (amounts > 0) & ~nodes.sliced & ~np.array(replicas)[nodes.sharing_ids]
    for model, where in ask.by_model(whole):
        here = where & ask.open
        most = int(np.where(here, amounts, 0).max())
        sizes = sorted({1 << power for power in range(most.bit_length()) if 1 << power <= most} | ({most} - {0}))
        spare = np.where(here & nodes.spare, ask.free(GPU), 0)
        left = np.where(here & ~nodes.spare, ask.free(GPU), 0)
        found = [_size(ask, model, here, size) for size in sizes]
        yield FreeGpus(
            model, int(where.sum()), int(amounts[where].sum()), int(left.sum()), int(amounts[where & ~here].sum()),
            _largest(ask, model, here, int(left.max())), most, tuple(found), int(spare.sum()),
        )  # fmt: skip


def _largest(ask: Probe, model: str, here: Mask, most: int) -> int:
    while most and not ask.copies(ask.pod(model, most, (GPU, most)), here).any():
        most -= 1
    return most


def _size(ask: Probe, model: str, here: Mask, gpus: int) -> FreeSize:
    pod = ask.pod(model, gpus, (GPU, gpus))
    copies = ask.copies(pod, here)
    pods = int(copies.sum())
    return FreeSize(gpus, pods, tuple(_domains(ask, copies)), None if pods else ask.blocked(pod, here, gpus))


def _domains(ask: Probe, copies: NDArray[np.int64]) -> Iterator[Domain]:
    fabric = ask.cluster.fabric
    for level in fabric.levels:
        domains = fabric.domains(level)
        inside = domains != ABSENT
        sums = np.bincount(domains[inside], weights=copies[inside], minlength=1).astype(np.int64)
        best = int(sums.argmax())
        yield Domain(level, fabric.name(level, best) if sums[best] else "", int(sums[best]))


def _mig(ask: Probe) -> Iterator[MigCards]:
    """The known GPUs in MIG mode by their geometry, then nodes of which only the number of instances is known."""
    by_geometry: dict[str, tuple[Geometry, Mask]] = {}
    known = np.zeros(ask.nodes.size, dtype=np.bool_)
    for slot, record in enumerate(ask.nodes.records):
        for card in record.mig if record is not None else ():
            known[slot] = True
            _, where = by_geometry.setdefault(card.geometry.key, (card.geometry, np.zeros_like(known)))
            where[slot] = True
    for key in sorted(by_geometry):
        yield _cards(ask, *by_geometry[key])
    resources = [name for name in ask.nodes.resources if name.startswith(RESOURCE_PREFIX)]
    counted = np.zeros_like(known)
    for resource in resources:
        counted |= (ask.allocatable(resource) > 0) & ~known
    counted |= ask.nodes.sliced & (ask.allocatable(GPU) > 0)
    for model, where in ask.by_model(counted & ask.there):
        here = where & ask.open
        offered = [name for name in resources if ask.allocatable(name)[here].any()]
        rows = [_instances(ask, here, name.removeprefix(RESOURCE_PREFIX), name) for name in offered]
        if (here & ask.nodes.sliced).any():
            rows.append(_instances(ask, here & ask.nodes.sliced, model.partition("-MIG-")[2], GPU))
        yield MigCards(model, int(where.sum()), 0, 0, 0, 0, 0, 0, tuple(rows))


def _cards(ask: Probe, geometry: Geometry, where: Mask) -> MigCards:
    here = where & ask.open
    held: list[MigProfile] = []
    offered: Counter[int] = Counter()
    cards = closed = 0
    for slot in np.flatnonzero(where).tolist():
        known = ask.cluster.slices.cards(slot)
        assert known is not None
        for card, used in zip(known.cards, ask.cluster.slices.used[slot], strict=True):
            if card.geometry != geometry:
                continue
            cards, closed = cards + 1, closed + (not here[slot])
            if here[slot]:
                held += [geometry.profiles[i] for i, _ in geometry.members(used)]
                offered.update(i for i, _ in geometry.members(card.instances))
    order = sorted(range(len(geometry.profiles)), key=lambda i: _extent(geometry.profiles[i]))
    rows = {i: _instances(ask, here, geometry.profiles[i], geometry.profiles[i].resource) for i in offered}
    largest = max((_extent(geometry.profiles[i]) for i, row in rows.items() if row.free), default=(0, 0))
    larger = [i for i in order if _extent(geometry.profiles[i]) > largest and _is_plain(geometry.profiles[i])]
    for i in larger[:1]:
        rows.setdefault(i, _instances(ask, here, geometry.profiles[i], geometry.profiles[i].resource))
    cost, open_cards = slices(geometry, held), cards - closed
    return MigCards(
        geometry.key, int(where.sum()), cards, closed,
        open_cards * geometry.compute_slices, cost.compute, open_cards * geometry.memory_slices, cost.memory,
        tuple(rows[i] for i in order if i in rows),
    )  # fmt: skip


def _is_plain(profile: MigProfile) -> bool:
    """Whether the profile has the usual media engines: neither more of them (+) nor none (-me)."""
    return "+" not in profile.name and not profile.name.endswith("-me")


def _extent(profile: MigProfile) -> tuple[int, int]:
    return profile.memory_slices, profile.compute_slices


def _instances(ask: Probe, here: Mask, profile: MigProfile | str, resource: str) -> Instances:
    """The instances of a profile. `profile` is only a name if its geometry is not known."""
    pod = ask.pod(None, 1, (resource, 1))
    copies = ask.copies(pod, here)
    name, compute, memory = (
        (profile, None, None)
        if isinstance(profile, str)
        else (profile.name, profile.compute_slices, profile.memory_slices)
    )
    return Instances(
        name, compute, memory, resource,
        int(ask.allocatable(resource)[here].sum()), int(copies.sum()), int(copies.max(initial=0)),
        None if copies.any() else ask.blocked(pod, here, 1),
    )  # fmt: skip


def _shared(ask: Probe) -> Iterator[SharedCards]:
    sharings = ask.nodes.sharings
    for kind in sorted({(s.isolation, s.resource, s.cards > 0) for s in sharings if s}):
        of_kind = [s is not None and (s.isolation, s.resource, s.cards > 0) == kind for s in sharings]
        for model, where in ask.by_model(ask.there & np.array(of_kind)[ask.nodes.sharing_ids]):
            yield _shared_cards(ask, model, where, kind[0], kind[1])


def _shared_cards(ask: Probe, model: str, where: Mask, isolation: Isolation, resource: str) -> SharedCards:
    here = where & ask.open
    cards = {slot: ask.sharing(slot).cards for slot in np.flatnonzero(where).tolist()}
    largest = max(((_largest_share(ask, slot), slot) for slot in cards if here[slot]), default=(0, 0))
    shares = []
    for milli in SHARES_MILLI if any(cards.values()) else ():
        pod = ask.pod(model, 1, (resource, 1), gpu_milli=milli)
        pods = int(ask.copies(pod, here).sum())
        shares.append(FreeShare(milli, pods, None if pods else ask.blocked(pod, here, milli)))
    return SharedCards(
        model, isolation, resource, int(where.sum()), sum(cards.values()),
        sum(count for slot, count in cards.items() if not here[slot]),
        int(ask.allocatable(resource)[here].sum()), int(ask.free(resource)[here].sum()),
        largest[0], largest[0] * int(ask.nodes.gpu_memory_mib[largest[1]]) // WHOLE_GPU_MILLI, tuple(shares),
    )  # fmt: skip


def _largest_share(ask: Probe, slot: int) -> int:
    """The largest free share, in thousandths. With MPS the memory of a client is limited, so it is the equal part."""
    sharing, most = ask.sharing(slot), int(ask.nodes.part_milli(slice(slot, slot + 1)).max())
    equal = WHOLE_GPU_MILLI // max(sharing.replicas, 1)
    if sharing.isolation == "memory":
        return equal if most >= equal else 0
    return most


def _classes(ask: Probe) -> Iterator[ClassDevices]:
    claimed = Claimed(ask.cluster)
    for name in sorted(ask.cluster.claims.classes):
        with _claiming(ask, name, 1) as pod:
            yield _class(ask, claimed, name, pod)


def _class(ask: Probe, claimed: Claimed, name: str, pod: Pod) -> ClassDevices:
    problem = ask.cluster.claims.refusal(pod)
    if problem is not None:
        return ClassDevices(name, 0, 0, 0, 0, None, problem.detail.partition(", ")[2])
    seen = [
        [one for one in claimed.seen(slot, ask.cluster.shape_of(pod).wants) if one.matches]
        for slot in np.flatnonzero(ask.open).tolist()
    ]
    able = [{one.device for one in here if one.free} for here in seen]
    copies = ask.copies(pod, ask.open)
    # A device that many claims share is one device for each of them.
    most = min(int(copies.max(initial=0)), max(map(len, able), default=0), MOST_RESULTS)
    blocked = None
    if most < min(max(map(len, seen), default=0), MOST_RESULTS):
        with _claiming(ask, name, most + 1) as larger:
            blocked = ask.blocked(larger, ask.open, most + 1)
    # A device that several nodes can reach counts once.
    devices = {one.device for here in seen for one in here}
    free_devices: set[str] = set().union(*able)
    return ClassDevices(
        name, sum(map(bool, seen)), len(devices), min(int(copies.sum()), len(free_devices)), most, blocked
    )


@contextmanager
def _claiming(ask: Probe, name: str, count: int) -> Iterator[Pod]:
    """A pod with a claim for `count` devices of the class, which is there meanwhile. Its namespace is empty, which no
    object of the API has."""
    spec = ClaimSpec(((DeviceRequest("devices", name, count=count),),))
    claim = Claim(f"{NAME}-{name}-{count}", "", f"{NAME}-{name}-{count}", spec)
    ask.cluster.claims.put_claim(claim)
    try:
        yield replace(ask.pod(None, count), device_claims=(claim.key,))
    finally:
        ask.cluster.claims.remove_claim(claim.key)
