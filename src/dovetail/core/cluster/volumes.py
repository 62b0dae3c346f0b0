# SPDX-License-Identifier: Apache-2.0
"""Claims, volumes and storage classes, and which node a pod's volumes allow.

Rules as kube-scheduler's plugins volumebinding, volumezone, volumerestrictions and nodevolumelimits: a bound claim
follows its volume's node affinity; an unbound claim of a WaitForFirstConsumer class takes the smallest available volume
that fits and reaches the node, else it is provisioned where the class allows; an unbound claim of any other class makes
the pod wait. Not known here: in-tree volume types that are written into a pod, storage capacity objects.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from msgspec import Struct

from dovetail.core.cluster.columns import Mask
from dovetail.core.cluster.nodes import Nodes
from dovetail.core.cluster.selection import matches_terms
from dovetail.core.decisions import VolumePick
from dovetail.core.labels import matches
from dovetail.core.model import Pod, StorageClass, Volume, VolumeClaim
from dovetail.core.reasons import Reason, Refusal, When

READ_WRITE_ONCE_POD = "ReadWriteOncePod"


class VolumeView(Struct):
    """Where a pod's volumes let it go: `reach` by node affinity, `attachable` by attach limits."""

    reach: Mask
    attachable: Mask


class Volumes:
    """Books of the storage objects; `attached[slot]` counts the pods that use each (driver, volume) there. `_assumed`
    holds, per volume, the claim of each decision that picked it: the API server may not show that yet."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.claims: dict[str, VolumeClaim] = {}
        self.volumes: dict[str, Volume] = {}
        self.classes: dict[str, StorageClass] = {}
        self._assumed: dict[str, list[str]] = {}
        self.attached: dict[int, Counter[tuple[str, str]]] = {}
        self._held: dict[str, tuple[Pod, int, list[tuple[str, str]]]] = {}
        self._users: dict[str, set[str]] = {}

    def add(self, pod: Pod, slot: int) -> None:
        """A pod with claims was placed."""
        handles = self._handles(pod)
        self._held[pod.uid] = (pod, slot, handles)
        for claim in pod.claims:
            self._users.setdefault(f"{pod.namespace}/{claim}", set()).add(pod.uid)
        self.attached.setdefault(slot, Counter()).update(handles)

    def remove(self, uid: str) -> None:
        """It left its node; nothing happens for a pod without claims."""
        if uid not in self._held:
            return
        pod, slot, handles = self._held.pop(uid)
        for claim in pod.claims:
            users = self._users[f"{pod.namespace}/{claim}"]
            users.discard(uid)
            if not users:
                del self._users[f"{pod.namespace}/{claim}"]
        self.attached[slot].subtract(handles)
        self.attached[slot] = +self.attached[slot]

    def put_claim(self, claim: VolumeClaim) -> None:
        """Insert or replace; placed pods that use it are counted again, as its volume may have become known."""
        self.claims[claim.key] = claim
        self._count_anew(claim.key)

    def put_volume(self, volume: Volume) -> None:
        """Insert or replace; it may become known after the pods that use it, and it alone has its driver."""
        self.volumes[volume.name] = volume
        self._count_anew(volume.claim)

    def put_class(self, storage_class: StorageClass) -> None:
        """Insert or replace; volumes that are yet to be provisioned are counted under its driver."""
        self.classes[storage_class.name] = storage_class
        for key in list(self._users):
            self._count_anew(key)

    def _count_anew(self, claim_key: str) -> None:
        for uid in list(self._users.get(claim_key, ())):
            pod, slot, _ = self._held[uid]
            self.remove(uid)
            self.add(pod, slot)

    def refusal(self, pod: Pod) -> Refusal | None:
        """Why the pod cannot go to any node whatever, or None."""
        for name in pod.claims:
            claim = self.claims.get(f"{pod.namespace}/{name}")
            if claim is None:
                return Refusal(Reason.CLAIM_MISSING, When.NOT_YET, f"persistentvolumeclaim {name!r} does not exist")
            if claim.deleting:
                return Refusal(Reason.CLAIM_MISSING, When.NOT_YET, f"persistentvolumeclaim {name!r} is being deleted")
            if name in pod.own_volumes and claim.owner != pod.uid:
                return Refusal(Reason.CLAIM_TAKEN, When.NOT_YET, f"persistentvolumeclaim {name!r}")
            if claim.volume and claim.volume not in self.volumes:
                return Refusal(
                    Reason.CLAIM_MISSING, When.NOT_YET, f"its persistentvolume {claim.volume!r} is not found"
                )
            if not claim.volume and not self._waits(claim):
                return Refusal(Reason.CLAIM_UNBOUND, When.NOT_YET, f"persistentvolumeclaim {name!r}")
            if READ_WRITE_ONCE_POD in claim.access_modes and self._users.get(claim.key):
                return Refusal(Reason.CLAIM_IN_USE, When.NOT_YET, f"persistentvolumeclaim {name!r}")
        return None

    def settled(self, pod: Pod) -> bool:
        """Whether every claim of the pod has its volume: then nothing that leaves changes where it reaches."""
        claims = [self.claims.get(f"{pod.namespace}/{name}") for name in pod.claims]
        return all(claim is not None and claim.volume for claim in claims)

    def view(self, pod: Pod) -> VolumeView:
        """Which nodes the pod's claims allow; ask `refusal` first."""
        reach = np.ones(self._nodes.size, dtype=np.bool_)
        for name in pod.claims:
            reach &= self._reach(self.claims[f"{pod.namespace}/{name}"])
        return VolumeView(reach, self._attachable(pod))

    def pick(self, pod: Pod, slot: int) -> tuple[VolumePick, ...] | None:
        """Volumes for the unbound claims on this node, smallest first, none twice; None where they do not suffice."""
        picks: list[VolumePick] = []
        taken: set[str] = set()
        waiting = [self.claims[f"{pod.namespace}/{name}"] for name in pod.claims]
        for claim in sorted((c for c in waiting if not c.volume), key=lambda c: c.request_bytes):
            fitting = [
                v
                for v in self._candidates(claim)
                if v.name not in taken and bool(matches_terms(self._nodes, v.node_terms, slice(slot, slot + 1))[0])
            ]
            if fitting:
                chosen = min(fitting, key=lambda v: (v.capacity_bytes, v.name)).name
                taken.add(chosen)
            elif self._provisions(claim, slice(slot, slot + 1))[0]:
                chosen = ""
            else:
                return None
            picks.append(VolumePick(claim.key, chosen))
        return tuple(picks)

    def assume(self, picks: tuple[VolumePick, ...]) -> None:
        """Count picked volumes as taken for as long as the pod is placed."""
        for pick in picks:
            if pick.volume:
                self._assumed.setdefault(pick.volume, []).append(pick.claim)

    def forget(self, picks: tuple[VolumePick, ...]) -> None:
        for pick in picks:
            if pick.volume:
                self._assumed[pick.volume].remove(pick.claim)
                if not self._assumed[pick.volume]:
                    del self._assumed[pick.volume]

    def _claim_of(self, volume: Volume) -> str:
        """Whose the volume is, as far as decided; "" while it is free."""
        return volume.claim or next(iter(self._assumed.get(volume.name, ())), "")

    def _waits(self, claim: VolumeClaim) -> bool:
        storage_class = self.classes.get(claim.storage_class)
        return storage_class is not None and storage_class.wait

    def _candidates(self, claim: VolumeClaim) -> list[Volume]:
        """Volumes that serve the claim: the one that is reserved for it and no other, else any that is free."""
        if claim.selected_node:
            return []
        serving = [
            (volume, self._claim_of(volume))
            for volume in self.volumes.values()
            if volume.storage_class == claim.storage_class
            and volume.volume_mode == claim.volume_mode
            and volume.capacity_bytes >= claim.request_bytes
        ]
        return [volume for volume, taker in serving if taker == claim.key] or [
            volume
            for volume, taker in serving
            if not taker
            and volume.available
            and set(claim.access_modes) <= set(volume.access_modes)
            and (claim.selector is None or matches(claim.selector, dict(volume.labels)))
        ]

    def _provisions(self, claim: VolumeClaim, index: slice) -> Mask:
        storage_class = self.classes[claim.storage_class]
        mask = matches_terms(self._nodes, storage_class.topologies, index)
        return mask & storage_class.provisions

    def _reach(self, claim: VolumeClaim) -> Mask:
        everywhere = slice(0, self._nodes.size)
        if claim.volume:
            return matches_terms(self._nodes, self.volumes[claim.volume].node_terms, everywhere)
        mask = self._provisions(claim, everywhere)
        if claim.selected_node:
            # A provisioner is at work for this node: moving the claim would strand the volume.
            chosen = np.zeros(self._nodes.size, dtype=np.bool_)
            if claim.selected_node in self._nodes.slots:
                chosen[self._nodes.slots[claim.selected_node]] = True
            return mask & chosen
        for volume in self._candidates(claim):
            mask = mask | matches_terms(self._nodes, volume.node_terms, everywhere)
        return mask

    def _handles(self, pod: Pod) -> list[tuple[str, str]]:
        """(driver, volume) of each CSI volume that the pod attaches; a claim of an unknown volume counts as one."""
        handles: list[tuple[str, str]] = []
        for name in pod.claims:
            claim = self.claims.get(f"{pod.namespace}/{name}")
            if claim is None:
                continue
            volume = self.volumes.get(claim.volume)
            storage_class = self.classes.get(claim.storage_class)
            driver = volume.driver if volume is not None else storage_class.driver if storage_class is not None else ""
            if driver:
                handles.append((driver, claim.key if volume is None else volume.name))
        return handles

    def _attachable(self, pod: Pod) -> Mask:
        mask = np.ones(self._nodes.size, dtype=np.bool_)
        handles = set(self._handles(pod))
        for slot, node in enumerate(self._nodes.records) if handles else ():
            held = self.attached.get(slot, Counter())
            for driver, limit in node.attach_limits if node is not None else ():
                new = sum(1 for handle in handles if handle[0] == driver and handle not in held)
                if new and new + sum(1 for handle in held if handle[0] == driver) > limit:
                    mask[slot] = False
        return mask
