# SPDX-License-Identifier: Apache-2.0
"""Shapes: interned requests. Pods that ask for identical things share one shape and all its cached answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.core.cluster.nodes import Nodes
from dovetail.core.devices.mig.geometry import RESOURCE_PREFIX
from dovetail.core.devices.sharing import Sharing
from dovetail.core.dra.records import ClaimSpec
from dovetail.core.model import GPU, PODS, SHARED_GPU, Request

UNASKED = -(2**62)
"""The floor of a resource that is not asked for: what is left may be anything. Zero requests never fail, even where
others hold more than a node has (NodeResourcesFit)."""


@dataclass(slots=True)
class Shape:
    """`need[r, 0]` is the amount of resource r (one of `pods` included), `floor[r, 0]` the least that may be left
    after it; both reach over the first `width` resources, which hold all that is asked. `gpus` are the whole GPUs,
    `shared` the replicas of shared ones, `slices` the MIG instances by resource; `fraction` says whether it tells how
    much of a GPU it needs. `scattered` shapes read more than their own node: ports, spread, peers. `wants` are the
    claims for which devices are to be allocated with the pod."""

    id: int
    request: Request
    width: int
    need: NDArray[np.int64]
    floor: NDArray[np.int64]
    gpus: int
    shared: int
    fraction: bool
    slices: tuple[tuple[str, int], ...]
    scattered: bool
    wants: tuple[ClaimSpec, ...] = ()

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

    def _new(self, request: Request, wants: tuple[ClaimSpec, ...]) -> Shape:
        need, floor = _vectors(self._nodes, request)
        scattered = bool(
            request.ports or request.spread or request.affinity or request.anti_affinity or request.preferred_peers
        )
        number, amounts = len(self._by_request) + len(self._by_claims), dict(request.resources)
        gpus, shared = amounts.get(GPU, 0), amounts.get(SHARED_GPU, 0)
        fraction = bool(request.gpu_milli or request.gpu_memory_mib)
        slices = tuple(amount for amount in request.resources if amount[0].startswith(RESOURCE_PREFIX))
        return Shape(number, request, len(need), need, floor, gpus, shared, fraction, slices, scattered, wants)


def _vectors(nodes: Nodes, request: Request) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    amounts = {nodes.resource_column(name): amount for name, amount in request.resources if amount > 0}
    amounts[nodes.resources[PODS]] = 1
    need = np.zeros((len(nodes.resources), 1), dtype=np.int64)
    floor = np.full((len(nodes.resources), 1), UNASKED, dtype=np.int64)
    for column, amount in amounts.items():
        need[column] = amount
        floor[column] = 0
    return need, floor
