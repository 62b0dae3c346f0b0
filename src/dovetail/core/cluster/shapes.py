# SPDX-License-Identifier: Apache-2.0
"""Shapes: interned requests. Pods that ask for identical things share one shape and all its cached answers.

Rules: what is worked out for a shape is forgotten with it: when no pod asks for it any more, and others went since.
A pod whose extended resources devices may stand in for has a shape of several forms. On a node that offers them
all it is what it asks for; on others it asks for less, and wants a claim for what the node does not offer. Forms are
plain shapes, shared with pods that ask for just that. Pods that end early may use nodes that close (`maintenances`):
they have a shape of their own for each time until when they need a node at most. So have pods of gangs to which spares
are open (`spares`), by these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from dovetail.core.cluster.columns import Index
from dovetail.core.cluster.nodes import UNOFFERED, Nodes
from dovetail.core.cluster.rejections import FOR_EVER_MS
from dovetail.core.complexity import light
from dovetail.core.devices.gpu_sharing import Sharing
from dovetail.core.devices.mig.geometry import RESOURCE_PREFIX
from dovetail.core.dra.extended import claim_for
from dovetail.core.dra.types import ClaimSpec
from dovetail.core.model import GPU, PODS, SHARED_GPU, Container, Request

UNASKED = -(2**62)
"""The floor of a resource that is not asked for: what is left may be anything. Zero requests never fail, even where
others hold more than a node has (NodeResourcesFit)."""


MOST_UNUSED = 1024
"""Requests that are remembered although no pod has them: jobs come again."""
_MOST_OPENED = 16
"""Shapes of one request that are remembered for different spares."""
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
    shared ones, `slices` the MIG instances by resource; `fraction`: whether it requests a part of a GPU.
    `wants` are the claims for which devices are to be allocated with the pod. Of a shape of several forms (`stand_ins`)
    all this is what it is where everything is counted. Of one that is `light` answers are worth remembering. Nodes that
    close before `until_ms` are of no use to it; it may use the spares in `opened` (slots)."""

    __slots__ = (
        "floor", "fraction", "gpus", "id", "light", "need", "opened", "request", "shared", "slices", "stand_ins",
        "unoffered", "until_ms", "wants", "width",
    )  # fmt: skip

    def __init__(
        self, number: int, request: Request, nodes: Nodes, wants: tuple[ClaimSpec, ...],
        stand_ins: StandIns | None = None, until_ms: int = FOR_EVER_MS, opened: frozenset[int] = frozenset(),
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
        self.until_ms = until_ms
        self.opened = opened
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


class _Asked:
    """What is known of a request: how many pods have it, its shapes by what their claims want, and the requests that
    are left of it where pods have some of the resources by a claim."""

    __slots__ = ("less", "shapes", "users")

    def __init__(self) -> None:
        self.users = 0
        self.shapes: dict[tuple[ClaimSpec, ...], Shape] = {}
        self.less: dict[tuple[str, ...], Request] = {}


class Shapes:
    """`retain` and `release` a request as pods with it become known and are gone. Of the requests that nobody has any
    more the last ones are remembered, unless they are long."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._made = 0
        self._asked: dict[Request, _Asked] = {}
        self._unused: dict[Request, None] = {}
        """Requests without users, in the order in which they lost the last one."""
        self._by_stand_ins: dict[int, dict[tuple[Classes, tuple[Container, ...], bool], Shape]] = {}
        """By the number of the plain shape."""
        self._by_until: dict[int, dict[int, Shape]] = {}
        """By the number of the shape that needs nodes for ever."""
        self._by_opened: dict[int, dict[frozenset[int], Shape]] = {}
        """By the number of the shape that may use no spares."""
        self._forgotten: list[int] = []

    def retain(self, request: Request) -> None:
        """A pod with this request became known."""
        asked = self._asked.get(request)
        if asked is None:
            asked = self._asked[request] = _Asked()
        elif not asked.users:
            del self._unused[request]
        asked.users += 1

    def release(self, request: Request) -> None:
        """A pod with this request is gone, or has another one."""
        asked = self._asked[request]
        asked.users -= 1
        if asked.users:
            return
        self._unused[request] = None
        if not (asked.shapes or asked.less) or not light(request):
            # There is nothing to remember, or too much.
            self._forget(request)
        self._forget_some()

    def _forget_some(self) -> None:
        """Those that are unused for longest."""
        while len(self._unused) > MOST_UNUSED:
            self._forget(next(iter(self._unused)))

    def _forget(self, request: Request) -> None:
        """Nobody has it."""
        del self._unused[request]
        asked = self._asked.pop(request)
        for shape in asked.shapes.values():
            for one in (shape, *self._by_stand_ins.pop(shape.id, {}).values()):
                for open_one in self._by_opened.pop(one.id, {}).values():
                    self._forget_shape(open_one)
                self._forget_shape(one)
        for less in asked.less.values():
            if less in self._unused:
                self._forget(less)

    def _forget_shape(self, shape: Shape) -> None:
        self._forgotten.append(shape.id)
        self._forgotten += [other.id for other in self._by_until.pop(shape.id, {}).values()]

    def drain_forgotten(self) -> list[int]:
        """The numbers of the shapes that were forgotten since the last call."""
        forgotten, self._forgotten = self._forgotten, []
        return forgotten

    def of(self, request: Request, wants: tuple[ClaimSpec, ...] = ()) -> Shape:
        """The shape of a request and of what its claims ask for: the same object for equal ones."""
        shapes = self._known(request).shapes
        shape = shapes.get(wants)
        if shape is None:
            shape = shapes[wants] = Shape(self._next_id(), request, self._nodes, wants)
        return shape

    def _known(self, request: Request) -> _Asked:
        asked = self._asked.get(request)
        if asked is None:
            # First of all: what is forgotten may take along what is left of it.
            self._forget_some()
            asked = self._asked[request] = _Asked()
            self._unused[request] = None
        return asked

    def without(self, request: Request, names: tuple[str, ...], wants: tuple[ClaimSpec, ...] = ()) -> Shape:
        """The shape of a pod that has these resources by a claim."""
        if not names:
            return self.of(request, wants)
        known = self._known(request).less
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

    def until(self, shape: Shape, until_ms: int, kept_ms: Sequence[int]) -> Shape:
        """The shape of pods that need a node until then at most. Of the others of this kind, those for `kept_ms` are
        remembered."""
        known = self._by_until.setdefault(shape.id, {})
        found = known.get(until_ms)
        if found is None:
            for other_ms in [other_ms for other_ms in known if other_ms not in kept_ms]:
                self._forgotten.append(known.pop(other_ms).id)
            stand_ins = shape.stand_ins
            if stand_ins is not None:
                stand_ins = replace(stand_ins, forms={})
            found = Shape(
                self._next_id(), shape.request, self._nodes, shape.wants, stand_ins, until_ms, shape.opened
            )  # fmt: skip
            known[until_ms] = found
        return found

    def beside_spares(self, shape: Shape, opened: frozenset[int]) -> Shape:
        """The shape of pods that may use these spares. Of the others of this kind the last ones are remembered."""
        known = self._by_opened.setdefault(shape.id, {})
        found = known.get(opened)
        if found is None:
            while len(known) >= _MOST_OPENED:
                self._forget_shape(known.pop(next(iter(known))))
            stand_ins = shape.stand_ins
            if stand_ins is not None:
                stand_ins = replace(stand_ins, forms={})
            found = Shape(self._next_id(), shape.request, self._nodes, shape.wants, stand_ins, opened=opened)
            known[opened] = found
        return found

    def known(self) -> Iterator[Shape]:
        """All that are remembered."""
        for asked in self._asked.values():
            yield from asked.shapes.values()
        for several in self._by_stand_ins.values():
            yield from several.values()
        for early in self._by_until.values():
            yield from early.values()
        for beside in self._by_opened.values():
            yield from beside.values()

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
            form = self.without(shape.request, tuple(classes), wants)
            if shape.opened:
                form = self.beside_spares(form, shape.opened)
            if shape.until_ms != FOR_EVER_MS:
                form = self.until(form, shape.until_ms, self._nodes.closings_ms)
            stand_ins.forms[lacking] = form
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
