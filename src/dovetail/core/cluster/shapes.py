# SPDX-License-Identifier: Apache-2.0
"""Shapes: interned requests. Pods that ask for identical things share one shape and all its cached answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.core.cluster.nodes import Nodes
from dovetail.core.model import GPU, PODS, Request

UNASKED = -(2**62)
"""The floor of a resource that is not asked for: what is left may be anything. Zero requests never fail, even where
others hold more than a node has (NodeResourcesFit)."""


@dataclass(slots=True)
class Shape:
    """`need[r, 0]` is the amount of resource r (one of `pods` included), `floor[r, 0]` the least that may be left
    after it; both reach over the first `width` resources, which hold all that is asked. `gpus` are the whole GPUs.
    `scattered` shapes read more than their own node: ports, spread, peers."""

    id: int
    request: Request
    width: int
    need: NDArray[np.int64]
    floor: NDArray[np.int64]
    gpus: int
    scattered: bool

    @property
    def needs_links(self) -> bool:
        """Whether several GPUs must be joined by NVLinks."""
        return self.request.nvlink_required and self.gpus > 1


class Shapes:
    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._by_request: dict[Request, Shape] = {}

    def of(self, request: Request) -> Shape:
        """The shape of a request: the same object for equal requests."""
        shape = self._by_request.get(request)
        if shape is None:
            shape = self._by_request[request] = self._new(request)
        return shape

    def _new(self, request: Request) -> Shape:
        need, floor = _vectors(self._nodes, request)
        scattered = bool(
            request.ports or request.spread or request.affinity or request.anti_affinity or request.preferred_peers
        )
        return Shape(
            len(self._by_request), request, len(need), need, floor, dict(request.resources).get(GPU, 0), scattered
        )


def _vectors(nodes: Nodes, request: Request) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    amounts = {nodes.resource_column(name): amount for name, amount in request.resources if amount > 0}
    amounts[nodes.resources[PODS]] = 1
    need = np.zeros((len(nodes.resources), 1), dtype=np.int64)
    floor = np.full((len(nodes.resources), 1), UNASKED, dtype=np.int64)
    for column, amount in amounts.items():
        need[column] = amount
        floor[column] = 0
    return need, floor
