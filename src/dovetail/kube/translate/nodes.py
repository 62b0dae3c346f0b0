# SPDX-License-Identifier: Apache-2.0
"""Nodes and namespaces: from wire structs to core records.

Rules: a node that is not ready has taints for that, so conditions are not read. If `pods` is missing from allocatable,
no pod fits, as upstream.
"""

from __future__ import annotations

from functools import lru_cache

from dovetail.core import model
from dovetail.core.devices.kubelet.inventory import Inventory
from dovetail.core.devices.layout import Layout
from dovetail.core.model import Effect, Maintenance, Node, Problem, Taint
from dovetail.kube.nodes.gpu_sharing import NO_PARTS, SharedParts
from dovetail.kube.objects import base
from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.objects.storage import CSINode
from dovetail.kube.translate import volumes
from dovetail.kube.translate.problems import first_of, one_of
from dovetail.kube.translate.requests import node_amounts

_EFFECTS: dict[str, Effect] = {
    "NoSchedule": "NoSchedule", "PreferNoSchedule": "PreferNoSchedule", "NoExecute": "NoExecute",
}  # fmt: skip


def node(
    obj: base.Node,
    csi_node: CSINode | None = None,
    layout: Layout | None = None,
    inventory: Inventory | None = None,
    parts: SharedParts = NO_PARTS,
    plugin_gone: bool = False,
    quarantine_ms: int = 0,
    maintenance: Maintenance | None = None,
) -> Node:
    """The record of a node. `csi_node` has the attach limits of its drivers; `layout`, `inventory`, `parts`,
    `plugin_gone` and `quarantine_ms` describe its hardware and its device plugin, and `maintenance` for what it is to
    get empty."""
    meta = obj.metadata
    allocatable, bad_amounts = node_amounts(tuple(obj.status.allocatable.items()))
    taints, bad_taints = _taints(obj.spec.taints)
    problems = [*bad_amounts, *bad_taints]
    if not obj.status.allocatable:
        problems.append(
            Problem("status.allocatable", "", "missing: the node's kubelet has not reported what it offers")
        )
    return Node(
        meta.name,
        allocatable,
        tuple(sorted(meta.labels.items())),
        taints,
        obj.spec.unschedulable,
        volumes.attach_limits(csi_node) if csi_node is not None else (),
        epoch_ms(meta.creation_timestamp),
        first_of(problems),
        layout,
        inventory,
        *parts,
        plugin_gone=plugin_gone,
        quarantine_ms=quarantine_ms,
        maintenance=maintenance,
    )


@lru_cache(maxsize=4096)
def _taints(wire: tuple[base.Taint, ...]) -> tuple[tuple[Taint, ...], tuple[Problem, ...]]:
    problems: list[Problem] = []
    found = []
    for i, taint in enumerate(wire):
        effect = one_of(_EFFECTS, taint.effect, f"spec.taints[{i}].effect", problems)
        if effect is not None:
            found.append(Taint(taint.key, taint.value, effect))
    return tuple(found), tuple(problems)


def namespace(obj: base.Namespace) -> model.Namespace:
    return model.Namespace(obj.metadata.name, tuple(sorted(obj.metadata.labels.items())))
