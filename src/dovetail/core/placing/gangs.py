# SPDX-License-Identifier: Apache-2.0
"""The search for a whole gang: which domain, which sub-gang where, all or nothing. A lone pod is a gang of one.

Rules: required levels are never broken; members that already run pin them. Wished levels are tried from the first to
the last, then the fabric levels from the narrowest to the widest, then no level at all. Domains that cannot hold the
gang by count are never tried; of the others the one that holds most members comes first, the tightest of equals.
Siblings are searched with backtracking: each alternative is placed in a trial, and undone when what follows does not
fit. The search places the least that is needed; once the whole fits, each group takes on more inside its own scope.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.columns import ABSENT
from dovetail.core.cluster.shapes import Shape
from dovetail.core.model import Pod
from dovetail.core.placing.pods import Scope, fill
from dovetail.core.placing.score_cache import ScoreCache
from dovetail.core.placing.scores import INFEASIBLE


class SearchLimitReached(Exception):
    """The bound on tried domains was reached before the search was over."""


class Group(Struct):
    """A gang as the search sees it: pending `pods` in order of preference, `held` the slots of members already placed,
    `missing` how many more it needs, `room` how many more it may take (None: no limit). `scope` is where the placement
    in force keeps it, while `chosen`. `alike` says that its own pods are known to be of one kind (`Roster.kinds`)."""

    pods: list[Pod] = []
    held: list[int] = []
    missing: int = 1
    room: int | None = None
    groups: list[Group] = []
    min_groups: int = 0
    required: tuple[str, ...] = ()
    preferred: tuple[str, ...] = ()
    scope: Scope | None = None
    chosen: bool = False
    alike: bool = False

    @property
    def groups_needed(self) -> int:
        """How many sub-gangs must reach their minimum; more than exist where some are still to come."""
        return self.min_groups or len(self.groups)

    def total_missing(self) -> int:
        """The fewest pods that complete the gang, sub-gangs included."""
        below = sorted([group.total_missing() for group in self.groups])
        return self.missing + sum(below[: self.groups_needed])

    def walk(self) -> Iterator[Group]:
        """The group and all below it."""
        yield self
        for group in self.groups:
            yield from group.walk()

    def all_pods(self) -> Sequence[Pod]:
        return [pod for group in self.walk() for pod in group.pods] if self.groups else self.pods

    def all_held(self) -> Sequence[int]:
        return [slot for group in self.walk() for slot in group.held] if self.groups else self.held


def fewest(group: Group) -> list[Pod]:
    """As many pods as the group needs, the first of each part."""
    below = sorted(group.groups, key=lambda sub: sub.total_missing())[: group.groups_needed] if group.groups else ()
    return [*group.pods[: group.missing], *[pod for sub in below for pod in fewest(sub)]]


class GangSearch:
    """One search for one root gang, inside the cluster's running trial."""

    def __init__(self, cluster: Cluster, rows: ScoreCache, limit: int) -> None:
        self._cluster = cluster
        self.rows = rows
        self._left = limit

    def place(self, root: Group, scope: Scope | None = None) -> bool:
        """Place the gang inside the scope (None: anywhere); False where it does not fit. Raises SearchLimitReached.
        Unless True, the caller drops the trial."""
        if root.groups or len(root.pods) > 1 or root.held or root.required or root.preferred:
            placed = next(self._alternatives(root, scope), False)
            if placed:
                self._extend(root)
            return placed
        return (
            self._add(_by_shape(self._cluster, root.pods, root.alike), root.missing, scope, root.alike) == root.missing
        )

    def _alternatives(self, group: Group, scope: Scope | None) -> Iterator[bool]:
        """Each yields with one placement of the group in force, which is undone when the next one is asked for."""
        wanted = self._counted(group)
        tried: set[bytes | None] = set()
        for key in (*self._wishes(group), ""):
            levels = (*group.required, key) if key else group.required
            if not levels and self.room(scope, wanted) < group.total_missing():
                break
            for inside in self._scopes(levels, scope, group, wanted):
                # A wider level than the scope already has leads to the same scope again.
                slots = inside.tobytes() if inside is not None else None
                if slots in tried:
                    continue
                tried.add(slots)
                if self._left <= 0:
                    raise SearchLimitReached
                self._left -= 1
                group.scope, group.chosen = inside, True
                if group.groups:
                    yield from self._siblings(group, inside)
                else:
                    yield from self._fills(group, inside)
        group.chosen = False

    def _counted(self, group: Group) -> list[tuple[Shape, int]]:
        """The shapes by which it is counted how many of its pods could fit: those that share a claim without what is to
        be allocated for them, which is so once and not for each."""
        cluster = self._cluster
        pods = group.pods[:1] if group.alike and not group.groups else group.all_pods()
        if not any(pod.device_claims and cluster.claims.shared(pod) for pod in pods):
            return shapes_of(cluster, group)
        shapes = [
            cluster.shape_with(pod, ()) if cluster.claims.shared(pod) else cluster.shape_of(pod)
            for pod in group.all_pods()
        ]
        counts = Counter([shape.id for shape in shapes])
        distinct = {shape.id: shape for shape in shapes}
        return [(distinct[key], count) for key, count in counts.items()]

    def _wishes(self, group: Group) -> tuple[str, ...]:
        if group.total_missing() + len(group.all_held()) <= 1:
            return group.preferred
        levels = self._cluster.fabric.levels
        known = [levels.index(key) for key in group.preferred if key in levels]
        wider = levels[: known[-1]] if known else levels
        return tuple(key for key in (*group.preferred, *reversed(wider)) if key not in group.required)

    def _scopes(
        self, keys: tuple[str, ...], scope: Scope | None, group: Group, wanted: list[tuple[Shape, int]]
    ) -> Iterator[Scope | None]:
        """Scopes inside one domain of each key that could hold the group by count, best first."""
        if not keys:
            yield scope
            return
        for domain in self._domains(keys[0], scope, group, wanted):
            slots = self._cluster.fabric.slots(keys[0], domain)
            narrowed = slots if scope is None else np.intersect1d(slots, scope, assume_unique=True)
            yield from self._scopes(keys[1:], narrowed, group, wanted)

    def _domains(self, key: str, scope: Scope | None, group: Group, wanted: list[tuple[Shape, int]]) -> list[int]:
        fabric = self._cluster.fabric
        missing = group.total_missing()
        if scope is None and sum([int(self.rows.of(shape).tally(key).max(initial=0)) for shape, _ in wanted]) < missing:
            return []
        capacity, total = self.potential(key, scope, wanted)
        able = capacity >= missing
        held = {int(fabric.domains(key)[slot]) for slot in group.all_held()}
        if held:
            able &= np.isin(np.arange(len(able)), list(held)) if len(held) == 1 and ABSENT not in held else False
        (domains,) = able.nonzero()
        if not len(domains):
            return []
        found: list[int] = domains[np.lexsort((total[domains], -capacity[domains]))].tolist()
        return found

    def room(self, scope: Scope | None, wanted: list[tuple[Shape, int]]) -> int:
        """How many of the wanted pods could fit in the scope by count (an upper bound)."""
        inside = slice(None) if scope is None else scope
        return sum(min(int(self.rows.of(shape).copies()[inside].sum()), count) for shape, count in wanted)

    def potential(
        self, key: str, scope: Scope | None, wanted: list[tuple[Shape, int]]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Per domain of the key: how many of the wanted pods could fit by count (an upper bound), and how many copies
        of them would if there were no end of pods."""
        fabric = self._cluster.fabric
        capacity = np.zeros(fabric.count(key), dtype=np.int64)
        total = np.zeros_like(capacity)
        for shape, count in wanted:
            row = self.rows.of(shape)
            if scope is None:
                sums = row.tally(key)
            else:
                domains = fabric.domains(key)[scope]
                inside = domains != ABSENT
                sums = np.bincount(
                    domains[inside], weights=row.copies()[scope[inside]], minlength=len(capacity)
                ).astype(np.int64)
            capacity += np.minimum(sums, count)
            total += sums
        return capacity, total

    def _siblings(self, group: Group, scope: Scope | None) -> Iterator[bool]:
        """Sub-gangs one after another, those bound to the narrowest level first, the largest of equals; some may be
        left out where fewer are enough."""
        levels = self._cluster.fabric.levels

        def narrowness(sub: Group) -> int:
            return max((levels.index(key) if key in levels else len(levels) for key in sub.required), default=-1)

        order = sorted(group.groups, key=lambda sub: (-narrowness(sub), -sub.total_missing()))
        yield from self._from_sibling(order, 0, group.groups_needed, scope, group)

    def _from_sibling(
        self, order: list[Group], done: int, needed: int, scope: Scope | None, parent: Group
    ) -> Iterator[bool]:
        if not order:
            if done >= needed:
                yield from self._fills(parent, scope)
            return
        first, rest = order[0], order[1:]
        for _ in self._alternatives(first, scope):
            yield from self._from_sibling(rest, done + 1, needed, scope, parent)
        if done + len(rest) >= needed:
            yield from self._from_sibling(rest, done, needed, scope, parent)

    def _fills(self, group: Group, scope: Scope | None) -> Iterator[bool]:
        """Each yields with as many of the group's own pods in force as it needs: the hardest, then the easiest."""
        shapes = _by_shape(self._cluster, group.pods, group.alike)
        for order in (shapes, shapes[::-1])[: max(1, len(shapes))]:
            mark = self._cluster.mark()
            if self._add(order, group.missing, scope, group.alike) == group.missing:
                yield True
            self._cluster.rewind(mark)
        sharing = [pod for pod in group.pods if pod.device_claims and self._cluster.claims.shared(pod)]
        for slot in self._able(sharing[0], scope) if len(sharing) > 1 else ():
            # What is allocated with the first of them keeps the others near it: it may go to any node.
            if self._left <= 0:
                raise SearchLimitReached
            self._left -= 1
            mark = self._cluster.mark()
            first, there = sharing[0], np.array([slot], dtype=np.int64)
            rest = [pod for pod in group.pods if pod is not first]
            placed = self._add([(self._cluster.shape_of(first), [first])], 1, there, alike=False)
            if (
                placed
                and placed
                + self._add(_by_shape(self._cluster, rest, alike=False), group.missing - 1, scope, alike=False)
                == group.missing
            ):
                yield True
            self._cluster.rewind(mark)

    def _able(self, pod: Pod, scope: Scope | None) -> list[int]:
        """The slots of the scope where the pod fits, the best first."""
        score = self.rows.of(self._cluster.shape_of(pod)).score
        slots = np.arange(self._cluster.nodes.used) if scope is None else scope
        slots = slots[score[slots] != INFEASIBLE]
        found: list[int] = slots[np.argsort(-score[slots], kind="stable")].tolist()
        return found

    def _extend(self, group: Group) -> None:
        """Take on who may come beyond the minimum, each group inside the scope that it was given."""
        for sub in group.groups:
            self._extend(sub)
        if group.chosen and len(group.pods) > group.missing:
            more = [pod for pod in group.pods if pod.uid not in self._cluster.placements]
            room = len(more) if group.room is None else group.room - group.missing
            if more:
                self._add(_by_shape(self._cluster, more, group.alike), room, group.scope, group.alike)

    def _add(self, shapes: list[tuple[Shape, list[Pod]]], most: int, scope: Scope | None, alike: bool) -> int:
        placed = 0
        for shape, pods in shapes:
            if placed < most:
                placed += fill(self._cluster, self.rows, shape, pods[: most - placed], scope, alike)
        return placed


def _by_shape(cluster: Cluster, pods: list[Pod], alike: bool) -> list[tuple[Shape, list[Pod]]]:
    """Pods by shape, those that ask for most GPUs first: the hardest to place."""
    if len(pods) == 1 or (alike and pods):
        return [(cluster.shape_of(pods[0]), pods)]
    found: dict[int, tuple[Shape, list[Pod]]] = {}
    for pod, shape in zip(pods, cluster.shapes_of(pods), strict=True):
        found.setdefault(shape.id, (shape, []))[1].append(pod)
    return sorted(found.values(), key=lambda pair: -pair[0].gpus)


def shapes_of(cluster: Cluster, group: Group) -> list[tuple[Shape, int]]:
    """The distinct shapes of the group's pending pods, sub-gangs included, with how many pods ask for each."""
    if group.alike and group.pods and not group.groups:
        return [(cluster.shape_of(group.pods[0]), len(group.pods))]
    shapes = cluster.shapes_of(group.all_pods())
    counts = Counter([shape.id for shape in shapes])
    distinct = {shape.id: shape for shape in shapes}
    return [(distinct[key], count) for key, count in counts.items()]
