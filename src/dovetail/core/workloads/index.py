# SPDX-License-Identifier: Apache-2.0
"""The workload index: all known pods, the gangs and their trees, and which pods belong to which gang.

Rules: the unit of decision is a workload: the top of a gang tree, or a pod on its own (`pod/<uid>`). A gang may become
known after its pods; until then its pods wait. A gang has started once it had its minimum on nodes at the same time,
and enough of its sub-gangs had (`lifecycle`). From then on each of its pending pods is placed as it comes, since it
replaces or extends what runs, and each sub-gang that comes later starts on its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter

from msgspec.structs import replace

from dovetail.core.bounded_cache import Remembered
from dovetail.core.cluster import Cluster
from dovetail.core.model import Gang, Pod
from dovetail.core.placing.gangs import Group, fewest
from dovetail.core.workloads.lifecycle import GangEvent, GangLives, GangState
from dovetail.core.workloads.members import Members

LONE = "pod/"
_COMPARED = attrgetter(
    "request", "queue", "namespace", "user", "priority", "work.preemptible", "work.preempts", "work.grace_ms",
    "managed", "gated", "held", "deleting", "problem", "claims", "nominated_node", "device_claims", "by_claim",
    "containers", "own_volumes", "own_device_claims", "lease", "fence", "offered",
)  # fmt: skip
_KINDS_KIB = 16 * 1024
MOST_DEPTH = 8
"""Gangs below each other. A gang that lies deeper is refused."""
MOST_GANGS = 256
"""Gangs of one workload. A workload with more is refused; of its gangs no more than one beyond this are read."""
Precedence = tuple[int, int]
"""Priority, and the level of service that the job had, negative. Within a queue the lower precedence is preempted."""
Rank = tuple[int, int, int]
"""The place of a workload in its queue: by priority first, then by the level of service that it had, then by the
milliseconds since the epoch at which it was created."""


class WorkloadIndex:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.pods: dict[str, Pod] = {}
        self.gangs: dict[str, Gang] = {}
        self._members: dict[str, Members] = {}
        self._children: dict[str, dict[str, None]] = {}
        self.lives = GangLives()
        self.kinds: dict[str, int] = {}
        """The kind of each pod, by uid. Pods of one kind differ in nothing but their names and ages."""
        self._kinds = Remembered[int](_KINDS_KIB, self._new_kind)
        self._last_kind = 0

    def put_pod(self, pod: Pod) -> None:
        old, kind, before = self.pods.get(pod.uid), self._kind(pod), self.kinds.get(pod.uid)
        if old is not None and before is not None and old.gang != pod.gang:
            self._leave(old, before)
            before = None
        self.pods[pod.uid] = pod
        self.kinds[pod.uid] = kind
        if pod.gang:
            members = self._members.get(pod.gang)
            if members is None:
                members = self._members[pod.gang] = Members()
            members.put(pod, kind, before)

    def remove_pod(self, uid: str) -> Pod | None:
        pod = self.pods.pop(uid, None)
        if pod is not None:
            self._leave(pod, self.kinds.pop(uid))
        return pod

    def _kind(self, pod: Pod) -> int:
        return self._kinds(_COMPARED(pod))

    def _new_kind(self, uniform: object) -> int:
        self._last_kind += 1
        return self._last_kind

    def distinct(self, pods: Sequence[Pod]) -> Sequence[Pod]:
        """The first pod of each kind among them: what holds for these holds for all."""
        if len(pods) <= 1:
            return pods
        kinds, found = self.kinds, dict[int, Pod]()
        for pod in pods:
            found.setdefault(kinds[pod.uid], pod)
        return list(found.values())

    def _leave(self, pod: Pod, kind: int) -> None:
        members = self._members.get(pod.gang)
        if members is not None:
            members.remove(pod, kind)
            if not members.pods:
                del self._members[pod.gang]

    def put_gang(self, gang: Gang) -> bool:
        """Insert or replace; False where nothing changed."""
        old = self.gangs.get(gang.id)
        if old == gang:
            return False
        if old is not None and old.parent and old.parent != gang.parent:
            self._children[old.parent].pop(gang.id, None)
        self.gangs[gang.id] = gang
        if gang.parent:
            self._children.setdefault(gang.parent, {})[gang.id] = None
            self.lives.handle(gang.id, GangEvent.NESTED)
        return True

    def remove_gang(self, gang_id: str) -> None:
        old = self.gangs.pop(gang_id, None)
        if old is not None and old.parent:
            self._children[old.parent].pop(gang_id, None)

    def workload_of(self, pod: Pod) -> str:
        return self.top(pod.gang) if pod.gang else LONE + pod.uid

    def job_of(self, pod: Pod) -> str:
        """The job of a pod: its gang's workload, else the controller that made it, else the pod itself."""
        return self.top(pod.gang) if pod.gang else pod.owner or pod.uid

    def made_for(self, workload: str) -> str:
        """The object that the user made for all known pods of a workload, as KIND/NAME; "" for none."""
        if workload.startswith(LONE):
            pod = self.pods.get(workload[len(LONE) :])
            return pod.made_for if pod is not None else ""
        objects = {one for members in self._below(workload) for one in members.objects}
        return objects.pop() if len(objects) == 1 else ""

    def name_of(self, workload: str) -> str:
        """The name of a workload for users: "namespace/name" of the object that its pods were made for, else of the
        gang, or the pod."""
        pod, gang, found = self.first(workload), self.gangs.get(workload), self.made_for(workload)
        if found and pod is not None:
            return f"{pod.namespace}/{found.rpartition('/')[2]}"
        if workload.startswith(LONE):
            return pod.key if pod is not None else workload
        return f"{gang.namespace}/{gang.name}" if gang is not None else workload

    def top(self, gang_id: str) -> str:
        """The workload above a gang. Gangs whose parents form a cycle have one workload; a gang that lies too deep is a
        workload of its own."""
        path = [gang_id]
        while (gang := self.gangs.get(gang_id)) is not None and gang.parent:
            gang_id = gang.parent
            if gang_id in path:
                return min(path[path.index(gang_id) :])
            if len(path) == MOST_DEPTH:
                return path[0]
            path.append(gang_id)
        return gang_id

    def circles(self, gang_id: str) -> bool:
        """Whether the parents of the gang form a cycle of at most MOST_DEPTH."""
        above = gang_id
        for _ in range(MOST_DEPTH):
            gang = self.gangs.get(above)
            above = gang.parent if gang is not None else ""
            if above == gang_id:
                return True
        return False

    def tree(self, workload: str) -> list[str]:
        """The ids of a workload's gangs, the workload first; of more than MOST_GANGS one more than that."""
        if not self._children.get(workload):
            return [workload]
        order: list[str] = []
        seen = {workload}
        stack = [(workload, 1)]
        while stack and len(order) <= MOST_GANGS:
            gang_id, depth = stack.pop()
            order.append(gang_id)
            children = self._children.get(gang_id)
            if children and depth < MOST_DEPTH:
                below = list(islice(children, MOST_GANGS))
                stack += [(child, depth + 1) for child in below if child not in seen]
                seen.update(below)
        return order

    def members(self, workload: str) -> list[Pod]:
        """All known pods of a workload, placed or not."""
        if workload.startswith(LONE):
            pod = self.pods.get(workload[len(LONE) :])
            return [pod] if pod is not None else []
        return [pod for members in self._below(workload) for pod in members.pods.values()]

    def _below(self, workload: str) -> list[Members]:
        """The members of a workload's gangs, of those that have any."""
        return [members for gang_id in self.tree(workload) if (members := self._members.get(gang_id)) is not None]

    def kinds_among(self, workload: str) -> Sequence[Pod]:
        """One of all known pods of a workload for each kind of them."""
        if workload.startswith(LONE):
            return self.members(workload)
        below = self._below(workload)
        return below[0].distinct() if len(below) == 1 else self.distinct(self.members(workload))

    def first(self, workload: str) -> Pod | None:
        """The pod of a workload that became known first; of a tree of gangs, that of the first gang with pods."""
        if workload.startswith(LONE):
            return self.pods.get(workload[len(LONE) :])
        below = self._below(workload)
        return next(iter(below[0].pods.values())) if below else None

    def created_ms(self, workload: str) -> int:
        """When the oldest known pod of a workload was created; 0 where it has none."""
        if workload.startswith(LONE):
            pod = self.pods.get(workload[len(LONE) :])
            return pod.created_ms if pod is not None else 0
        return min([members.created_ms for members in self._below(workload)], default=0)

    def priority(self, workload: str) -> int:
        """The highest priority of the known pods of a workload; 0 where it has none."""
        if workload.startswith(LONE):
            pod = self.pods.get(workload[len(LONE) :])
            return pod.priority if pod is not None else 0
        return max([members.priority for members in self._below(workload)], default=0)

    def waits(self, workload: str) -> bool:
        """Whether there are pods of a workload that this scheduler has to place and has not."""
        placements = self._cluster.placements
        if workload.startswith(LONE):
            return bool(self.waiting(workload))
        for members in self._below(workload):
            for uid, pod in members.pods.items():
                if uid not in placements and pod.managed:
                    return True
        return False

    def waiting(self, workload: str) -> dict[str, Pod]:
        """The pods of a workload that this scheduler has to place and has not, by uid."""
        placements = self._cluster.placements
        found: dict[str, Pod] = {}
        if workload.startswith(LONE):
            uid = workload[len(LONE) :]
            lone = self.pods.get(uid)
            if lone is not None and lone.managed and uid not in placements:
                found[uid] = lone
            return found
        for members in self._below(workload):
            every = all(pod.managed for pod in members.distinct())
            for uid, pod in members.pods.items():
                if uid not in placements and (every or pod.managed):
                    found[uid] = pod
        return found

    def bound(self, workload: str) -> list[Pod]:
        """The bound pods of a gang."""
        return [pod for members in self._below(workload) if members.bound for pod in members.pods.values() if pod.node]

    def groups(self, workload: str) -> list[Group]:
        """The groups of a workload; each is placed together or not at all. That is the whole workload or, where it has
        started or has its minimum, each pending pod and each sub-gang that has not started."""
        if workload.startswith(LONE):
            return [Group(pods=[self.pods[workload[len(LONE) :]]], uniform=True)]
        return list(self._parts(workload))

    def next_pods(self, workload: str) -> list[Pod]:
        """The fewest pods of a workload that can start next, without those by which an elastic gang can grow; none
        where none can start."""
        if workload.startswith(LONE) or workload not in self.gangs:
            return list(filter(startable, self.waiting(workload).values()))
        return next((pods for group in self._parts(workload) if (pods := fewest(group))), [])

    def _parts(self, gang_id: str, depth: int = 1) -> Iterator[Group]:
        group = self._group(gang_id, depth)
        if group.total_missing() and not self.has_started(gang_id):
            yield group
            return
        running = replace(group, pods=[], held=list(group.all_held()), missing=0, groups=[], min_groups=0)
        for pod in group.pods[: group.room]:
            yield replace(running, pods=[pod], missing=1)
        for child in self._subgangs(gang_id) if depth < MOST_DEPTH else ():
            for part in self._parts(child, depth + 1):
                yield replace(running, groups=[part])

    def _subgangs(self, gang_id: str) -> list[str]:
        return [child for child in islice(self._children.get(gang_id, ()), MOST_GANGS) if child in self.gangs]

    def _least(self, gang: Gang) -> int:
        """How many pods of its own a gang needs; one that only holds sub-gangs needs none."""
        return gang.min_count if gang.id in self._members or not self._subgangs(gang.id) else 0

    def _group(self, gang_id: str, depth: int = 1) -> Group:
        gang = self.gangs[gang_id]
        members, placements = self._members.get(gang_id) or Members(), self._cluster.placements
        known = members.pods
        pods = [known[uid] for _, _, uid in members.order if uid not in placements]
        held: list[int] = []
        if len(pods) < len(known):
            held = [placements[uid].slot for uid, pod in known.items() if uid in placements and not pod.deleting]
        if not all(map(startable, members.distinct())):
            pods = list(filter(startable, pods))
        below = self._subgangs(gang_id) if depth < MOST_DEPTH else []
        children = [self._group(child, depth + 1) for child in below]
        return Group(
            pods=pods,
            held=held,
            missing=max(0, self._least(gang) - len(held)),
            room=None if gang.max_count is None else max(0, gang.max_count - len(held)),
            groups=children,
            min_groups=gang.min_groups,
            required=gang.required,
            preferred=gang.preferred,
            uniform=members.uniform,
        )

    def has_started(self, gang_id: str) -> bool:
        """Whether the gang had its minimum on nodes before. After a restart of the scheduler the times show it: every
        pending pod was created after the first one was bound, so none of them is left over from the first start."""
        state = self.lives.state(gang_id)
        if state is not GangState.PENDING:
            return state is not GangState.STARTING
        bound = [pod for pod in self.bound(gang_id) if not pod.deleting]
        if not bound:
            return False
        waiting = [pod for pod in self.members(gang_id) if not pod.node]
        return all(pod.created_ms > min(b.bound_ms for b in bound) > 0 for pod in waiting)

    def enough(self, gang_id: str, succeeded: Mapping[str, int]) -> bool:
        """Whether a gang has the pods, and the sub-gangs, that it needs: on nodes, or among those that `succeeded`, of
        which that is the number by gang."""
        gang = self.gangs[gang_id]
        members, placements = self._members.get(gang_id) or Members(), self._cluster.placements
        there = sum(1 for uid, pod in members.pods.items() if uid in placements and not pod.deleting)
        children = self._subgangs(gang_id)
        whole = sum(1 for child in children if self.enough(child, succeeded))
        least = gang.min_count if gang_id in self._members or not children else 0
        return there + succeeded.get(gang_id, 0) >= least and whole >= (gang.min_groups or len(children))

    def note_start(self, workload: str) -> None:
        """Note which gangs of the tree have their minimum bound, and which have nothing bound any more."""
        for gang_id in reversed(self.tree(workload)):
            members = self._members.get(gang_id)
            bound = members.bound - members.leaving if members is not None else 0
            children = self._subgangs(gang_id)
            running = sum(1 for child in children if self.lives.has_started(child))
            gang = self.gangs.get(gang_id)
            if not bound and not running:
                self.lives.handle(gang_id, GangEvent.NONE_BOUND)
            elif gang is not None and bound >= self._least(gang) and running >= (gang.min_groups or len(children)):
                self.lives.handle(gang_id, GangEvent.MINIMUM_BOUND)
        if not self._below(workload):
            self.lives.handle(workload, GangEvent.NO_PODS)


def startable(pod: Pod) -> bool:
    """A pending pod that this scheduler may place."""
    return not (pod.gated or pod.held or pod.deleting or pod.node) and pod.managed and pod.problem is None


def complete(group: Group) -> bool:
    """Whether enough startable pods exist. Drops sub-gangs that lack pods where fewer are enough."""
    whole = [child for child in group.groups if complete(child)] if group.groups else group.groups
    if len(whole) < group.groups_needed or len(group.pods) < group.missing:
        return False
    group.groups = whole
    return True
