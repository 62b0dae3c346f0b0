# SPDX-License-Identifier: Apache-2.0
"""What each pod placed on a node holds of its GPUs (`core.queues.node_gpus`).

Rules
- Amounts are those that queues count (`core.queues.device_units`). A claim that several pods use counts for the one
  that was bound first. The placeholders of a lease hold what the pods inside leave. What is only offered is held by
  nobody.
- Where GPUs are only counted, a pod is assumed to hold the GPUs that it was assumed to hold before (`kept`), else those
  of the scheduler's books, else the first ones with room, parts on the GPU with the least. So the result depends on
  nothing but its input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.cluster.placement import Placement, indices
from dovetail.core.devices.mig.geometry import RESOURCE_PREFIX
from dovetail.core.dra.allocations import Use
from dovetail.core.dra.types import Device, Grant
from dovetail.core.model import GPU, WHOLE_GPU_MILLI
from dovetail.core.queues import device_units
from dovetail.core.queues.node_gpus import NodeGpu, device_names
from dovetail.core.state import State
from dovetail.core.turns import turn_part
from dovetail.history.records import HoldKind

_LAST_MS = 2**62


class HeldGpu(Struct, frozen=True):
    """What a pod holds of one GPU (see `GpuHold`)."""

    gpu: str
    milli: int
    kind: HoldKind
    device: str = ""
    named: bool = True


class _Want(Struct, frozen=True):
    """A part of what a pod holds. `gpu` is the GPU of the books, "" for none."""

    held: HeldGpu
    gpu: str


def held_on(
    state: State, slot: int, gpus: Sequence[NodeGpu], kept: Mapping[str, Sequence[HeldGpu]]
) -> dict[str, tuple[HeldGpu, ...]]:
    """What each pod holds on a node, by uid. `kept` is what pods held before."""
    cluster = state.cluster
    placements = [cluster.placements[uid] for uid in cluster.on_slot.get(slot, ())]
    placements = [one for one in placements if not one.pod.offered]
    placements.sort(key=lambda one: (one.pod.bound_ms or _LAST_MS, one.uid))
    seen: set[str] = set()
    wants = {one.uid: list(_wants(state, one, gpus, seen)) for one in placements}
    room = _Room(gpus)
    found: dict[str, list[HeldGpu]] = {uid: [] for uid in wants}
    for uid, some in wants.items():
        found[uid] += [room.take(one.held, one.gpu) for one in some if one.held.named]
    unnamed = {uid: [one for one in some if not one.held.named] for uid, some in wants.items()}
    for uid, some in unnamed.items():
        before = list(kept.get(uid, ()))
        for want in list(some):
            same = next((one for one in before if _same(one, want.held) and room.has(one.gpu)), None)
            if same is not None:
                before.remove(same)
                some.remove(want)
                found[uid].append(room.take(want.held, same.gpu))
    for uid, some in unnamed.items():
        found[uid] += [room.take(one.held, room.choose(one)) for one in some]
    return {uid: _distinct(some) for uid, some in found.items() if some}


def _same(one: HeldGpu, other: HeldGpu) -> bool:
    return (one.milli, one.kind, one.device) == (other.milli, other.kind, other.device)


def _distinct(some: Iterable[HeldGpu]) -> tuple[HeldGpu, ...]:
    """No two parts of one pod have the same GPU and device."""
    found: dict[tuple[str, str], HeldGpu] = {}
    for one in some:
        key, number = (one.gpu, one.device), 1
        while key in found:
            number += 1
            key = one.gpu, f"{one.device}#{number}"
        found[key] = replace(one, device=key[1])
    return tuple(found.values())


class _Room:
    """What is left of each GPU of a node."""

    def __init__(self, gpus: Sequence[NodeGpu]) -> None:
        self._left = {one.name: WHOLE_GPU_MILLI for one in gpus}

    def has(self, gpu: str) -> bool:
        return gpu in self._left

    def take(self, held: HeldGpu, gpu: str) -> HeldGpu:
        self._left[gpu] = self._left.get(gpu, 0) - held.milli
        return replace(held, gpu=gpu)

    def choose(self, want: _Want) -> str:
        """The GPU of the books if it has room; else the one with the least room that is enough; else the one with the
        most room, or, on a node without GPUs, the first."""
        left, milli = self._left, want.held.milli
        if left.get(want.gpu, 0) >= milli:
            return want.gpu
        enough = [gpu for gpu, there in left.items() if there >= milli]
        if enough:
            return min(enough, key=left.__getitem__)
        return want.gpu or max(left, key=left.__getitem__, default="")


def _wants(state: State, placement: Placement, gpus: Sequence[NodeGpu], seen: set[str]) -> Iterator[_Want]:
    cluster, shape, pod = state.cluster, placement.shape, placement.pod
    record = cluster.nodes.records[placement.slot]
    by_index = {one.index: one.name for one in gpus}
    written = pod.devices is not None and set(pod.devices) == set(placement.devices)
    if record is not None and record.sliced:
        part, profile = device_units.slice_of(record), device_units.product(record).partition("-MIG-")[2]
        for number in range(shape.gpus):
            yield _Want(HeldGpu("", part.milli, "instance", f"{profile}#{number}", False), "")
    elif placement.share_bits:
        for gpu in indices(placement.share_bits):
            named = written and gpu in by_index
            milli = _turn_milli(state, placement, gpu) if placement.extra else placement.share_milli
            yield _Want(HeldGpu("", milli, "share", "", named), by_index.get(gpu, ""))
    elif milli := _share_milli(state, placement):
        yield _Want(HeldGpu("", milli, "share", "", False), "")
    else:
        bits = indices(placement.gpu_bits)
        for gpu in (*bits, *[-1] * (shape.gpus - len(bits))):
            yield _Want(HeldGpu("", WHOLE_GPU_MILLI, "whole", "", written and gpu in by_index), by_index.get(gpu, ""))
    yield from _instances(state, placement, by_index)
    yield from _claimed(state, placement, gpus, seen)


def _turn_milli(state: State, placement: Placement, gpu: int) -> int:
    """What an instance that can sleep holds of a GPU (`core.turns`), rounded down."""
    cluster, slot, group = state.cluster, placement.slot, placement.shape.request.turn_group
    others = [cluster.placements[uid] for uid in cluster.on_slot.get(slot, ())]
    extras = [one.extra for one in others if one.share_bits >> gpu & 1 and one.shape.request.turn_group == group]
    held = int(turn_part(placement.share, placement.extra, extras))
    return max(1, held * WHOLE_GPU_MILLI // int(cluster.nodes.gpu_whole[slot]))


def _share_milli(state: State, placement: Placement) -> int:
    """The part of a GPU that a pod asks for where its node has none to share."""
    request, shape = placement.shape.request, placement.shape
    sharing = state.cluster.nodes.sharing(placement.slot)
    if request.gpu_milli:
        return request.gpu_milli
    if request.gpu_memory_mib:
        memory_mib = int(state.cluster.nodes.gpu_memory_mib[placement.slot])
        return min(-(-WHOLE_GPU_MILLI * request.gpu_memory_mib // memory_mib), WHOLE_GPU_MILLI) if memory_mib else 0
    if sharing is not None and (shape.shared or (shape.gpus and sharing.resource == GPU)):
        return -(-WHOLE_GPU_MILLI // max(1, sharing.replicas))
    return 0


def _instances(state: State, placement: Placement, by_index: Mapping[int, str]) -> Iterator[_Want]:
    if not placement.shape.slices:
        return
    cluster = state.cluster
    record, cards = cluster.nodes.records[placement.slot], cluster.slices.cards(placement.slot)
    assumed = {card.gpu for card in cards.cards if card.assumed} if cards is not None else set()
    geometries = device_units.geometries(record)
    own = cluster.slices.instances(placement)
    for one in own:
        milli = device_units.instance(f"{RESOURCE_PREFIX}{one.profile}", geometries).milli
        named = one in placement.pod.instances and one.gpu not in assumed and one.gpu in by_index
        device = f"{one.profile}@{one.start}"
        yield _Want(HeldGpu("", milli, "instance", device, named), by_index.get(one.gpu, ""))
    for resource, count in placement.shape.slices if not own else ():
        milli, profile = device_units.instance(resource, geometries).milli, resource.removeprefix(RESOURCE_PREFIX)
        for number in range(count):
            yield _Want(HeldGpu("", milli, "instance", f"{profile}#{number}", False), "")


def _claimed(state: State, placement: Placement, gpus: Sequence[NodeGpu], seen: set[str]) -> Iterator[_Want]:
    claims, pod = state.cluster.claims, placement.pod
    memory_mib = int(state.cluster.nodes.gpu_memory_mib[placement.slot])
    by_name = {name: one.name for one in gpus for name in one.names}
    for key in dict.fromkeys((*claims.named(pod), *(grant.claim for grant in placement.grants))):
        allocation = claims.allocation(key)
        if key in seen or allocation is None:
            continue
        seen.add(key)
        for grant in allocation.grants:
            if grant.admin_access or not device_units.is_gpu(grant.driver):
                continue
            device = claims.offers.device((grant.driver, grant.pool), grant.device)
            name = f"{grant.driver}/{grant.pool}/{grant.device}"
            own = device_names(grant.driver, device) if device is not None else ()
            gpu = next((by_name[one] for one in own if one in by_name), "")
            milli = device_units.by_claim(grant.driver, device, _drawn(grant, device), memory_mib).milli
            yield _Want(HeldGpu("", milli, "claimed", name, bool(gpu)), gpu)


def _drawn(grant: Grant, device: Device | None) -> tuple[int, ...] | None:
    if device is None or not grant.share:
        return None
    return tuple(Use(shares=[grant.consumed]).drawn(grant.driver, device))
