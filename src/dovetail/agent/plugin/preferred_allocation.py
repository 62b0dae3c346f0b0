# SPDX-License-Identifier: Apache-2.0
"""The preferred allocation: the devices that were chosen for the pod, or the best ones if none were chosen.

Rules
- The answer has exactly the requested number of ids, those that must be included first. It is deterministic.
- The chosen devices are taken if enough of them are available, and if those that must be included are among them. If
  more were chosen than this container requests, the best of them are taken; of replicas those on GPUs that the pod does
  not have yet.
- If none were chosen: of whole GPUs the set with the best links (core.devices.bandwidth), and of equal sets the one
  that leaves the most for others. Of replicas and instances the GPU with the fewest (`distributed`) or most (`packed`)
  allocated, then the one that this answer uses least, then the lowest index. Devices chosen for others come last.
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
    """There is no such allocation; the message has the reason."""


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
    """The ids to take of the `parts` chosen for a pod; `had` are parts that it has already. Raises CannotPrefer."""
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
        # One replica of each GPU, those on GPUs that the pod does not have yet first.
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
    """The ids to take if none were chosen; `promised` are parts chosen for other pods. Raises CannotPrefer."""
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
    used = on_card - Counter(device.card for device in free)
    picked: Counter[int] = Counter()
    sign = -1 if packed else 1
    ids = list(must)
    while need:
        best = min(free, key=lambda device: (sign * used[device.card], picked[device.card], device.card, device.part))
        free.remove(best)
        ids.append(best.id)
        used[best.card] += 1
        picked[best.card] += 1
        need -= 1
    return ids


def _best(free: list[AdvertisedDevice], must: list[AdvertisedDevice], need: int, layout: Layout | None) -> list[str]:
    """The `need` free GPUs that are best together with those that must be included."""
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
    """The order if links are unknown: NUMA nodes that are in use first."""
    used = {device.numa for device in must}
    return lambda device: (device.numa not in used, -1 if device.numa is None else device.numa, device.card)


def _shown(offer: ResourceOffer, ids: Sequence[str]) -> str:
    return ", ".join(offer.part(id) or id for id in ids)


def layout_of(host: Host) -> Layout | None:
    """The wiring of the GPUs as far as it was read; None if it contradicts itself."""
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
