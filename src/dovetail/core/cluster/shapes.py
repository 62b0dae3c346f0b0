# SPDX-License-Identifier: Apache-2.0
"""Shapes: interned requests. Pods that ask for identical things share one shape and all its cached answers.

Rules: what is worked out for a shape is forgotten with it: when no pod asks for it any more, and others went since.
A pod whose extended resources devices may stand in for has a shape of several forms. On a node that offers them
all it is what it asks for; on others it asks for less, and wants a claim for what the node does not offer. Forms are
plain shapes, shared with pods that ask for just that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from dovetail.core.cluster.columns import Index
from dovetail.core.cluster.nodes import UNOFFERED, Nodes
from dovetail.core.devices.mig.geometry import RESOURCE_PREFIX
from dovetail.core.devices.sharing import Sharing
from dovetail.core.dra.extended import claim_for
from dovetail.core.dra.records import ClaimSpec
from dovetail.core.model import GPU, PODS, SHARED_GPU, Container, Request
from dovetail.core.parts import light

UNASKED = -(2**62)
"""The floor of a resource that is not asked for: what is left may be anything. Zero requests never fail, even where
others hold more than a node has (NodeResourcesFit)."""


MOST_UNUSED = 1024
"""Requests that are remembered although no pod has them: jobs come again."""
Classes = tuple[tuple[str, str], ...]
"""Device classes by the resources that their devices stand in for, sorted."""


class StandIns(Struct, frozen=True):
    """What a shape of several forms is made of. `resources` are those of the classes, `forms` what was asked for so
    far, by the resources (as bits) that a node lacks. With `made` the claim has been allocated already."""

    classes: Classes
    containers: tuple[Container, ...]
    made: bool
    resources: tuple[str, ...]
    forms: dict[int, Shape] = {}


class Shape:
    """`need[r, 0]` is the amount of resource r (one of `pods` included), `floor[r, 0]` the least that may be left after
    it; both reach over the first `width` resources, which hold all that is asked. `unoffered` are the resources of
    which no node has ever offered any; together they count as one. `gpus` are the whole GPUs, `shared` the replicas of
    shared ones, `slices` the MIG instances by resource; `fraction` says whether it tells how much of a GPU it needs.
    `wants` are the claims for which devices are to be allocated with the pod. Of a shape of several forms (`stand_ins`)
    all this is what it is where everything is counted. Of one that is `light` answers are worth remembering."""

    __slots__ = (
        "floor", "fraction", "gpus", "id", "light", "need", "request", "shared", "slices", "stand_ins", "unoffered",
        "wants", "width",
    )  # fmt: skip

    def __init__(
        self, number: int, request: Request, nodes: Nodes, wants: tuple[ClaimSpec, ...],
        stand_ins: StandIns | None = None,
    ) -> None:  # fmt: skip
        amounts = dict(request.resources)
        self.id = number
        self.request = request
        self.measure(nodes)
        self.gpus = amounts.get(GPU, 0)
        self.shared = amounts.get(SHARED_GPU, 0)
        self.fraction = bool(request.gpu_milli or request.gpu_memory_mib)
        self.slices = tuple([amount for amount in request.resources if amount[0].startswith(RESOURCE_PREFIX)])
        self.wants = wants
        self.stand_ins = stand_ins
        self.light = light(request)

    def measure(self, nodes: Nodes) -> None:
        """What it asks for in the columns that there are."""
        offered = nodes.resources
        amounts = {nodes.column(name): amount for name, amount in self.request.resources if amount > 0}
        self.unoffered = tuple([name for name, amount in self.request.resources if amount > 0 and name not in offered])
        if self.unoffered:
            amounts[nodes.column(UNOFFERED)] = 1
        amounts[offered[PODS]] = 1
        self.width = len(offered)
        self.need: NDArray[np.int64] = np.zeros((self.width, 1), dtype=np.int64)
        self.floor: NDArray[np.int64] = np.full((self.width, 1), UNASKED, dtype=np.int64)
        for column, amount in amounts.items():
            self.need[column] = amount
            self.floor[column] = 0

    def replicas(self, sharing: Sharing) -> int:
        """How many replicas it asks for on a node that shares its GPUs so."""
        return dict(self.request.resources).get(sharing.resource, 0)

    @property
    def needs_links(self) -> bool:
        """Whether several GPUs must be joined by NVLinks."""
        return self.request.nvlink_required and self.gpus > 1


class Shapes:
    """`retain` and `release` a request as pods with it become known and are gone. Of the requests that nobody has any
    more the last ones are remembered, unless they say a lot."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._made = 0
        self._users: dict[Request, int] = {}
        self._unused: dict[Request, None] = {}
        """Requests without users, who lost theirs first at first."""
        self._of: dict[Request, dict[tuple[ClaimSpec, ...], Shape]] = {}
        self._plain: dict[Request, Shape] = {}
        """Those of them without claims, who are asked for most."""
        self._by_stand_ins: dict[int, dict[tuple[Classes, tuple[Container, ...], bool], Shape]] = {}
        """By the number of the plain shape."""
        self._less: dict[Request, dict[tuple[str, ...], Request]] = {}
        self.forgotten: Callable[[int], None] = _nobody
        """Hears the number of each shape that is forgotten."""

    def retain(self, request: Request) -> None:
        """A pod with this request became known."""
        users = self._users.get(request, 0)
        self._users[request] = users + 1
        if not users:
            self._unused.pop(request, None)

    def release(self, request: Request) -> None:
        """A pod with this request is gone, or has another one."""
        users = self._users[request] - 1
        if users:
            self._users[request] = users
            return
        del self._users[request]
        if request in self._of:
            self._unused[request] = None
            self._forget_some()

    def _forget_some(self) -> None:
        """Those at once that say a lot, of the others those that are unused for longest."""
        last = next(reversed(self._unused))
        if not light(last):
            self._forget(last)
        while len(self._unused) > MOST_UNUSED:
            self._forget(next(iter(self._unused)))

    def _forget(self, request: Request) -> None:
        self._unused.pop(request, None)
        self._plain.pop(request, None)
        for shape in self._of.pop(request, {}).values():
            self.forgotten(shape.id)
            for other in self._by_stand_ins.pop(shape.id, {}).values():
                self.forgotten(other.id)
        for less in self._less.pop(request, {}).values():
            if less not in self._users:
                self._forget(less)

    def of(self, request: Request, wants: tuple[ClaimSpec, ...] = ()) -> Shape:
        """The shape of a request and of what its claims ask for: the same object for equal ones."""
        if not wants and (plain := self._plain.get(request)) is not None:
            return plain
        shapes = self._of.get(request)
        if shapes is None:
            shapes = self._of[request] = {}
            if request not in self._users:
                self._unused[request] = None
                while len(self._unused) > MOST_UNUSED:
                    self._forget(next(iter(self._unused)))
        shape = shapes.get(wants)
        if shape is None:
            shape = shapes[wants] = Shape(self._next_id(), request, self._nodes, wants)
            if not wants:
                self._plain[request] = shape
        return shape

    def without(self, request: Request, names: tuple[str, ...], wants: tuple[ClaimSpec, ...] = ()) -> Shape:
        """The shape of a pod that has these resources by a claim."""
        if not names:
            return self.of(request, wants)
        known = self._less.setdefault(request, {})
        less = known.get(names)
        if less is None:
            resources = tuple(amount for amount in request.resources if amount[0] not in names)
            less = known[names] = replace(request, resources=resources)
        return self.of(less, wants)

    def of_several(self, plain: Shape, classes: Classes, containers: tuple[Container, ...], made: bool) -> Shape:
        """The shape of a pod for whose resources devices of these classes stand in where a node offers none."""
        known, key = self._by_stand_ins.setdefault(plain.id, {}), (classes, containers, made)
        shape = known.get(key)
        if shape is None:
            stand_ins = StandIns(classes, containers, made, tuple([name for name, _ in classes]))
            shape = known[key] = Shape(self._next_id(), plain.request, self._nodes, plain.wants, stand_ins)
        return shape

    def known(self) -> Iterator[Shape]:
        """All that are remembered."""
        for shapes in self._of.values():
            yield from shapes.values()
        for several in self._by_stand_ins.values():
            yield from several.values()

    def lacking(self, shape: Shape, index: Index) -> NDArray[np.int64]:
        """Of the resources of a shape of several forms those that each node does not offer, as bits."""
        assert shape.stand_ins is not None, "a shape of one form"
        bits = np.zeros(len(self._nodes.usable[index]), dtype=np.int64)
        for i, name in enumerate(shape.stand_ins.resources):
            bits |= (self._nodes.allocatable[self._nodes.column(name), index] == 0).astype(np.int64) << i
        return bits

    def form(self, shape: Shape, lacking: int) -> Shape:
        """What a shape is on nodes that lack these of its resources."""
        stand_ins = shape.stand_ins
        assert stand_ins is not None, "a shape of one form"
        form = stand_ins.forms.get(lacking)
        if form is None:
            classes = dict(one for i, one in enumerate(stand_ins.classes) if lacking >> i & 1)
            wants = shape.wants
            if classes and not stand_ins.made:
                wants = (*wants, claim_for(stand_ins.containers, classes)[0])
            form = stand_ins.forms[lacking] = self.without(shape.request, tuple(classes), wants)
        return form

    def at(self, shape: Shape, slot: int) -> Shape:
        """What the shape is on this node."""
        if shape.stand_ins is None:
            return shape
        bits = 0
        for i, name in enumerate(shape.stand_ins.resources):
            bits |= (not self._nodes.allocatable[self._nodes.column(name), slot]) << i
        return self.form(shape, bits)

    def _next_id(self) -> int:
        self._made += 1
        return self._made


def _nobody(number: int) -> None:
    """Nobody listens."""
