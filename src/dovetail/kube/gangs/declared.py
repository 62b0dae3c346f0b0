# SPDX-License-Identifier: Apache-2.0
"""The core's gangs, from the declarations of an object and of its pods.

Rules
- A pod belongs to one declared thing: a PodGroup, a workload object that owns it, or a name that the pods share. The
  declared thing becomes one gang, or a root with a sub-gang for each of its parts.
- Parts that are made one after another (the next when the former runs) cannot wait for each other: then each part is a
  gang of its own. A part that needs no pod is no sub-gang; its pods, like those of unknown parts, go to the root.
- A part can lie in another one, whose levels then hold for both. So can a whole declared thing: the group of a
  LeaderWorkerSet in a role of the object that made it (`Membership.above`).
- Our annotations count on the object first, then on the pods, which must agree. Levels hold for the whole declared
  thing; `gang-min` and `gang-max` replace its numbers, where it has no parts. Only the pod itself declares its part of
  a GPU.
- Numbers that contradict each other give a Problem, and then the gang stays pending; so do too many parts.
Ids are `<kind>.<group>/<namespace>/<name>`, and `/<part>` for a sub-gang: the same after every restart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.model import Gang, Pod, Problem
from dovetail.kube.api.resources import Resource
from dovetail.kube.translate.annotations import (
    ASLEEP_MEMORY,
    FENCE,
    FRACTION,
    ISOLATION,
    LEASE,
    MEMORY,
    NOTHING,
    PREFIX,
    SLEEP_ENGINE,
    WorkloadOptions,
)
from dovetail.kube.translate.limits import MOST_SUBGANGS, too_many
from dovetail.kube.translate.problems import first_of, shown

T = TypeVar("T")

_MOST_SHOWN = 4

NAMED = "gang.dovetail.dev"
"""Where the ids begin of gangs that exist only in their pods' annotations."""


class OwnerRef(Struct, frozen=True, cache_hash=True):
    """A workload object to be fetched: GET `resource.path(namespace, name)`."""

    resource: Resource
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.resource.kind} {self.namespace}/{self.name}"


class Membership(Struct, frozen=True):
    """The gang of a pod, from the pod alone. `owner` is the object that must be read for the rest. With `alone` the pod
    is in no gang, and does not wait for the object. `above` is where the gang itself lies; it does not count where its
    owner does not exist."""

    id: str
    namespace: str
    name: str
    part: str = ""
    owner: OwnerRef | None = None
    alone: bool = False
    above: Membership | None = None


class DeclaredPart(Struct, frozen=True):
    """A role in a workload. `pods` is the number of its pods, None if no object has it. `within` names the part that it
    lies in ("": the workload itself); such a part has no pods of its own, and lies in no other. `min_groups`: it holds
    gangs that others declare, and starts with so many. `required` and `preferred` are as in Gang."""

    name: str
    min_count: int = 0
    pods: int | None = None
    within: str = ""
    min_groups: int = 0
    required: tuple[str, ...] = ()
    preferred: tuple[str, ...] = ()


class Declared(Struct, frozen=True):
    """A declared workload. `gang` is the gang as far as the object declares it, `options` are its annotations; `pods`
    is the number of all pods, `min_field` the field that the minimum comes from, `deadline_ms` the limit of its run
    time (0: none). With `alone` its pods are no gang."""

    gang: Gang
    min_field: str
    parts: tuple[DeclaredPart, ...] = ()
    together: bool = True
    pods: int | None = None
    options: WorkloadOptions = NOTHING
    deadline_ms: int = 0
    alone: bool = False

    def gang_of(self, part: str) -> str:
        """The id of the gang that a pod of this part is in."""
        if self.alone:
            return ""
        known = any(one.name == part and (one.min_count or one.min_groups) for one in self.parts)
        return f"{self.gang.id}/{part}" if known else self.gang.id


_PASSED_ON = (
    "queue", "user", "nvlink", "max_runtime_ms", "checkpoint_interval_ms", "startup_ms", "preemptible", "movable",
    "hold", "headroom", "headroom_return_ms",
)  # fmt: skip
"""What an object declares for the pods of the objects that it makes. Levels and numbers are of its own gang."""


def under(declared: Declared, above: Declared) -> Declared:
    """The declaration, with what that of the object above it declares for the same pods where it has nothing."""
    own, over = declared.options, above.options
    if over is NOTHING:
        return declared
    passed = {one: getattr(over, one) for one in _PASSED_ON if getattr(own, one) == getattr(NOTHING, one)}
    return replace(declared, options=replace(own, **passed))


def divided(field: str, parts: Sequence[DeclaredPart]) -> tuple[tuple[DeclaredPart, ...], Problem | None]:
    """The parts of a declared workload; where there are too many none, and a Problem: then it waits as one gang."""
    problem = too_many(field, len(parts), MOST_SUBGANGS)
    return (() if problem is not None else tuple(parts)), problem


class Begun(Struct, frozen=True):
    """A gang as of the bind of its running pods: its minimum number of pods, and its priority (None: that of its
    pods)."""

    min_count: int
    priority: int | None

    def keep(self, gang: Gang) -> Gang:
        """The gang, with no more protection for these pods than they had when they were bound."""
        least = min(gang.min_count, self.min_count) if self.min_count else gang.min_count
        lower = gang.priority is not None and self.priority is not None and gang.priority < self.priority
        priority = gang.priority if lower else self.priority
        if (least, priority) == (gang.min_count, gang.priority):
            return gang
        return replace(gang, min_count=least, priority=priority)

    def and_of(self, other: Begun) -> Begun:
        """The smaller protection of two."""
        priorities = [one.priority for one in (self, other) if one.priority is not None]
        return Begun(min(self.min_count, other.min_count), min(priorities, default=None))


_NOBODY: Mapping[str, Begun] = {}

PAIRED_ROLES = ("decode", "prefill")
"""Roles of pods of which neither serves without the other."""


def restored(member: Membership | None, pod: Pod) -> Membership | None:
    """The gang of a bound pod, by its record (`pod.gang`); `member` is that of its metadata now, which counts as far as
    it agrees."""
    if not pod.gang:
        return member if member is not None and member.alone else None
    if member is not None and pod.gang in (member.id, f"{member.id}/{member.part}"):
        return member
    return Membership(pod.gang, pod.namespace, pod.gang.rpartition("/")[2])


def named(member: Membership) -> Declared:
    """A gang that only its pods declare; with roles, if the pod has one of those that need each other."""
    gang = Gang(member.id, member.namespace, member.name, min_count=0)
    roles = PAIRED_ROLES if member.part in PAIRED_ROLES else ()
    return Declared(gang, _path("gang-min"), tuple([DeclaredPart(role, 1) for role in roles]))


def lonely(options: WorkloadOptions, member: Membership | None = None) -> Problem | None:
    """The problems of a pod that is in no gang, or of the object of `member`: also that it declares how many pods start
    together."""
    problems = list(options.problems)
    for key, number in (("gang-min", options.gang_min), ("gang-max", options.gang_max)):
        if number is not None:
            problems.append(Problem(_path(key), str(number), f"the pod is in no gang: name one in {_path('gang')}"))
    problem = first_of(problems)
    if problem is None or member is None:
        return problem
    return replace(problem, field=f"{member.owner} {problem.field}")


def records(
    declared: Declared, members: Collection[WorkloadOptions], bound: Mapping[str, Begun] = _NOBODY, parent: str = ""
) -> list[Gang]:
    """The core's gangs for a declared workload, the root first; `members` are the declarations of its pods, `bound` the
    gangs (by id) as of the bind of their pods, `parent` the gang that it lies in."""
    if parent:
        declared = replace(declared, gang=replace(declared.gang, parent=parent))
    now = _records(declared, members)
    if not bound:
        return now
    # Above sub-gangs no pods are bound, and the priority is one for all of them.
    above = Begun(0, reduce(Begun.and_of, bound.values()).priority)
    return [bound.get(gang.id, above).keep(gang) for gang in now]


def _records(declared: Declared, members: Collection[WorkloadOptions]) -> list[Gang]:
    if declared.alone:
        return []
    gang, own = declared.gang, declared.options
    problems = [gang.problem] if gang.problem is not None else []
    problems += own.problems
    problems += _of_pods(own)
    required = _agreed("topology-required", own.required, (w.required for w in members), problems)
    preferred = _agreed("topology-preferred", own.preferred, (w.preferred for w in members), problems)
    spread = _agreed("topology-spread", own.spread, (w.spread for w in members), problems)
    minimum = _agreed("gang-min", own.gang_min, (w.gang_min for w in members), problems)
    maximum = _agreed("gang-max", own.gang_max, (w.gang_max for w in members), problems)
    parts = _distinct(_needed(declared), declared.min_field, problems)
    gang = replace(
        gang,
        min_count=0 if parts else minimum or gang.min_count,
        max_count=maximum or gang.max_count,
        required=tuple(dict.fromkeys((*gang.required, *required))),
        preferred=tuple(dict.fromkeys((*gang.preferred, *preferred))),
        spread=spread,
    )
    if not parts:
        _check(gang, _path("gang-min") if minimum else declared.min_field, declared.pods, problems)
        return [replace(gang, problem=first_of(problems))]
    names = ", ".join(part.name for part in parts)
    for key, number in (("gang-min", minimum), ("gang-max", maximum)):
        if number:
            problems.append(Problem(_path(key), str(number), f"cannot be divided between the sub-gangs {names}"))
    below = [_sub_gang(gang, part, declared, problems) for part in parts]
    return [replace(g, problem=first_of(problems)) for g in (gang, *below)]


def _needed(declared: Declared) -> list[DeclaredPart]:
    """The parts that become sub-gangs: without those that need no pod, and, where each part is a gang of its own,
    without those that only hold others."""
    holding = {part.within for part in declared.parts if part.min_count} if declared.together else set()
    return [part for part in declared.parts if part.min_count or part.min_groups or part.name in holding]


def _distinct(parts: list[DeclaredPart], field: str, problems: list[Problem]) -> list[DeclaredPart]:
    """The parts, of two with one name the last one, with a Problem: both would be one sub-gang."""
    found = {part.name: part for part in parts}
    if len(found) < len(parts):
        name = next(part.name for part in parts if found[part.name] is not part)
        problems.append(Problem(field, shown(name), "is the name of two of them; each needs its own"))
    return list(found.values())


def _sub_gang(root: Gang, part: DeclaredPart, declared: Declared, problems: list[Problem]) -> Gang:
    outer = next((one for one in declared.parts if one.name == part.within), DeclaredPart(""))
    # Without a common gang each part is inside the levels of all that it lies in.
    around = () if declared.together else (root, outer)
    found = replace(
        root,
        id=f"{root.id}/{part.name}",
        name=f"{root.name}/{part.name}",
        min_count=part.min_count,
        max_count=None,
        parent=(f"{root.id}/{part.within}" if part.within else root.id) if declared.together else root.parent,
        min_groups=part.min_groups,
        required=tuple(dict.fromkeys(key for one in (*around, part) for key in one.required)),
        preferred=tuple(dict.fromkeys(key for one in (*around, part) for key in one.preferred)),
        # Of parts that are made one after another the first is spread: the next ones would keep away from it.
        spread=root.spread if not declared.together and part is declared.parts[0] else "",
    )
    if part.min_count:
        _check(found, declared.min_field, part.pods, problems)
    return found


def _check(gang: Gang, min_field: str, pods: int | None, problems: list[Problem]) -> None:
    low, high = gang.min_count, gang.max_count
    if low < 1:
        problems.append(Problem(min_field, str(low), "must be set, and at least 1; nearest valid value: 1"))
    elif pods is not None and low > pods:
        rule = f"is more than the {pods} pods that there will be; nearest valid value: {max(pods, 1)}"
        problems.append(Problem(min_field, str(low), rule))
    if high is not None and high < low:
        rule = f"must be at least the minimum, which is {low}; nearest valid value: {low}"
        problems.append(Problem(_path("gang-max"), str(high), rule))


def _agreed(key: str, own: T, declared_values: Iterable[T], problems: list[Problem]) -> T:
    """The object's own value, else the one that its pods declare."""
    values = sorted({value for value in declared_values if value}, key=str)
    if own or not values:
        return own
    if len(values) > 1:
        some = " and ".join([str(value) for value in values[:_MOST_SHOWN]])
        problems.append(Problem(_path(key), some, "the pods of one gang must have the same value"))
    return values[0]


def _of_pods(own: WorkloadOptions) -> Iterable[Problem]:
    """Problems for declarations on an object that only its pods can make."""
    for key, value in (
        (MEMORY, own.gpu_memory_mib),
        (FRACTION, own.gpu_milli),
        (ASLEEP_MEMORY, own.gpu_asleep_mib),
        (SLEEP_ENGINE, own.sleep_engine),
        (ISOLATION, own.isolation),
        (LEASE, own.lease),
        (FENCE, own.fence),
    ):
        if value:
            yield Problem(_path(key), str(value), "is of a pod: write it in the metadata of the pod template")


def _path(key: str) -> str:
    return f"metadata.annotations[{PREFIX}{key}]"
