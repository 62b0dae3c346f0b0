# SPDX-License-Identifier: Apache-2.0
"""One attempt to place one root: a gang, or a pod on its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dovetail.core.cluster.columns import ABSENT
from dovetail.core.cluster.placement import Placement
from dovetail.core.decisions import Bind, Decision, Hold, Release
from dovetail.core.model import Pod
from dovetail.core.placing import feasibility, links, refusals, repartition
from dovetail.core.placing.gangs import Group, Search, SearchLimitReached, shapes_of
from dovetail.core.reasons import Reason, Refusal, When
from dovetail.core.roster import LONE, complete, startable
from dovetail.core.sharing.records import DEFAULT_QUEUE
from dovetail.core.state import State

_NO_ROOM = {Reason.NO_NODE_FITS, Reason.GANG_DOES_NOT_FIT, Reason.GANG_TOO_LARGE}


class Attempt:
    def __init__(self, state: State, root: str) -> None:
        self._state = state
        self._root = root
        self._members = state.roster.members(root)

    @property
    def work(self) -> int:
        """How much the attempt counts: pods that look at other pods are placed one at a time, each at a cost."""
        shapes = self._state.cluster.shapes
        return 1 + sum(shapes.of(pod.request).scattered for pod in self._members)

    def decide(self) -> list[Decision]:
        """Binds for what could be placed; a Hold where that is news; a Release where a half start is overdue."""
        state, waiting = self._state, self._waiting()
        binds: list[Decision] = []
        refusal = self._blocked(waiting)
        for group in state.roster.groups(self._root) if refusal is None else ():
            placed, lacking = self._place(group)
            binds += placed
            refusal = refusal or lacking
        waiting = self._waiting()
        if refusal is None and any(startable(pod) for pod in waiting):
            refusal = Refusal(Reason.GANG_FULL, When.NOT_YET)
        overdue = self._overdue(bool(binds), waiting)
        if overdue and refusal is not None:
            return [*binds, Release(self._root, tuple(pod.uid for pod in overdue), refusal, state.steps)]
        if not waiting:
            state.pending.forget(self._root)
            return binds
        state.pending.park(self._root, *state.rank(self._root))
        if refusal is not None:
            uids = tuple(pod.uid for pod in waiting)
            news = state.pending.tell(self._root, refusal, uids, state.now_ms, state.policy.tell_again_ms)
            if news:
                binds.append(Hold(self._root, news, refusal, state.steps))
        return binds

    def _waiting(self) -> list[Pod]:
        placements = self._state.cluster.placements
        return [pod for pod in self._members if pod.managed and not pod.node and pod.uid not in placements]

    def _blocked(self, waiting: list[Pod]) -> Refusal | None:
        """What keeps the root from being tried at all."""
        state, gangs = self._state, self._state.roster.gangs
        for pod in waiting:
            if pod.problem is not None:
                return Refusal(Reason.INVALID, When.NEVER, f"{pod.key}: {pod.problem}")
            if pod.queue and pod.queue != DEFAULT_QUEUE and pod.queue not in state.queues:
                return Refusal(Reason.QUEUE_MISSING, When.NOT_YET, repr(pod.queue))
            if "" in state.cluster.avoided.get(pod.uid, ()):
                return Refusal(Reason.BIND_BACKOFF, When.NOT_YET, f"{pod.key} could not be bound a moment ago")
        if self._root.startswith(LONE):
            if any(pod.gated for pod in waiting):
                return Refusal(Reason.GATED, When.NOT_YET)
            return Refusal(Reason.DELETING, When.NEVER) if any(pod.deleting for pod in waiting) else None
        for gang_id in state.roster.tree(self._root):
            gang = gangs.get(gang_id)
            if gang is None:
                return Refusal(Reason.GANG_MISSING, When.NOT_YET, repr(gang_id))
            if gang.problem is not None:
                return Refusal(Reason.INVALID, When.NEVER, f"{gang.namespace}/{gang.name}: {gang.problem}")
            if gang.parent and gang_id == self._root:
                missing = gang.parent not in gangs
                what = "does not exist" if missing else "is below itself: the parents form a cycle"
                when = When.NOT_YET if missing else When.NEVER
                return Refusal(Reason.GANG_MISSING, when, f"the parent {gang.parent!r} of {gang_id!r} {what}")
        return None

    def _incomplete(self, group: Group) -> Refusal:
        need = group.total_missing() + sum(1 for _ in group.all_held())
        exist = sum(1 for pod in self._members if startable(pod) or pod.node)
        return Refusal(Reason.GANG_INCOMPLETE, When.NOT_YET, f"needs {need} pods, {exist} can start")

    def _place(self, group: Group) -> tuple[list[Decision], Refusal | None]:
        """Binds, and why the rest (or all of it) was not placed."""
        state = self._state
        if not complete(group):
            return [], self._incomplete(group)
        if state.failed and (known := state.failed.get(self._signature(group))) is not None:
            return [], known
        pods = list(group.all_pods())
        with state.cluster.trial() as trial:
            try:
                fits = Search(state.cluster, state.rows, state.policy.search_limit).place(group)
                limit = False
            except SearchLimitReached:
                fits, limit = False, True
            binds = self._binds(pods) if fits else []
            if binds:
                trial.keep()
        if len(binds) == len(pods):
            return binds, None
        if limit:
            refusal = Refusal(Reason.SEARCH_LIMIT, When.NOT_YET, f"after {state.policy.search_limit} domains")
        elif binds:
            refusal = self._left_over(group)
        elif (lately := self._told_lately()) is not None:
            return [], lately
        else:
            refusal = refusals.for_gang(state.cluster, state.rows, group)
            proposal = repartition.proposal(state.cluster, state.cluster.shape_of(pods[0]))
            refusal = refusal if proposal is None else replace(refusal, repartition=proposal)
        if not binds and (signature := self._signature(group)) is not None:
            state.failed[signature] = refusal
        return binds, refusal

    def _left_over(self, group: Group) -> Refusal:
        """Why a pod is not placed although its gang starts without it."""
        cluster = self._state.cluster
        for part in group.walk():
            waiting = [pod for pod in part.pods if pod.uid not in cluster.placements]
            if waiting and not part.chosen:
                return refusals.for_gang(cluster, self._state.rows, part)
            if waiting and part.room is not None and len(part.pods) - len(waiting) >= part.room:
                return Refusal(Reason.GANG_FULL, When.NOT_YET)
            if waiting:
                return refusals.for_pod(cluster, waiting[0], part.scope)
        raise AssertionError("every pod was placed")

    def _told_lately(self) -> Refusal | None:
        """The numbers of a search that failed need not be worked out anew every time; that it can never succeed must
        be taken back at once."""
        lately = self._state.pending.told_lately(self._root, self._state.now_ms, self._state.policy.tell_again_ms)
        return lately if lately is not None and lately.reason in _NO_ROOM and lately.when is When.NOT_YET else None

    def _binds(self, pods: list[Pod]) -> list[Decision]:
        state, placements = self._state, self._state.cluster.placements
        placed = [placement for pod in pods if (placement := placements.get(pod.uid)) is not None]
        gang = "" if self._root.startswith(LONE) else self._root
        level = (
            self._level([placements[pod.uid].slot for pod in self._members if pod.uid in placements]) if gang else ""
        )
        names = state.cluster.nodes.names
        for p in placed:
            state.cluster.nominated.pop(p.pod.uid, None)
        ranks = self._ranks(placed) if gang else {}
        return [
            Bind(
                p.pod.uid, names[p.slot], state.steps, gang, p.devices, p.picks, level, ranks.get(p.pod.uid, -1),
                *links.bandwidth(state.cluster, p), self._unsure(p),
                p.grants, state.cluster.slices.instances(p) if p.slices else (), p.pod.device_claims,
                state.cluster.claims.to_make(p.pod, p.by_claim) if p.by_claim else None,
            )
            for p in placed
        ]  # fmt: skip

    def _unsure(self, placement: Placement) -> str:
        cluster = self._state.cluster
        if placement.entry is not None or placement.pod.request.managed is None:
            return ""
        if not cluster.kubelets.decides(placement.slot, placement.shape):
            return ""
        return cluster.kubelets.ask(placement.slot, placement.shape).message

    def _ranks(self, placed: list[Placement]) -> dict[str, int]:
        """The order in which the pods of a gang that starts lie in the fabric: domain by domain from the widest level
        down, node by node, GPU by GPU. None for pods that join others: theirs are given."""
        if len(placed) < len(self._members):
            return {}
        fabric = self._state.cluster.fabric
        paths = [fabric.domains(key) for key in fabric.levels]
        order = sorted(placed, key=lambda p: ([int(path[p.slot]) for path in paths], p.slot, p.gpu_bits, p.share_bits))
        return {p.pod.uid: rank for rank, p in enumerate(order)}

    def _level(self, slots: list[int]) -> str:
        """The narrowest fabric level whose one domain holds all slots."""
        fabric = self._state.cluster.fabric
        for key in reversed(fabric.levels):
            domains = np.unique(fabric.domains(key)[slots])
            if len(domains) == 1 and domains[0] != ABSENT:
                return key
        return ""

    def _signature(self, group: Group) -> object | None:
        """Equal for groups of which one fails when another did; None where pods differ beyond their shapes."""
        cluster, pods = self._state.cluster, group.pods
        if cluster.peers.counts or group.groups or group.held or any(pod.claims for pod in pods):
            return None
        if len(pods) == 1 and group.missing == 1 and not group.required:
            # Preferred levels keep no pod on its own from a node.
            shape = cluster.shape_of(pods[0])
            return None if feasibility.hindered(cluster, shape, pods) else shape.id
        wanted = shapes_of(cluster, group)
        if any(feasibility.hindered(cluster, shape, pods) for shape, _ in wanted):
            return None
        counts = tuple((shape.id, count) for shape, count in wanted)
        return counts, group.missing, group.room, group.required, group.preferred

    def _overdue(self, binds: bool, waiting: list[Pod]) -> list[Pod]:
        """The bound members of a gang that started by half and is past its deadline, else nothing.

        A half start shows even after a restart: a pod waits that existed when the last of the others was bound. (A pod
        created later replaces one that ran: then the gang had started whole.)
        """
        state, starting = self._state, self._state.roster.starting
        if self._root.startswith(LONE) or state.roster.has_started(self._root):
            return []
        bound = [pod for pod in self._members if pod.node]
        deadline_ms = state.policy.start_deadline_ms
        newest = max((pod.bound_ms for pod in bound), default=0)
        if binds:
            starting.setdefault(self._root, state.now_ms + deadline_ms)
        elif bound and any(pod.created_ms <= newest for pod in waiting):
            starting.setdefault(self._root, newest + deadline_ms)
        if starting.get(self._root, state.now_ms + 1) > state.now_ms:
            return []
        starting[self._root] = state.now_ms + deadline_ms
        return [pod for pod in bound if not pod.deleting]
