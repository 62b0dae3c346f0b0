# SPDX-License-Identifier: Apache-2.0
"""The tree of queues: parents and children, the namespaces that may use a queue, and the faults in it.

Rules: the queue `default` always exists. Without an object it has weight 1, no guarantee and no limit, and is open to
all namespaces. Guarantees that exceed what the parent can provide are scaled down (`guarantees`), and the status
reports it. The queues below one that cannot be used cannot be used either; its siblings lose nothing. The queues below
one that is stopped, or has used its budget, are stopped.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from dovetail.core import quantities
from dovetail.core.labels import matches
from dovetail.core.model import Problem
from dovetail.core.queues.guarantees import Guarantees, guarantees
from dovetail.core.queues.types import CPU, DEFAULT_QUEUE, GPU_MEMORY, GPU_SLICES, MEMORY, MODEL_PREFIX, Queue

_BOUNDS = {"guarantee": "what counts of its own guarantee", "limit": "its limit"}
_FIELDS = {GPU_SLICES: "gpuSlices", GPU_MEMORY: "gpuMemory"}
_MIB = 2**20


class _Shape(Struct, frozen=True):
    """Derived from the queues after each change."""

    children: dict[str, tuple[str, ...]]
    weights: dict[str, int]
    order: list[str]
    problems: dict[str, Problem]
    stops: dict[str, Queue]
    budgeted: tuple[Queue, ...]


class Tree:
    """Queues by name, always with `default`, in the order in which they were first put: `written` as they were put,
    `queues` with their effective guarantees."""

    def __init__(self) -> None:
        self.written: dict[str, Queue] = {DEFAULT_QUEUE: Queue(DEFAULT_QUEUE)}
        self.used_up: dict[str, int] = {}
        """The queues that have used their budget, each with the end of the period in epoch ms (see `budgets`)."""
        self._shape: _Shape | None = None
        self._effective: Guarantees | None = None
        self._queues: dict[str, Queue] | None = None
        self._paths: dict[str, tuple[str, ...]] = {}

    @property
    def queues(self) -> Mapping[str, Queue]:
        if self._queues is None:
            found = self._guarantees()
            self._queues = {name: found.of(queue) for name, queue in self.written.items()}
        return self._queues

    def put(self, queue: Queue) -> None:
        self.written[queue.name] = queue
        self._changed()

    def remove(self, name: str) -> None:
        """Forget the queue. `default` returns to its state without an object."""
        if name == DEFAULT_QUEUE:
            self.written[name] = Queue(name)
        else:
            self.written.pop(name, None)
        self._changed()

    def _changed(self) -> None:
        self._shape = None
        self._effective = None
        self._queues = None
        self._paths.clear()

    def path(self, name: str) -> tuple[str, ...]:
        """The queue and those above it up to the top, or up to where the path breaks off. Raises KeyError."""
        known = self._paths.get(name)
        if known is None:
            known = self._paths[name] = self._path(name)
        return known

    def known_path(self, name: str) -> tuple[str, ...]:
        """As `path`; empty where the queue does not exist."""
        return self.path(name) if name in self.written else ()

    def _path(self, name: str) -> tuple[str, ...]:
        path: dict[str, None] = {}
        queue: Queue | None = self.written[name]
        while queue is not None and queue.name not in path:
            path[queue.name] = None
            queue = self.written.get(queue.parent)
        return tuple(path)

    def children(self, name: str) -> tuple[str, ...]:
        """The queues right below this one; for "" those at the top."""
        return self._known().children.get(name, ())

    def weight_below(self, name: str) -> int:
        """The weights of the queues right below this one, in all; those below 0 count nothing."""
        return self._known().weights.get(name, 0)

    def leaf(self, name: str) -> bool:
        """Whether no queues are below it, nor are to be, so that it may hold jobs."""
        queue = self.written.get(name)
        return not self.children(name) and not (queue is not None and queue.planes)

    def in_order(self) -> list[str]:
        """Each queue once, those below it right after it; at the end those without a path to the top."""
        return list(self._known().order)

    def problem(self, name: str) -> Problem | None:
        """The reason why the queue cannot be used, by its own fields or because of those above it; None if it can."""
        return self._known().problems.get(name)

    def set_used_up(self, used_up: dict[str, int]) -> bool:
        """Set the queues that have used their budget. Returns whether that changes which are stopped."""
        before, self.used_up = self.used_up, used_up
        if before.keys() == used_up.keys():
            return False
        self._shape = None
        return True

    def budgeted(self) -> tuple[Queue, ...]:
        """The queues that have a budget, in GPU-hours or in money."""
        return self._known().budgeted

    def stopped_by(self, name: str) -> Queue | None:
        """The queue that stops this one, by its spec or as it has used its budget: itself or one above it; of several
        one that is drained, then the nearest. None where its jobs start."""
        return self._known().stops.get(name)

    def stopped(self) -> Mapping[str, Queue]:
        """By each stopped queue, the queue that stops it."""
        return self._known().stops

    def admits(self, name: str, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether pods of a namespace with these labels may use the queue. Raises KeyError."""
        queue = self.written[name]
        if queue.namespaces is None and queue.namespace_selector is None:
            return True
        return namespace in (queue.namespaces or ()) or matches(queue.namespace_selector, labels)

    def capacity_problem(self, name: str, capacity: Mapping[str, int]) -> str:
        """A message where the top queues are guaranteed more than the cluster has, for each of them that has a part in
        it; "" for all others. Such queues can be used: their jobs wait for nodes."""
        tops = self.children("")
        words = []
        effective = self._guarantees().effective if name in tops else {}
        for resource in sorted(effective.get(name, {})):
            held, there = sum(effective.get(top, {}).get(resource, 0) for top in tops), capacity.get(resource, 0)
            if effective[name][resource] > 0 and held > there:
                words.append(f"{display(resource, held)} of {resource}, of which there are {display(resource, there)}")
        return f"more is guaranteed than the cluster has: {'; '.join(words)}" if words else ""

    def scaled_down(self, name: str) -> str:
        """A message where the guarantee of the queue, or of those right below it, is scaled down; "" where not."""
        words, queue = [], self.written.get(name)
        written = dict(queue.guarantee) if queue is not None else {}
        found = self._guarantees()
        for one in found.scaled:
            written_below = f"{display(one.resource, one.written)} of {one.resource}"
            about = f"the queues below {one.parent} are guaranteed {written_below} in all"
            bound = f"{display(one.resource, one.bound)} ({_BOUNDS[one.by]})"
            if one.parent == name:
                words.append(f"{about}, of which {bound} count: each of them gets its part")
            elif (
                name in found.effective and queue is not None and queue.parent == one.parent and one.resource in written
            ):
                counts = found.effective[name][one.resource]
                if counts == written[one.resource]:
                    continue
                own = f"of its guarantee of {display(one.resource, written[one.resource])} {one.resource}"
                words.append(f"{own} only {display(one.resource, counts)} count: {about}, of which {bound} count")
        return "; ".join(words)

    def _guarantees(self) -> Guarantees:
        if self._effective is None:
            shape = self._known()
            usable = [name for name in shape.order if name not in shape.problems]
            self._effective = guarantees(self.written, usable, shape.children)
        return self._effective

    def _known(self) -> _Shape:
        if self._shape is None:
            below: dict[str, list[str]] = {}
            for queue in self.written.values():
                below.setdefault(queue.parent, []).append(queue.name)
            children = {name: tuple(names) for name, names in below.items()}
            order = self._depth_first(children)
            problems = {name: problem for name in order if (problem := self._own_problem(name)) is not None}
            self._pass_on(order, problems)
            weights = {name: sum([max(0, self.written[one].weight) for one in names]) for name, names in below.items()}
            budgeted = tuple([one for one in self.written.values() if one.budget is not None or one.money is not None])
            self._shape = _Shape(children, weights, order, problems, self._stops(), budgeted)
        return self._shape

    def _depth_first(self, children: dict[str, tuple[str, ...]]) -> list[str]:
        order: dict[str, None] = {}
        lost = [queue.name for queue in self.written.values() if queue.parent and queue.parent not in self.written]
        for start in (*children.get("", ()), *lost, *self.written):
            if start in order:
                continue
            # Only queues in a cycle, and those below one, are left at the end: their path leads into it.
            waiting = [self.path(start)[-1]]
            while waiting:
                name = waiting.pop()
                if name not in order:
                    order[name] = None
                    waiting.extend(reversed(children.get(name, ())))
        return list(order)

    def _stops(self) -> dict[str, Queue]:
        found: dict[str, Queue] = {}
        stopping = {name for name, queue in self.written.items() if queue.stop or name in self.used_up}
        if stopping:
            for name in self.written:
                stops = [self.written[above] for above in self.path(name) if above in stopping]
                if stops:
                    found[name] = next((one for one in stops if one.stop == "HoldAndDrain"), stops[0])
        return found

    def _own_problem(self, name: str) -> Problem | None:
        """The fault of the queue itself, leaving out the queues above and below it."""
        queue = self.written[name]
        if queue.problem is not None:
            return queue.problem
        if queue.parent and queue.parent not in self.written:
            return Problem("spec.parent", queue.parent, "no queue of that name exists")
        cycle = self._cycle(name)
        if cycle:
            return Problem("spec.parent", queue.parent, f"the queues are above each other in a cycle: {cycle}")
        if queue.weight < 1:
            return Problem("spec.weight", str(queue.weight), "must be 1 or more")
        if queue.half_life_ms < 1:
            return Problem("spec.halfLife", f"{queue.half_life_ms}ms", "must be above 0")
        limit = dict(queue.limit)
        for resource, amount in queue.guarantee:
            if amount > limit.get(resource, amount):
                rule = f"more than the limit of the queue itself, {display(resource, limit[resource])}"
                return Problem(_field(resource), display(resource, amount), rule)
        return None

    def _cycle(self, name: str) -> str:
        """The cycle that the queue is part of, from the first of its names on; "" for none. A queue that is only below
        a cycle is not part of it."""
        path = self.path(name)
        if self.written[path[-1]].parent != name:
            return ""
        start = path.index(min(path))
        return " -> ".join((*path[start:], *path[: start + 1]))

    def _pass_on(self, order: list[str], problems: dict[str, Problem]) -> None:
        """Report each queue below one that cannot be used."""
        source: dict[str, str] = {}
        for name in order:
            parent = self.written[name].parent
            if name not in problems and parent in problems:
                source[name] = source.get(parent, parent)
                rule = f"the queue {source[name]} above it cannot be used: {problems[source[name]]}"
                problems[name] = Problem("spec.parent", parent, rule)


def _field(resource: str) -> str:
    model = resource.removeprefix(MODEL_PREFIX)
    return "spec.guarantee." + (f"models.{model}" if model != resource else _FIELDS.get(resource, resource))


def display(resource: str, amount: int) -> str:
    """The amount as a Queue object writes it."""
    if resource in (MEMORY, GPU_MEMORY):
        return quantities.display(MEMORY, amount * _MIB if resource == GPU_MEMORY else amount)
    return str(amount) if resource == GPU_SLICES else quantities.display(CPU, amount)
