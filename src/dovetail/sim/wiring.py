# SPDX-License-Identifier: Apache-2.0
"""The wiring of the nodes of a trace, which none has: one product of GPUs, and a NIC beside each GPU."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from dovetail.core.devices.layout import PXB, Layout, LayoutError, Nic
from dovetail.core.devices.products import assumed_layout, named
from dovetail.core.model import GPU, Node

_MBPS_OF_GBIT = 125


def wired(nodes: Iterable[Node], product: str, nic_gbit: int) -> tuple[Node, ...]:
    """The nodes with GPUs of a product, and beside each a NIC of this line rate, so many Gbit/s. Raises LayoutError for
    a product that is not known, or that does not come in such numbers."""
    model = named(product).model
    layouts: dict[int, Layout] = {}
    found = []
    for node in nodes:
        gpus = dict(node.allocatable).get(GPU, 0)
        if gpus and gpus not in layouts:
            layout = assumed_layout(model, gpus)
            if layout is None:
                raise LayoutError("product", f"how {gpus} GPUs of {model} in one node are wired is not known")
            nics = tuple(_beside(layout, gpu, nic_gbit * _MBPS_OF_GBIT) for gpu in range(gpus))
            layouts[gpus] = replace(layout, nics=nics)
        found.append(replace(node, layout=layouts.get(gpus)))
    return tuple(found)


def _beside(layout: Layout, gpu: int, speed_mbps: int) -> Nic:
    levels = tuple(PXB if gpu == other else layout.level(gpu, other) for other in range(layout.gpus))
    return Nic(levels, layout.numa[gpu], speed_mbps)
