# SPDX-License-Identifier: Apache-2.0
"""Which devices the kubelet is told to take: those that were chosen for the pod, or the best where nobody chose.

Rules
- The answer has exactly as many ids as were asked for, those that must be included first; equal questions have equal
  answers.
- What was chosen counts if all of it that is needed can be had, and if what must be included is part of it. Of a pod
  that has more than this container asks for, the best part is taken; of replicas those of cards that it has not yet.
- Where nobody chose: of whole GPUs the set with the best links (core.devices.bandwidth), of which more remains for
  others; of replicas and instances the card that has fewest given away (`distributed`) or most (`packed`), and among
  equals the one that this answer took least of, then the lowest. What was chosen for others is taken last.
Source of the two policies: NVIDIA k8s-device-plugin, sharedDevicesAllocationPolicy.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from dovetail.agent.machine.host import Host
from dovetail.agent.plugin.best import NoAnswer, best
from dovetail.agent.plugin.offers import AdvertisedDevice, ResourceOffer
from dovetail.core.devices.contradiction import Contradiction
from dovetail.core.devices.layout import BOARD, MAX_LINKED_GPUS, UNKNOWN, Layout, Nic

log = logging.getLogger(__name__)


class CannotPrefer(Exception):
    """The text says why."""


def of_chosen(
    offer: ResourceOffer,
    parts: Collection[str],
    available: Collection[str],
    must: Sequence[str],
    size: int,
    *,
    had: Collection[str] = (),
    layout: Layout | None = None,
) -> list[str]:
    """The ids to take of what was chosen for a pod; `had` are parts that it was given before. Raises CannotPrefer."""
    wanted = offer.own(parts)
    if not wanted:
        raise CannotPrefer(f"names no device of {offer.resource}")
    known = {device.part for device in offer.devices.values()}
    unknown = [part for part in wanted if part not in known]
    if unknown:
        raise CannotPrefer(f"names {', '.join(unknown)}, which this node does not offer as {offer.resource}")
    strange = [id for id in must if offer.part(id) not in wanted]
    if strange:
        raise CannotPrefer(f"does not name {_shown(offer, strange)}, which the pod already has")
    free = [device for id, device in offer.devices.items() if id in available and device.part in wanted]
    need = size - len(must)
    taken = {offer.part(id) for id in must}
    if offer.shared is not None:
        # One replica of each card, those of cards that the pod does not have yet first.
        first = {device.part: device for device in reversed(free) if device.part not in taken and device.id not in must}
        free = sorted(first.values(), key=lambda device: (device.part in had, device.card, device.part))
    else:
        free = [device for device in free if device.id not in must]
    if len(free) < need:
        busy = [part for part in wanted if part not in taken and part not in {device.part for device in free}]
        busy_or_few = f"{', '.join(busy)} cannot be had" if busy else f"it has {len(wanted)} for {size}"
        raise CannotPrefer(f"names {', '.join(wanted)}, of which {busy_or_few}")
    if offer.shared is None and not offer.profile and layout is not None and len(free) > need:
        return [*must, *_best(free, [offer.devices[id] for id in must], need, layout)]
    return [*must, *(device.id for device in free[:need])]


def of_all(
    offer: ResourceOffer,
    available: Collection[str],
    must: Sequence[str],
    size: int,
    *,
    packed: bool,
    promised: Collection[str] = (),
    layout: Layout | None = None,
) -> list[str]:
    """The ids to take where nobody chose; `promised` are parts that were chosen for other pods. Raises CannotPrefer."""
    need = size - len(must)
    free = [device for id, device in offer.devices.items() if id in available and id not in must]
    if need < 0 or need > len(free):
        raise CannotPrefer(f"{size} of {len(free) + len(must)} devices were asked for, {len(must)} of them included")
    if offer.shared is None:
        unpromised = [device for device in free if device.part not in promised]
        free = unpromised if len(unpromised) >= need else free
        if not offer.profile:
            return [*must, *_best(free, [offer.devices[id] for id in must if id in offer.devices], need, layout)]
    on_card = Counter(device.card for device in offer.devices.values() if device.part)
    given = on_card - Counter(device.card for device in free)
    picked: Counter[int] = Counter()
    sign = -1 if packed else 1
    ids = list(must)
    while need:
        best = min(free, key=lambda device: (sign * given[device.card], picked[device.card], device.card, device.part))
        free.remove(best)
        ids.append(best.id)
        given[best.card] += 1
        picked[best.card] += 1
        need -= 1
    return ids


def _best(free: list[AdvertisedDevice], must: list[AdvertisedDevice], need: int, layout: Layout | None) -> list[str]:
    """The best `need` of the free GPUs together with those that are included."""
    nearest = [device.id for device in sorted(free, key=_near(must))[:need]]
    if need == len(free) or layout is None or layout.gpus > MAX_LINKED_GPUS:
        return nearest
    if any(device.card >= layout.gpus for device in (*free, *must)):
        return nearest
    having, open_to_us = (sum(1 << device.card for device in some) for some in (must, free))
    try:
        chosen = best(layout, open_to_us, having, need + len(must))
    except NoAnswer as error:
        log.warning("GPUs are not chosen by their links: %s", error)
        return nearest
    return [device.id for device in free if chosen >> device.card & 1]


def _near(must: list[AdvertisedDevice]) -> Callable[[AdvertisedDevice], tuple[bool, int, int]]:
    """The order where nothing is known of links: NUMA nodes that are in use first."""
    used = {device.numa for device in must}
    return lambda device: (device.numa not in used, -1 if device.numa is None else device.numa, device.card)


def _shown(offer: ResourceOffer, ids: Sequence[str]) -> str:
    return ", ".join(offer.part(id) or id for id in ids)


def layout_of(host: Host) -> Layout | None:
    """How the GPUs are wired, as far as it was read; None where what was read contradicts itself."""
    count = len(host.gpus)
    unknown = tuple(tuple(BOARD if i == j else UNKNOWN for j in range(count)) for i in range(count))
    nics = tuple(
        Nic(nic.levels, UNKNOWN if nic.numa is None else nic.numa, nic.speed_mbps, nic.rdma) for nic in host.nics or ()
    )
    try:
        return Layout(
            tuple(UNKNOWN if gpu.numa is None else gpu.numa for gpu in host.gpus),
            host.pcie or unknown,
            host.nvlinks or tuple((0,) * count for _ in range(count)),
            nics,
        )
    except Contradiction:
        return None
