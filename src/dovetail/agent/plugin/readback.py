# SPDX-License-Identifier: Apache-2.0
"""The read-back: compares the devices that pods have, according to the kubelet, with those chosen for them.

Rules
- PodResources is read after every Allocate, after every registration, and when a pod has started. While it does not
  list a pod that must have devices, it is read again after growing pauses. Otherwise it is not read.
- A pod differs if its containers have other devices than the chosen ones; fewer are right if an init container that has
  ended had the others. Pods without chosen devices, and pods whose choice the scheduler has not recorded, are reported
  too, with `chosen` "": their devices are taken, and the scheduler's accounting does not have them.
- If a pod was bound while this process offered a resource, and has devices that this process never allocated, another
  device plugin served it. That is a fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping

from dovetail.agent.apis.serving import SocketError
from dovetail.agent.kubelet.allocations import Allocations
from dovetail.agent.kubelet.bound_pods import BoundPod
from dovetail.agent.kubelet.podresources import PodResources
from dovetail.agent.plugin.offers import ResourceOffer
from dovetail.kube.objects.topology import DeviceDifference

log = logging.getLogger(__name__)

_SOON_S = 0.05
_LATEST_S = 30.0


def _no_matter(pod: BoundPod, ids: Collection[str]) -> None:
    return


class ReadBack:
    """`report` is called with all differences whenever they change, `confirmed`, which is set later, with each pod and
    the ids that it has, once they are known. `count` is how often a pod has had other devices than the chosen ones.
    `faults` are messages for the operator."""

    def __init__(
        self,
        chosen: Allocations,
        kubelet: PodResources,
        offers: Callable[[], Mapping[str, ResourceOffer]],
        report: Callable[[tuple[DeviceDifference, ...]], None],
    ) -> None:
        self.differences: tuple[DeviceDifference, ...] = ()
        self.count = 0
        self.confirmed: Callable[[BoundPod, Collection[str]], None] = _no_matter
        self._chosen, self._kubelet, self._offers, self._report = chosen, kubelet, offers, report
        self._due = asyncio.Event()
        self._first = True
        self._unread = ""
        self._allocated: set[str] = set()
        self._strange: dict[str, str] = {}
        chosen.on_change(self._pods_changed)

    @property
    def faults(self) -> tuple[str, ...]:
        return tuple(fault for fault in (self._unread, *self._strange.values()) if fault)

    def allocated(self, ids: tuple[str, ...]) -> None:
        """Allocate returned these ids; the kubelet is about to record them."""
        self._allocated.update(ids)
        self._due.set()

    def registered(self) -> None:
        """A resource was registered: the kubelet may have restarted."""
        self._chosen.kubelet_restarted()
        self._first = True
        self._due.set()

    async def run(self) -> None:
        """Read PodResources whenever it is due, until cancelled."""
        await self._chosen.synced.wait()
        delay_s = _SOON_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s if self._waiting() else None):
                    await self._due.wait()
            delay_s = _SOON_S if self._due.is_set() else min(2 * delay_s, _LATEST_S)
            self._due.clear()
            # The kubelet records devices after it has our answer.
            await asyncio.sleep(_SOON_S)
            await self.look()

    def _waiting(self) -> bool:
        return bool(self._unread) or self._unconfirmed()

    def _unconfirmed(self) -> bool:
        return any(pod.unconfirmed(resource) for pod in self._chosen.pods for resource in self._offers())

    def _pods_changed(self) -> None:
        self.compare()
        if self._unconfirmed():
            self._due.set()

    async def look(self) -> None:
        """Read PodResources once."""
        try:
            listed = await self._kubelet.list()
        except SocketError as error:
            if not self._unread:
                log.warning("the devices of pods cannot be read back: %s", error)
            self._unread = f"the devices of pods cannot be read back: {error}"
            return
        self._unread = ""
        first, self._first = self._first, False
        for held in self._chosen.confirm(self._offers(), listed, first=first):
            if held.pod.fresh and not held.ids & self._allocated:
                self._strange[held.resource] = (
                    f"pod {held.pod} has {held.resource} from another device plugin: "
                    "let only one of them offer this resource on this node"
                )
                log.error("%s", self._strange[held.resource])
            elif held.pod.fresh:
                self._strange.pop(held.resource, None)
            self.confirmed(held.pod, held.ids)
        self.compare()

    def compare(self) -> None:
        """Report the differences if they have changed."""
        now = tuple(difference for pod in self._chosen.pods for difference in self._differences(pod))
        if now == self.differences:
            return
        for difference in now:
            if difference.chosen and difference not in self.differences:
                self.count += 1
                log.warning("%s", _sentence(difference))
        self.differences = now
        self._report(now)

    def _differences(self, pod: BoundPod) -> Iterator[DeviceDifference]:
        offers = self._offers()
        for resource, ids in pod.held.items():
            offer = offers.get(resource)
            if offer is None:
                continue
            wanted = {*offer.own(pod.parts or ())}
            parts = {offer.part(id) for id in ids}
            if pod.recorded and (parts == wanted or (parts < wanted and pod.passing(resource))):
                continue
            in_order = dict.fromkeys(device.part for device in offer.devices.values() if device.part in parts)
            held = ",".join(part for part in in_order if part)
            chosen = (",".join(offer.own(pod.parts or ())) or pod.written) if pod.recorded else ""
            yield DeviceDifference(pod.namespace, pod.name, pod.uid, resource, chosen, held)


def _sentence(difference: DeviceDifference) -> str:
    return (
        f"pod {difference.namespace}/{difference.pod} has {difference.given or 'no device of this node'} "
        f"of {difference.resource}, chosen was {difference.chosen}"
    )
