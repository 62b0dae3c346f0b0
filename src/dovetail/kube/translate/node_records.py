# SPDX-License-Identifier: Apache-2.0
"""Nodes as reported to the core: each with the attach limits and the hardware data that other objects have.

Rules: a node is reported again when one of these objects changes its record. Contradictions between them (see `wiring`)
are findings. ResourceSlices form pools of devices; those of GPUs also have hardware data of their node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from dovetail.core import events as ev
from dovetail.core.model import DrainMode, Maintenance, Node
from dovetail.kube.nodes.wiring import Wiring, Wirings
from dovetail.kube.objects import base, storage, topology
from dovetail.kube.objects.claims import DeviceTaintRule, ResourceSlice
from dovetail.kube.translate.nodes import node
from dovetail.kube.translate.pools import Pools
from dovetail.kube.translate.standalone import AnyChange, Find

T = TypeVar("T")
_DRAINS: dict[str, DrainMode] = {"WaitForCheckpoint": "WaitForCheckpoint", "Evict": "Evict"}
"""Anything else waits for jobs, which disturbs least."""


class NodeRecords:
    """Each method that takes the changes of one resource returns their events, in order. `find` receives the findings
    of an object ("Node NAME", "ResourceSlice NAME")."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._nodes: dict[str, tuple[base.Node, Node]] = {}
        self._csi_nodes: dict[str, storage.CSINode] = {}
        self._wirings = Wirings()
        self.gpu_node: Callable[[str], topology.GPUNode | None] = self._wirings.gpu_nodes.get
        """Returns the GPUNode of a node as last read."""
        self._pools = Pools(find)

    def nodes(self, changes: Iterable[AnyChange[base.Node]]) -> list[ev.Event]:
        events: list[ev.Event] = []
        for change in changes:
            name = change.object.metadata.name
            if change.kind != "deleted":
                events += self._node(change.object)
            elif self._nodes.pop(name, None) is not None:
                self._wirings.forget(name)
                self._find(f"Node {name}", ())
                events.append(ev.NodeRemoved(name))
        return events

    def csi_nodes(self, changes: Iterable[AnyChange[storage.CSINode]]) -> list[ev.Event]:
        """CSINodes have the attach limits of nodes, which are reported with the nodes."""
        events: list[ev.Event] = []
        for change in changes:
            name = change.object.metadata.name
            if change.kind == "deleted":
                self._csi_nodes.pop(name, None)
            else:
                self._csi_nodes[name] = change.object
            events += self._node_again(name)
        return events

    def gpu_nodes(self, changes: Iterable[AnyChange[topology.GPUNode]]) -> list[ev.Event]:
        """GPUNodes have the hardware data of nodes."""
        return self._wired(changes, self._wirings.put_gpu_node)

    def node_topologies(self, changes: Iterable[AnyChange[topology.NodeResourceTopology]]) -> list[ev.Event]:
        return self._wired(changes, self._wirings.put_topology)

    def resource_slices(self, changes: Iterable[AnyChange[ResourceSlice]]) -> list[ev.Event]:
        """Slices form pools of devices; those of GPUs also have hardware data of their node."""
        changes = list(changes)
        events = [event for c in changes for event in self._pools.put_slice(c.object, c.kind == "deleted")]
        return events + self._wired(changes, self._wirings.put_slice)

    def taint_rules(self, changes: Iterable[AnyChange[DeviceTaintRule]]) -> list[ev.Event]:
        return [event for c in changes for event in self._pools.put_rule(c.object, c.kind == "deleted")]

    def _wired(self, changes: Iterable[AnyChange[T]], put: Callable[[T, bool], str]) -> list[ev.Event]:
        """Apply a batch of objects with hardware data of nodes; each of the nodes is reported once."""
        names = dict.fromkeys([put(change.object, change.kind == "deleted") for change in changes])
        return [event for name in names for event in self._node_again(name)]

    def wiring(self, node: str) -> Wiring:
        """The hardware data of a node, with its source."""
        return self._wirings.of(self._nodes[node][0]) if node in self._nodes else Wiring()

    def _node_again(self, name: str) -> list[ev.Event]:
        return self._node(self._nodes[name][0]) if name in self._nodes else []

    def _node(self, obj: base.Node) -> list[ev.Event]:
        name = obj.metadata.name
        wiring = self._wirings.of(obj)
        self._find(f"Node {name}", wiring.findings, wiring.origin)
        gpu_node = self.gpu_node(name)
        gone = gpu_node is not None and gpu_node.status.plugin_gone
        asks_ms = gpu_node.status.quarantine_ms if gpu_node is not None else 0
        maintenance = _maintenance(gpu_node.spec.maintenance) if gpu_node is not None else None
        record = node(
            obj, self._csi_nodes.get(name), wiring.layout, wiring.inventory, wiring.parts, gone, asks_ms, maintenance
        )
        reported = self._nodes.get(name)
        self._nodes[name] = (obj, record)
        return [ev.NodeChanged(record)] if reported is None or reported[1] != record else []


def _maintenance(asked: topology.NodeMaintenance | None) -> Maintenance | None:
    if asked is None:
        return None
    drain = _DRAINS.get(asked.drain, "WaitForJobs")
    return Maintenance(drain, base.epoch_ms(asked.requested), base.epoch_ms(asked.start))
