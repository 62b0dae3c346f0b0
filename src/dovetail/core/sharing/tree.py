# SPDX-License-Identifier: Apache-2.0
"""The queues as a tree: who is above whom, who may use what, and what is wrong with it.

Rules: the queue `default` exists where nobody wrote it: of weight 1, nothing guaranteed, no limit, for everybody. What
a queue holds for its own queues is its guarantee of a resource class or, where it names none, what these hold. They can
hold no more than its guarantee and its limit; of those that want more in all, the oldest keep theirs. A queue that
cannot be used as it is written takes those below it along, and takes nothing from its siblings.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from dovetail.core import quantities
from dovetail.core.labels import matches
from dovetail.core.model import Problem
from dovetail.core.sharing.records import CPU, DEFAULT_QUEUE, GPU_MEMORY, GPU_SLICES, MEMORY, MODEL_PREFIX, Queue

_FIELDS = {GPU_SLICES: "gpuSlices", GPU_MEMORY: "gpuMemory"}
_MIB = 2**20


class _Shape(Struct, frozen=True):
    """What is worked out once after each change. `held` is what each queue holds by resource class."""

    children: dict[str, tuple[str, ...]]
    order: list[str]
    problems: dict[str, Problem]
    held: dict[str, dict[str, int]]


class Tree:
    """Queues by name, `default` always among them, in the order in which they were first told."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {DEFAULT_QUEUE: Queue(DEFAULT_QUEUE)}
        self._shape: _Shape | None = None
        self._paths: dict[str, tuple[str, ...]] = {}

    def put(self, queue: Queue) -> None:
        self.queues[queue.name] = queue
        self._changed()

    def remove(self, name: str) -> None:
        """Forget the queue; `default` is then as if nobody had written it."""
        if name == DEFAULT_QUEUE:
            self.queues[name] = Queue(name)
        else:
            self.queues.pop(name, None)
        self._changed()

    def _changed(self) -> None:
        self._shape = None
        self._paths.clear()

    def path(self, name: str) -> tuple[str, ...]:
        """The queue and those above it, up to the top; up to where it breaks off, if it does. Raises KeyError."""
        known = self._paths.get(name)
        if known is None:
            known = self._paths[name] = self._path(name)
        return known

    def _path(self, name: str) -> tuple[str, ...]:
        path: dict[str, None] = {}
        queue: Queue | None = self.queues[name]
        while queue is not None and queue.name not in path:
            path[queue.name] = None
            queue = self.queues.get(queue.parent)
        return tuple(path)

    def children(self, name: str) -> tuple[str, ...]:
        """The queues right below; those at the top for ""."""
        return self._known().children.get(name, ())

    def leaf(self, name: str) -> bool:
        """Whether it holds no queues, and so may hold jobs."""
        return not self.children(name)

    def in_order(self) -> list[str]:
        """Each queue once, those below it right after it; at the end those that have no way up to the top."""
        return list(self._known().order)

    def problem(self, name: str) -> Problem | None:
        """Why the queue cannot be used as it is written, or because of those above it."""
        return self._known().problems.get(name)

    def admits(self, name: str, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether pods of a namespace with these labels may use the queue. Raises KeyError."""
        queue = self.queues[name]
        if queue.namespaces is None and queue.namespace_selector is None:
            return True
        return namespace in (queue.namespaces or ()) or matches(queue.namespace_selector, labels)

    def capacity_problem(self, name: str, capacity: Mapping[str, int]) -> str:
        """In words, what the queues at the top hold in all where that is more than there is, for one of them that has
        a part in it; "" for all others. The queues can be used all the same: their jobs wait for nodes."""
        shape = self._known()
        tops = shape.children.get("", ())
        words = []
        for resource in sorted(shape.held.get(name, {})) if name in tops else ():
            held, there = sum(shape.held.get(top, {}).get(resource, 0) for top in tops), capacity.get(resource, 0)
            if shape.held[name][resource] > 0 and held > there:
                words.append(f"{display(resource, held)} of {resource}, of which there are {display(resource, there)}")
        return f"more is guaranteed than the cluster has: {'; '.join(words)}" if words else ""

    def _known(self) -> _Shape:
        if self._shape is None:
            below: dict[str, list[str]] = {}
            for queue in self.queues.values():
                below.setdefault(queue.parent, []).append(queue.name)
            children = {name: tuple(names) for name, names in below.items()}
            order = self._depth_first(children)
            problems = {name: problem for name in order if (problem := self._own_problem(name)) is not None}
            held: dict[str, dict[str, int]] = {}
            for name in reversed(order):
                if name not in problems:
                    held[name] = self._hold(name, children.get(name, ()), held, problems)
            self._pass_on(order, problems)
            self._shape = _Shape(children, order, problems, held)
        return self._shape

    def _depth_first(self, children: dict[str, tuple[str, ...]]) -> list[str]:
        order: dict[str, None] = {}
        lost = [queue.name for queue in self.queues.values() if queue.parent and queue.parent not in self.queues]
        for start in (*children.get("", ()), *lost, *self.queues):
            if start in order:
                continue
            # Only those in a cycle, and below one, are left at the end: the way up leads into it.
            waiting = [self.path(start)[-1]]
            while waiting:
                name = waiting.pop()
                if name not in order:
                    order[name] = None
                    waiting.extend(reversed(children.get(name, ())))
        return list(order)

    def _own_problem(self, name: str) -> Problem | None:
        """What is wrong with the queue but for those above and below it."""
        queue = self.queues[name]
        if queue.problem is not None:
            return queue.problem
        if queue.parent and queue.parent not in self.queues:
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
        """The cycle that the queue is in, from the first of its names on; "" for none. A queue below one is in none."""
        path = self.path(name)
        if self.queues[path[-1]].parent != name:
            return ""
        start = path.index(min(path))
        return " -> ".join((*path[start:], *path[: start + 1]))

    def _hold(
        self, name: str, children: tuple[str, ...], held: dict[str, dict[str, int]], problems: dict[str, Problem]
    ) -> dict[str, int]:
        """What the queue holds. Those right below it that are too much for it get a problem."""
        queue = self.queues[name]
        guarantee, limit = dict(queue.guarantee), dict(queue.limit)
        sums: dict[str, int] = {}
        for child in sorted(children, key=lambda child: (self.queues[child].created_ms, child)):
            amounts = held.get(child, {})
            for resource, amount in sorted(amounts.items()):
                bounds = {"guarantee": guarantee.get(resource), "limit": limit.get(resource)}
                before = sums.get(resource, 0)
                over = {kind: bound for kind, bound in bounds.items() if bound is not None and before + amount > bound}
                if amount > 0 and over:
                    kind, bound = min(over.items(), key=lambda item: item[1])
                    rule = (
                        f"with the {display(resource, before)} of older queues more than the {kind} of {name}, "
                        f"{display(resource, bound)}; at most {display(resource, max(0, bound - before))} is left"
                    )
                    problems[child] = Problem(_field(resource), display(resource, amount), rule)
                    break
            else:
                for resource, amount in amounts.items():
                    sums[resource] = sums.get(resource, 0) + amount
        return sums | guarantee

    def _pass_on(self, order: list[str], problems: dict[str, Problem]) -> None:
        """Whoever is below a queue that cannot be used cannot be used either."""
        source: dict[str, str] = {}
        for name in order:
            parent = self.queues[name].parent
            if name not in problems and parent in problems:
                source[name] = source.get(parent, parent)
                rule = f"the queue {source[name]} above it cannot be used: {problems[source[name]]}"
                problems[name] = Problem("spec.parent", parent, rule)


def _field(resource: str) -> str:
    model = resource.removeprefix(MODEL_PREFIX)
    return "spec.guarantee." + (f"models.{model}" if model != resource else _FIELDS.get(resource, resource))


def display(resource: str, amount: int) -> str:
    """The amount as it is written in a Queue."""
    if resource in (MEMORY, GPU_MEMORY):
        return quantities.display(MEMORY, amount * _MIB if resource == GPU_MEMORY else amount)
    return str(amount) if resource == GPU_SLICES else quantities.display(CPU, amount)
