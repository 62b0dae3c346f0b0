# SPDX-License-Identifier: Apache-2.0
"""Who belongs to which gang: all known pods, the gangs, and their trees.

Rules: the unit of decision is a root: the top of a gang tree, or a pod on its own (`pod/<uid>`). A gang may be told
after its pods; until then its pods wait. A gang has started once it had its minimum on nodes at the same time; from
then on each of its pending pods is placed as it comes, since it replaces or extends what runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.core.cluster import Cluster
from dovetail.core.model import Gang, Pod
from dovetail.core.placing.gangs import Group

LONE = "pod/"


class Roster:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.pods: dict[str, Pod] = {}
        self.gangs: dict[str, Gang] = {}
        self._members: dict[str, dict[str, None]] = {}
        self._children: dict[str, dict[str, None]] = {}
        self.starting: dict[str, int] = {}
        """Roots that are being bound and do not have their minimum yet, with the time when that is overdue."""
        self._started: set[str] = set()

    def put_pod(self, pod: Pod) -> None:
        old = self.pods.get(pod.uid)
        if old is not None and old.gang != pod.gang:
            self._leave(old)
        self.pods[pod.uid] = pod
        if pod.gang:
            self._members.setdefault(pod.gang, {})[pod.uid] = None

    def remove_pod(self, uid: str) -> Pod | None:
        pod = self.pods.pop(uid, None)
        if pod is not None:
            self._leave(pod)
        return pod

    def _leave(self, pod: Pod) -> None:
        members = self._members.get(pod.gang)
        if members is not None:
            members.pop(pod.uid, None)
            if not members:
                del self._members[pod.gang]

    def put_gang(self, gang: Gang) -> bool:
        """Insert or replace; False where nothing changed."""
        old = self.gangs.get(gang.id)
        if old == gang:
            return False
        if old is not None and old.parent:
            self._children[old.parent].pop(gang.id, None)
        self.gangs[gang.id] = gang
        if gang.parent:
            self._children.setdefault(gang.parent, {})[gang.id] = None
        return True

    def remove_gang(self, gang_id: str) -> None:
        old = self.gangs.pop(gang_id, None)
        if old is not None and old.parent:
            self._children[old.parent].pop(gang_id, None)

    def root_of(self, pod: Pod) -> str:
        return self.top(pod.gang) if pod.gang else LONE + pod.uid

    def top(self, gang_id: str) -> str:
        """The root above a gang. A cycle of parents ends where it closes; `unknown` names it as broken."""
        seen = {gang_id}
        while (gang := self.gangs.get(gang_id)) is not None and gang.parent and gang.parent not in seen:
            gang_id = gang.parent
            seen.add(gang_id)
        return gang_id

    def tree(self, root: str) -> Iterator[str]:
        """The ids of a root's gangs, the root first."""
        seen = {root}
        stack = [root]
        while stack:
            gang_id = stack.pop()
            yield gang_id
            below = [child for child in self._children.get(gang_id, ()) if child not in seen]
            seen.update(below)
            stack.extend(below)

    def members(self, root: str) -> list[Pod]:
        """All known pods of a root, placed or not."""
        if root.startswith(LONE):
            pod = self.pods.get(root[len(LONE) :])
            return [pod] if pod is not None else []
        return [self.pods[uid] for gang_id in self.tree(root) for uid in self._members.get(gang_id, ())]

    def group(self, root: str) -> Group:
        """The root as the search sees it: what is pending and could start now, and what is held already."""
        if root.startswith(LONE):
            return Group(pods=[self.pods[root[len(LONE) :]]])
        group = self._group(root)
        if self.has_started(root):
            _ask_for_nothing_more(group)
        return group

    def _group(self, gang_id: str) -> Group:
        gang = self.gangs[gang_id]
        members = [self.pods[uid] for uid in self._members.get(gang_id, ())]
        placements = self._cluster.placements
        held = [placements[pod.uid].slot for pod in members if pod.uid in placements and not pod.deleting]
        pods = [pod for pod in members if pod.uid not in placements and startable(pod)]
        pods.sort(key=lambda pod: (-pod.priority, pod.created_ms, pod.uid))
        children = [self._group(child) for child in self._children.get(gang_id, ()) if child in self.gangs]
        needed = 0 if children and not members else gang.min_count
        return Group(
            pods=pods,
            held=held,
            missing=max(0, needed - len(held)),
            room=None if gang.max_count is None else max(0, gang.max_count - len(held)),
            groups=children,
            min_groups=gang.min_groups,
            required=gang.required,
            preferred=gang.preferred,
        )

    def has_started(self, root: str) -> bool:
        """Whether the gang had its minimum on nodes before. After a restart of the scheduler it shows in the times:
        whoever is pending was created after the first member was bound, so it is no member of the first start."""
        if root in self._started or root in self.starting:
            return root in self._started
        bound = [pod for pod in self.members(root) if pod.node]
        waiting = [pod for pod in self.members(root) if not pod.node]
        return bool(bound) and all(pod.created_ms > min(b.bound_ms for b in bound) > 0 for pod in waiting)

    def note_start(self, root: str) -> None:
        """Remember a gang that has its minimum bound, or forget it when nothing of it is left."""
        members = self.members(root)
        if not any(pod.node for pod in members):
            self._started.discard(root)
            if not members:
                self.starting.pop(root, None)
        elif root in self.gangs and all(
            sum(1 for uid in self._members.get(gang_id, ()) if self.pods[uid].node) >= self.gangs[gang_id].min_count
            for gang_id in self.tree(root)
            if gang_id in self.gangs and self._members.get(gang_id)
        ):
            self._started.add(root)
            self.starting.pop(root, None)


def startable(pod: Pod) -> bool:
    """A pending pod that this scheduler may place."""
    return pod.managed and not pod.gated and not pod.deleting and not pod.node and pod.problem is None


def _ask_for_nothing_more(group: Group) -> None:
    group.missing = 0
    group.min_groups = 0
    for child in group.groups:
        _ask_for_nothing_more(child)


def complete(group: Group) -> bool:
    """Whether enough startable pods exist; sub-gangs that lack pods are dropped where fewer are enough."""
    whole = [child for child in group.groups if complete(child)]
    if len(whole) < group.groups_needed or len(group.pods) < group.missing:
        return False
    if len(whole) < len(group.groups):
        group.groups, group.min_groups = whole, min(group.min_groups, len(whole))
    return True
