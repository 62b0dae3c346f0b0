# SPDX-License-Identifier: Apache-2.0
"""Shapes: interned requests. Pods that ask for identical things share one shape and all its cached answers.

Rules: a pod whose extended resources devices may stand in for has a shape of several forms. On a node that offers them
all it is what it asks for; on others it asks for less, and wants a claim for what the node does not offer. Forms are
plain shapes, shared with pods that ask for just that.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from dovetail.core.cluster.columns import Index
from dovetail.core.cluster.nodes import Nodes
from dovetail.core.devices.mig.geometry import RESOURCE_PREFIX
from dovetail.core.devices.sharing import Sharing
from dovetail.core.dra.extended import claim_for
from dovetail.core.dra.records import ClaimSpec
from dovetail.core.model import GPU, PODS, SHARED_GPU, Container, Request

UNASKED = -(2**62)
"""The floor of a resource that is not asked for: what is left may be anything. Zero requests never fail, even where
others hold more than a node has (NodeResourcesFit)."""


Classes = tuple[tuple[str, str], ...]
"""Device classes by the resources that their devices stand in for, sorted."""


class StandIns(Struct, frozen=True):
    """What a shape of several forms is made of. `columns` are those of the resources, `forms` what was asked for so
    far, by the resources (as bits) that a node lacks. With `made` the claim has been allocated already."""

    classes: Classes
    containers: tuple[Container, ...]
    made: bool
    columns: tuple[int, ...]
    forms: dict[int, Shape] = {}


class Shape:
    """`need[r, 0]` is the amount of resource r (one of `pods` included), `floor[r, 0]` the least that may be left after
    it; both reach over the first `width` resources, which hold all that is asked. `gpus` are the whole GPUs, `shared`
    the replicas of shared ones, `slices` the MIG instances by resource; `fraction` says whether it tells how much of a
    GPU it needs. `wants` are the claims for which devices are to be allocated with the pod. Of a shape of several
    forms (`stand_ins`) all this is what it is where everything is counted."""

    __slots__ = (
        "floor", "fraction", "gpus", "id", "need", "request", "shared", "slices", "stand_ins", "wants", "width",
    )  # fmt: skip

    def __init__(
        self, number: int, request: Request, need: NDArray[np.int64], floor: NDArray[np.int64],
        wants: tuple[ClaimSpec, ...], stand_ins: StandIns | None = None,
    ) -> None:  # fmt: skip
        amounts = dict(request.resources)
        self.id = number
        self.request = request
        self.width = len(need)
        self.need = need
        self.floor = floor
        self.gpus = amounts.get(GPU, 0)
        self.shared = amounts.get(SHARED_GPU, 0)
        self.fraction = bool(request.gpu_milli or request.gpu_memory_mib)
        self.slices = tuple([amount for amount in request.resources if amount[0].startswith(RESOURCE_PREFIX)])
        self.wants = wants
        self.stand_ins = stand_ins

    def replicas(self, sharing: Sharing) -> int:
        """How many replicas it asks for on a node that shares its GPUs so."""
        return dict(self.request.resources).get(sharing.resource, 0)

    @property
    def needs_links(self) -> bool:
        """Whether several GPUs must be joined by NVLinks."""
        return self.request.nvlink_required and self.gpus > 1


class Shapes:
    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._by_request: dict[Request, Shape] = {}
        self._by_claims: dict[tuple[Request, tuple[ClaimSpec, ...]], Shape] = {}
        self._by_stand_ins: dict[tuple[int, Classes, tuple[Container, ...], bool], Shape] = {}
        self._less: dict[tuple[Request, tuple[str, ...]], Request] = {}

    def of(self, request: Request, wants: tuple[ClaimSpec, ...] = ()) -> Shape:
        """The shape of a request and of what its claims ask for: the same object for equal ones."""
        if wants:
            shape = self._by_claims.get((request, wants))
            if shape is None:
                shape = self._by_claims[request, wants] = self._new(request, wants)
            return shape
        shape = self._by_request.get(request)
        if shape is None:
            shape = self._by_request[request] = self._new(request, ())
        return shape

    def without(self, request: Request, names: tuple[str, ...], wants: tuple[ClaimSpec, ...] = ()) -> Shape:
        """The shape of a pod that has these resources by a claim."""
        if not names:
            return self.of(request, wants)
        less = self._less.get((request, names))
        if less is None:
            resources = tuple(amount for amount in request.resources if amount[0] not in names)
            less = self._less[request, names] = replace(request, resources=resources)
        return self.of(less, wants)

    def of_several(self, plain: Shape, classes: Classes, containers: tuple[Container, ...], made: bool) -> Shape:
        """The shape of a pod for whose resources devices of these classes stand in where a node offers none."""
        key = plain.id, classes, containers, made
        shape = self._by_stand_ins.get(key)
        if shape is None:
            columns = tuple(self._nodes.resource_column(name) for name, _ in classes)
            stand_ins = StandIns(classes, containers, made, columns)
            shape = Shape(self._next_id(), plain.request, plain.need, plain.floor, plain.wants, stand_ins)
            self._by_stand_ins[key] = shape
        return shape

    def lacking(self, shape: Shape, index: Index) -> NDArray[np.int64]:
        """Of the resources of a shape of several forms those that each node does not offer, as bits."""
        assert shape.stand_ins is not None, "a shape of one form"
        bits = np.zeros(len(self._nodes.usable[index]), dtype=np.int64)
        for i, column in enumerate(shape.stand_ins.columns):
            bits |= (self._nodes.allocatable[column, index] == 0).astype(np.int64) << i
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
        for i, column in enumerate(shape.stand_ins.columns):
            bits |= (not self._nodes.allocatable[column, slot]) << i
        return self.form(shape, bits)

    def _next_id(self) -> int:
        return len(self._by_request) + len(self._by_claims) + len(self._by_stand_ins)

    def _new(self, request: Request, wants: tuple[ClaimSpec, ...]) -> Shape:
        need, floor = _vectors(self._nodes, request)
        return Shape(self._next_id(), request, need, floor, wants)


def _vectors(nodes: Nodes, request: Request) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    amounts = {nodes.resource_column(name): amount for name, amount in request.resources if amount > 0}
    amounts[nodes.resources[PODS]] = 1
    need = np.zeros((len(nodes.resources), 1), dtype=np.int64)
    floor = np.full((len(nodes.resources), 1), UNASKED, dtype=np.int64)
    for column, amount in amounts.items():
        need[column] = amount
        floor[column] = 0
    return need, floor
