# SPDX-License-Identifier: Apache-2.0
"""Gangs: from the objects that declare them, the owners of their pods, and these pods, to the core's records.

Rules
- A gang depends on the object that declares it and on its pods. Both are only noted; `settle` reports what has changed,
  at the end of each batch. When the sub-gang of a pod becomes known, the pod is reported again.
- A pod without a queue or user takes that of its PodGroup or workload object, else of the one that made this.
- A gang can lie in a gang of another owner (`Membership.above`), which is read for the same pods. Until it is read the
  gang waits for it; where it does not exist, the gang is on its own. Pods that disagree lie in the first by id, so
  that their order decides nothing.
- An owner is requested once. It is requested again when pods of its gang appear or disappear while some are unbound:
  controllers change the number of pods in their object before they change the pods; and when one of its pods is held or
  released. A pod without a gang does not wait for its owner, which is requested again only where it held its pods. A
  gang without object and without pods is forgotten.
No input or output here: the driver fetches the requested owners.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from msgspec import Struct

from dovetail.core import events as ev
from dovetail.core.model import Gang
from dovetail.kube.gangs import declared as gangs
from dovetail.kube.gangs import owners
from dovetail.kube.gangs.declared import Declared, Membership, OwnerRef
from dovetail.kube.gangs.dialects import Dialect
from dovetail.kube.gangs.members import MemberCounts
from dovetail.kube.translate.known import KnownPod
from dovetail.kube.translate.standalone import AnyChange

T = TypeVar("T")


class GangRef(Struct, frozen=True):
    """The object with the status of a gang."""

    dialect: Dialect[Any]
    namespace: str
    name: str


def _place(above: Membership) -> tuple[str, str]:
    return above.id, above.part


class GangRecords:
    """The gangs of the pods in `pods`, by uid, which the caller keeps. Methods that take changes return their events,
    in order; the others only note in `unsettled` what the caller has to `settle`."""

    def __init__(self, pods: Mapping[str, KnownPod]) -> None:
        self._pods = pods
        # By the id of the declaration: the member pods, the declaration, the declaration when its pods were
        # last reported, the object that declares it, and the gangs reported for it.
        self._members: dict[str, MemberCounts] = {}
        self._declared: dict[str, Declared] = {}
        self._settled: dict[str, Declared] = {}
        self._objects: dict[str, GangRef] = {}
        self._gangs: dict[str, dict[str, Gang]] = {}
        # Owners: that of each gang (pods may name it in several API versions: the first counts), the gangs of each
        # owner, the fetched objects, and the owners to fetch, unless none of their pods waits (see wanted_owners).
        self._owner_of: dict[str, OwnerRef] = {}
        self._owned: dict[OwnerRef, dict[str, Membership]] = {}
        # Where gangs lie by each of their pods, sorted; and by the gang that they lie in, which ones by how many pods.
        self._above: dict[str, list[Membership]] = {}
        self._below: dict[str, dict[str, int]] = {}
        self._read: dict[OwnerRef, owners.OwnerRead] = {}
        self.stale: dict[OwnerRef, None] = {}

    def reported(self, member: Membership, gang_id: str) -> Gang | None:
        """The gang as last reported, of those that the declaration of a member pod has."""
        return self._gangs.get(member.id, {}).get(gang_id)

    def count(self, uid: str, member: Membership, known: KnownPod) -> None:
        """Update the pod's contribution to its gang."""
        self._members.setdefault(member.id, MemberCounts()).put(uid, known)
        if member.above is not None:
            # What a pod declares is about the gang that it is in.
            self._members.setdefault(member.above.id, MemberCounts()).put(uid, known, declares=False)

    def join(self, uid: str, member: Membership, unsettled: dict[str, None]) -> None:
        """A pod became a member."""
        unsettled[member.id] = None
        if member.above is not None:
            insort(self._above.setdefault(member.id, []), member.above, key=_place)
            below = self._below.setdefault(member.above.id, {})
            below[member.id] = below.get(member.id, 0) + 1
            self.join(uid, member.above, unsettled)
        if member.owner is not None:
            owner = self._owner_of.setdefault(member.id, member.owner)
            self._owned.setdefault(owner, {})[member.id] = member
            read = self._read.get(owner)
            if not member.alone or read is None or read.options.hold:
                self.stale[owner] = None
            if owner in self._read and member.id not in self._declared:
                self._declare(member, owner)
        elif member.id.startswith(gangs.NAMED):
            known = self._declared.get(member.id)
            if known is None or (member.part and not known.parts):
                self._declared[member.id] = gangs.named(member)

    def read_again(self, member: Membership) -> None:
        """A pod was held or released: its owner is, too."""
        if (owner := self._owner_of.get(member.id)) is not None:
            self.stale[owner] = None
        if member.above is not None:
            self.read_again(member.above)

    def leave(self, uid: str, member: Membership, unsettled: dict[str, None]) -> None:
        """A pod is no member any more."""
        unsettled[member.id] = None
        if member.above is not None:
            self._no_more_in(member.id, member.above)
            self.leave(uid, member.above, unsettled)
        members = self._members[member.id]
        members.drop(uid)
        owner = self._owner_of.get(member.id)
        if owner is not None and not member.alone:
            self.stale[owner] = None
        if members:
            return
        del self._members[member.id]
        self._settled.pop(member.id, None)
        if member.id not in self._objects:
            self._declared.pop(member.id, None)
        if owner is not None:
            del self._owner_of[member.id], self._owned[owner][member.id]
            if not self._owned[owner]:
                for books in (self._owned, self._read, self.stale):
                    books.pop(owner, None)

    def _no_more_in(self, declared_id: str, above: Membership) -> None:
        """One pod less has the gang there."""
        places, below = self._above[declared_id], self._below[above.id]
        del places[bisect_left(places, _place(above), key=_place)]
        below[declared_id] -= 1
        if not places:
            del self._above[declared_id]
        if not below[declared_id]:
            del below[declared_id]
        if not below:
            del self._below[above.id]

    def add_to(self, pod: KnownPod) -> bool:
        """Update the values that come from the pod's gang; whether that changed the pod."""
        member = pod.member
        declared = self._declared.get(member.id) if member is not None else None
        if declared is not None and member is not None and member.above is not None:
            above = self._declared.get(member.above.id)
            declared = gangs.under(declared, above) if above is not None else declared
        return pod.add(declared)

    def settle(self, declared_id: str) -> list[ev.Event]:
        """Report the gangs of one declaration and its pods, as far as they have changed. Each pod was reported with the
        declaration at that time; if the declaration has changed since, all of them are checked again."""
        events: list[ev.Event] = []
        members, declared = self._members.get(declared_id), self._declared.get(declared_id)
        now: list[Gang] = []
        if declared is not None:
            options, begun = (members.options(), members.begun()) if members is not None else ([], {})
            now = gangs.records(declared, options, begun, self._parent(declared_id))
        before = self._gangs.pop(declared_id, {})
        if now:
            self._gangs[declared_id] = {gang.id: gang for gang in now}
        events += [ev.GangChanged(gang) for gang in now if before.get(gang.id) != gang]
        events += [ev.GangRemoved(gone) for gone in before if gone not in self._gangs.get(declared_id, {})]
        if members is not None and declared != self._settled.get(declared_id):
            known = [self._pods[uid] for uid in members]
            events += [ev.PodChanged(pod.reported) for pod in known if self.add_to(pod)]
            if declared is not None:
                self._settled[declared_id] = declared
            else:
                del self._settled[declared_id]
        return events

    def _parent(self, declared_id: str) -> str:
        """The gang that this one lies in; "" for none. Of an owner that is not read yet no gang is known."""
        if declared_id not in self._above:
            return ""
        above = self._above[declared_id][0]
        declared = self._declared.get(above.id)
        if declared is not None:
            return declared.gang_of(above.part)
        return "" if self._owner_of[above.id] in self._read else above.id

    def pod_groups(self, dialect: Dialect[T], changes: Iterable[AnyChange[T]]) -> list[ev.Event]:
        """Changes of a dialect's objects, in any served version."""
        events: list[ev.Event] = []
        for change in changes:
            declared = dialect.declare(change.object)
            gang = declared.gang
            if change.kind == "deleted":
                self._declared.pop(gang.id, None)
                self._objects.pop(gang.id, None)
            else:
                self._declared[gang.id] = declared
                self._objects[gang.id] = GangRef(dialect, gang.namespace, gang.name)
            events += self.settle(gang.id)
        return events

    def wanted_owners(self) -> list[OwnerRef]:
        """The owners to fetch and pass to `owner`; each stays in the list until then."""
        for ref in [ref for ref in self.stale if ref in self._read and not self._has_pending(ref)]:
            del self.stale[ref]
        return list(self.stale)

    def _has_pending(self, ref: OwnerRef) -> bool:
        return any(self._members[gang].waiting for gang in self._owned[ref])

    def owner(self, ref: OwnerRef, document: Mapping[str, object] | None) -> list[ev.Event]:
        """Take the object of a requested owner; None if it does not exist. An owner without pods is ignored."""
        if ref not in self._owned:
            return []
        self.stale.pop(ref, None)
        first = ref not in self._read
        self._read[ref] = owners.read(ref, document)
        events: list[ev.Event] = []
        for member in self._owned[ref].values():
            before = self._declared.get(member.id)
            self._declare(member, ref)
            events += self.settle(member.id)
            if first or self._declared.get(member.id) != before:
                for below in self._below.get(member.id, ()):
                    events += self.settle(below)
        return events

    def _declare(self, member: Membership, owner: OwnerRef) -> None:
        declared = owners.declare(member, self._read[owner])
        if declared is not None:
            self._declared[member.id] = declared
        else:
            self._declared.pop(member.id, None)

    def ref(self, gang_id: str) -> GangRef | None:
        """The object with the status of a gang or sub-gang; None if no PodGroup declares it."""
        return self._objects.get(gang_id) or self._objects.get(gang_id.rpartition("/")[0])
