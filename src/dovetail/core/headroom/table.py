# SPDX-License-Identifier: Apache-2.0
"""The headroom that there is, by workload: what its pods state, and where it lies.

Rules: a statement is made by the pods of a workload, all pods that one object was made for. The newest pod that stays
counts, so that headroom follows a rollout. Without pods there is none: how large an instance would be is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from dovetail.core.cluster.nodes import Nodes
from dovetail.core.headroom.headroom import Headroom
from dovetail.core.headroom.inputs import Inputs, Sources
from dovetail.core.model import Pod

HEADROOM_PREFIX = "headroom/"
"""How the uids of the pods begin that an instance to come would have. No pod has such a uid."""


def headroom_key(pod: Pod) -> str:
    """The workload that a pod states headroom for, as "namespace/KIND/NAME", or by the uid of its owner."""
    return f"{pod.namespace}/{pod.made_for or pod.owner.rpartition('/')[2] or pod.uid}"


class ScaleUp(Struct, frozen=True):
    """A pod of an instance that was asked for at `asked_ms`. `promised`: there was headroom for it then."""

    asked_ms: int
    within_ms: int
    promised: bool


class HeadroomTable:
    """`rooms` by workload, in their order. What is lacking is searched for again from `again_ms` on, if something has
    `changed` since it was."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.rooms: dict[str, Headroom] = {}
        self.inputs = Inputs(sources)
        self.nowhere: dict[str, Inputs] = {}
        """By workload, when it was found that one more instance of it fits nowhere."""
        self.again_ms = 0
        self.changed = False
        self.in_vain: set[str] = set()
        """For which workloads it was searched in vain since then, while it is not done for all."""
        self.scale_ups: dict[str, ScaleUp] = {}
        """Waiting pods of workloads with headroom, by uid. Nothing is decided by it."""
        self._pods: dict[str, dict[str, Pod]] = {}
        self._came: dict[str, Pod] = {}

    def see(self, old: Pod | None, pod: Pod) -> None:
        """A pod has come, or its record is another now."""
        if old is not None and old.work.headroom:
            self._leave(old)
        if pod.work.headroom and pod.managed and pod.problem is None and not pod.lease:
            self._pods.setdefault(headroom_key(pod), {})[pod.uid] = pod
            self.changed = True
            if pod.uid in self._came or (old is None and not pod.node):
                self._came[pod.uid] = pod
        elif old is not None and old.work.headroom:
            self._forget(pod.uid)

    def note_scale_ups(self, now_ms: int) -> None:
        """Note what was asked for since the last step: whether there is headroom for it beside what was asked for
        before. The pods of a gang are one instance."""
        came, self._came = self._came, {}
        asking: dict[str, set[str]] = {}
        for key in dict.fromkeys(map(headroom_key, came.values())):
            pods = self._pods[key]
            asking[key] = {pod.gang or uid for uid, pod in pods.items() if uid in self.scale_ups and not pod.node}
        for pod in came.values():
            key, instance = headroom_key(pod), pod.gang or pod.uid
            room, before = self.rooms.get(key), asking[key]
            promised = room is not None and len(room.places) > len(before) - (instance in before)
            self.scale_ups[pod.uid] = ScaleUp(now_ms, pod.work.headroom_within_ms, promised)
            before.add(instance)

    def take_over(self, before: HeadroomTable) -> None:
        """Go on with the scale-ups of the table of a state that this one's was restored from."""
        self.scale_ups = before.scale_ups
        self._came = {uid: pod for uid, pod in self._came.items() if uid not in self.scale_ups}

    def forget(self, pod: Pod) -> None:
        """A pod is gone."""
        self._forget(pod.uid)
        self._leave(pod)

    def _forget(self, uid: str) -> None:
        self.scale_ups.pop(uid, None)
        self._came.pop(uid, None)

    def _leave(self, pod: Pod) -> None:
        pods = self._pods.get(headroom_key(pod), {})
        if pods.pop(pod.uid, None) is not None and not pods:
            del self._pods[headroom_key(pod)]

    def touch(self, *workloads: str) -> None:
        """Something about these has changed, of which headroom may read more than their nodes show."""
        if self:
            for inputs in (self.inputs, *self.nowhere.values()):
                inputs.touched.update(workloads)

    @contextmanager
    def undone(self, nodes: Nodes) -> Iterator[None]:
        """What is done in it is undone at its end: a trial of headroom is no change."""
        known = self.inputs, *self.nowhere.values()
        for inputs in known:
            inputs.catch_up(nodes)
        yield
        for inputs in known:
            inputs.skip(nodes)

    def unsettle(self) -> None:
        """Something has changed that all of it may depend on."""
        self.inputs.forget()
        self.nowhere.clear()

    def next_ms(self) -> int | None:
        """When a step is due for the search."""
        return self.again_ms if self.again_ms and (self.changed or self.in_vain) else None

    def __bool__(self) -> bool:
        return bool(self._pods) or bool(self.rooms)

    def models(self) -> Iterator[tuple[str, Pod]]:
        """By workload the pod that counts, in the order of their promises: the shortest is the hardest to keep."""
        newest = []
        for key, pods in self._pods.items():
            staying = [pod for pod in pods.values() if not pod.deleting]
            if staying:
                newest.append((key, max(staying, key=lambda pod: (pod.created_ms, pod.uid))))
        newest.sort(key=lambda one: (one[1].work.headroom_within_ms, one[0]))
        return iter(newest)

    def of(self, pod: Pod) -> Headroom | None:
        """The headroom that was made for a pod; None where there is no room in it."""
        if not pod.work.headroom:
            return None
        room = self.rooms.get(headroom_key(pod))
        return room if room is not None and room.places else None

    def slots(self, keys: Iterable[str]) -> frozenset[int]:
        """The slots on which the headroom of these workloads lies."""
        return frozenset[int]().union(*[self.rooms[key].slots for key in keys])
