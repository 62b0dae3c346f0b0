# SPDX-License-Identifier: Apache-2.0
"""The search for a placement of a whole gang: all its pods or none. A lone pod is a gang of one.

Rules: required levels are never broken, and members that already run fix their domains. Preferred levels are tried in
their order, then the fabric levels from the narrowest to the widest, then no level. Domains that cannot hold the gang
by count are not tried. Of the others the domain that holds the most members comes first, and of equals the tightest.
What was measured as slow is used last: all of the rest is tried before (`cluster.link_speeds`).
Siblings are searched with backtracking: each alternative is placed in a trial, which is undone if the next siblings do
not fit. The search first places the minimum; once the whole gang fits, each group adds pods inside its own scope.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.columns import ABSENT
from dovetail.core.cluster.shapes import Shape
from dovetail.core.model import Pod
from dovetail.core.placing.pods import Scope, fill
from dovetail.core.placing.score_cache import ScoreCache
from dovetail.core.placing.scores import INFEASIBLE


class SearchLimitReached(Exception):
    """The bound on tried domains was reached before the search ended."""


class Group(Struct):
    """A gang as the search sees it: waiting `pods` in order of preference, `held` the slots of placed members,
    `missing` the number of pods that it still needs, `room` the most that it may add (None: no limit). `scope` is the
    scope of the present placement, valid while `chosen`. `uniform`: its own pods are known to be of one kind
    (`WorkloadIndex.kinds`)."""

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
    uniform: bool = False

    @property
    def groups_needed(self) -> int:
        """The number of sub-gangs that must reach their minimum. It exceeds the known ones where some are to come."""
        return self.min_groups or len(self.groups)

    def total_missing(self) -> int:
        """The fewest pods that complete the gang, including its sub-gangs."""
        below = sorted([group.total_missing() for group in self.groups])
        return self.missing + sum(below[: self.groups_needed])

    def walk(self) -> Iterator[Group]:
        """The group and all groups below it."""
        yield self
        for group in self.groups:
            yield from group.walk()

    def unchoose(self) -> None:
        """Forget the scopes of a placement that is not kept."""
        for group in self.walk():
            group.scope, group.chosen = None, False

    def all_pods(self) -> Sequence[Pod]:
        return [pod for group in self.walk() for pod in group.pods] if self.groups else self.pods

    def all_held(self) -> Sequence[int]:
        return [slot for group in self.walk() for slot in group.held] if self.groups else self.held


def fewest(group: Group) -> list[Pod]:
    """The fewest pods that complete the group, the first of each part."""
    below = sorted(group.groups, key=lambda sub: sub.total_missing())[: group.groups_needed] if group.groups else ()
    return [*group.pods[: group.missing], *[pod for sub in below for pod in fewest(sub)]]


class GangSearch:
    """A search for one root gang inside the cluster's running trial."""

    def __init__(self, cluster: Cluster, rows: ScoreCache, limit: int) -> None:
        self._cluster = cluster
        self.rows = rows
        self._left = limit
        self._kinds: dict[int, list[tuple[str, Shape, int, int]]] = {}
        """By the id() of a group of this search, its sub-gangs that each stay in one domain: the key of that, the shape
        of their pods, the fewest pods of each, and how many such sub-gangs there are."""

    def place(self, root: Group, scope: Scope | None = None) -> bool:
        """Place the gang inside the scope (None: anywhere). Returns False where it does not fit; the caller must then
        drop the trial. Raises SearchLimitReached."""
        self._kinds.clear()
        if root.groups or len(root.pods) > 1 or root.held or root.required or root.preferred:
            for inside in self._fast_scopes(root, scope):
                if self._placed_inside(root, inside):
                    self._extend(root)
                    return True
            placed = next(self._alternatives(root, scope), False)
            if placed:
                self._extend(root)
            return placed
        return (
            self._add(_by_shape(self._cluster, root.pods, root.uniform), root.missing, scope, root.uniform)
            == root.missing
        )

    def _fast_scopes(self, root: Group, scope: Scope | None) -> Iterator[Scope]:
        """The scope without its slow parts, where it has any and a gang is placed."""
        if root.total_missing() + len(root.all_held()) > 1:
            for fast in self._cluster.link_speeds.without_slow(self._cluster.now_ms):
                inside = fast if scope is None else np.intersect1d(fast, scope, assume_unique=True)
                if scope is None or len(inside) < len(scope):
                    yield inside

    def _placed_inside(self, root: Group, scope: Scope) -> bool:
        """Place the gang there, if the search finds how. What it tries for that does not count against the limit of the
        search for any place at all."""
        mark, left = self._cluster.mark(), self._left
        try:
            placed = next(self._alternatives(root, scope), False)
        except SearchLimitReached:
            # It ended in the middle of a placement.
            root.unchoose()
            placed = False
        if not placed:
            self._cluster.rewind(mark)
            self._left = left
        return placed

    def _alternatives(self, group: Group, scope: Scope | None) -> Iterator[bool]:
        """Yield once for each placement of the group, while it is in force; the next step undoes it."""
        wanted = self._counted(group)
        tried: set[bytes | None] = set()
        for key in (*self._preferred_levels(group), ""):
            levels = (*group.required, key) if key else group.required
            if not levels and self.room(scope, wanted) < group.total_missing():
                break
            for inside in self._scopes(levels, scope, group, wanted):
                # A level wider than the scope gives the same scope again.
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
        """The shapes and numbers by which the fitting pods are counted. A shared claim is allocated once and not for
        each pod, so pods that share one count without its devices."""
        cluster = self._cluster
        pods = group.pods[:1] if group.uniform and not group.groups else group.all_pods()
        if not any(pod.device_claims and cluster.claims.shared(pod) for pod in pods):
            return shapes_of(cluster, group)
        shapes = [
            cluster.shape_with(pod, ()) if cluster.claims.shared(pod) else cluster.shape_of(pod)
            for pod in group.all_pods()
        ]
        counts = Counter([shape.id for shape in shapes])
        distinct = {shape.id: shape for shape in shapes}
        return [(distinct[key], count) for key, count in counts.items()]

    def _preferred_levels(self, group: Group) -> tuple[str, ...]:
        if group.total_missing() + len(group.all_held()) <= 1:
            return group.preferred
        levels = self._cluster.fabric.levels
        known = [levels.index(key) for key in group.preferred if key in levels]
        wider = levels[: known[-1]] if known else levels
        return tuple(key for key in (*group.preferred, *reversed(wider)) if key not in group.required)

    def _scopes(
        self, keys: tuple[str, ...], scope: Scope | None, group: Group, wanted: list[tuple[Shape, int]]
    ) -> Iterator[Scope | None]:
        """Scopes inside one domain of each key that could hold the group by count, the best first."""
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
        """An upper bound, by count, of the wanted pods that fit in the scope."""
        inside = slice(None) if scope is None else scope
        return sum(min(int(self.rows.of(shape).copies()[inside].sum()), count) for shape, count in wanted)

    def potential(
        self, key: str, scope: Scope | None, wanted: list[tuple[Shape, int]]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """By domain of the key: an upper bound, by count, of the wanted pods that fit, and the number that would fit if
        there were any number of pods."""
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
        """Place the sub-gangs one after another: those with the narrowest required level first, then the largest. Some
        are left out where fewer are enough."""
        levels = self._cluster.fabric.levels

        def narrowness(sub: Group) -> int:
            return max((levels.index(key) if key in levels else len(levels) for key in sub.required), default=-1)

        if self._too_many(group, scope):
            return
        order = sorted(group.groups, key=lambda sub: (-narrowness(sub), -sub.total_missing()))
        yield from self._from_sibling(order, 0, group.groups_needed, scope, group)

    def _too_many(self, group: Group, scope: Scope | None) -> bool:
        """Whether equal sub-gangs that each stay in one domain are more than all domains hold, by count. A search would
        try all of their arrangements before it found that."""
        kinds = self._kinds.get(id(group))
        if kinds is None:
            kinds = self._kinds[id(group)] = self._kinds_of(group)
        spare = len(group.groups) - group.groups_needed
        for key, shape, missing, count in kinds:
            _, total = self.potential(key, scope, [(shape, count * missing)])
            if int((total // missing).sum()) < count - spare:
                return True
        return False

    def _kinds_of(self, group: Group) -> list[tuple[str, Shape, int, int]]:
        found: dict[tuple[str, int, int], list[Shape]] = {}
        for sub in group.groups:
            if sub.required and sub.missing and not sub.groups and not sub.held:
                wanted = self._counted(sub)
                if len(wanted) == 1:
                    shape = wanted[0][0]
                    found.setdefault((sub.required[0], shape.id, sub.missing), []).append(shape)
        return [(key, shapes[0], missing, len(shapes)) for (key, _, missing), shapes in found.items()]

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
        """Yield with as many of the group's own pods placed as it needs: first the hardest, then the easiest."""
        shapes = _by_shape(self._cluster, group.pods, group.uniform)
        for order in (shapes, shapes[::-1])[: max(1, len(shapes))]:
            mark = self._cluster.mark()
            if self._add(order, group.missing, scope, group.uniform) == group.missing:
                yield True
            self._cluster.rewind(mark)
        sharing = [pod for pod in group.pods if pod.device_claims and self._cluster.claims.shared(pod)]
        for slot in self._able(sharing[0], scope) if len(sharing) > 1 else ():
            # What is allocated with the first pod keeps the others near it: so the first is tried on every node.
            if self._left <= 0:
                raise SearchLimitReached
            self._left -= 1
            mark = self._cluster.mark()
            first, there = sharing[0], np.array([slot], dtype=np.int64)
            rest = [pod for pod in group.pods if pod is not first]
            placed = self._add([(self._cluster.shape_of(first), [first])], 1, there, uniform=False)
            if (
                placed
                and placed
                + self._add(_by_shape(self._cluster, rest, uniform=False), group.missing - 1, scope, uniform=False)
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
        """Add pods beyond the minimum, each group inside the scope of its placement."""
        for sub in group.groups:
            self._extend(sub)
        if group.chosen and len(group.pods) > group.missing:
            more = [pod for pod in group.pods if pod.uid not in self._cluster.placements]
            room = len(more) if group.room is None else group.room - group.missing
            if more:
                self._add(_by_shape(self._cluster, more, group.uniform), room, group.scope, group.uniform)

    def _add(self, shapes: list[tuple[Shape, list[Pod]]], most: int, scope: Scope | None, uniform: bool) -> int:
        placed = 0
        for shape, pods in shapes:
            if placed < most:
                placed += fill(self._cluster, self.rows, shape, pods[: most - placed], scope, uniform)
        return placed


def _by_shape(cluster: Cluster, pods: list[Pod], uniform: bool) -> list[tuple[Shape, list[Pod]]]:
    """Pods by shape. The shapes with the most GPUs come first: they are the hardest to place."""
    if len(pods) == 1 or (uniform and pods):
        return [(cluster.shape_of(pods[0]), pods)]
    found: dict[int, tuple[Shape, list[Pod]]] = {}
    for pod, shape in zip(pods, cluster.shapes_of(pods), strict=True):
        found.setdefault(shape.id, (shape, []))[1].append(pod)
    return sorted(found.values(), key=lambda pair: -pair[0].gpus)


def shapes_of(cluster: Cluster, group: Group) -> list[tuple[Shape, int]]:
    """The distinct shapes of the group's waiting pods, including its sub-gangs, with the number of pods of each."""
    if group.uniform and group.pods and not group.groups:
        return [(cluster.shape_of(group.pods[0]), len(group.pods))]
    shapes = cluster.shapes_of(group.all_pods())
    counts = Counter([shape.id for shape in shapes])
    distinct = {shape.id: shape for shape in shapes}
    return [(distinct[key], count) for key, count in counts.items()]


def least(group: Group) -> Group:
    """A copy of the group that has no more pods than it needs."""
    return replace(
        group, groups=[least(sub) for sub in group.groups], room=group.missing, scope=None, chosen=False,
        pods=list(group.pods), held=list(group.held),
    )  # fmt: skip
