# SPDX-License-Identifier: Apache-2.0
"""The node table: one slot per node in arrays of integers, one array row per resource.

Rules: a slot keeps its node for life and is reused after the node is gone; slots are assigned in the order in which
nodes become known, so no result depends on names. A slot without a node has nothing allocatable and matches nothing.
Pods may be placed on a node that is not known yet, or has less than they hold: free amounts then go below zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dovetail.core.cluster.awake_rooms import AwakeRooms
from dovetail.core.cluster.columns import Columns, Index
from dovetail.core.cluster.journal import Journal
from dovetail.core.cluster.rejections import FOR_EVER_MS
from dovetail.core.devices.gpu_sharing import Sharing
from dovetail.core.devices.kubelet.inventory import Inventory
from dovetail.core.devices.layout import MAX_LINKED_GPUS, Layout
from dovetail.core.model import CPU, GPU, MAX_GPUS, MEMORY, PODS, WHOLE_GPU_MILLI, Maintenance, Node, Taint
from dovetail.core.placing.layout import BLOCK, CPU_ROW, GPU_ROW, MEMORY_ROW, PODS_ROW

Amounts = NDArray[np.int64]
UNSCHEDULABLE_TAINT = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
DOWN_TAINTS = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
"""The keys of the taints of a node that does not answer."""
UNOFFERED = ""
"""Whose column is that of all resources that no node has ever offered."""


class Nodes:
    """`free[r, slot] = allocatable - held` for resource r. `gpu_free_bits[slot]` has bit i set while GPU i is wholly
    free; `gpu_parts[i, slot]` is what is left of GPU i once a part of it is taken, else 0, where `gpu_whole[slot]` is
    the whole: thousandths of its MiB, so that parts are exact by memory as well as in thousandths. Shared GPUs follow
    the whole ones; they are never wholly free, and have `gpu_seats[i, slot]` replicas left. `book_numbers` are
    kept by `Kubelets`, `device_numbers` by `Claims`."""

    def __init__(self, size: int = BLOCK) -> None:
        self.slots: dict[str, int] = {}
        self.names: list[str] = []
        self.records: list[Node | None] = []
        self.labels: list[Mapping[str, str]] = []
        self.resources: dict[str, int] = {PODS: PODS_ROW, CPU: CPU_ROW, MEMORY: MEMORY_ROW, GPU: GPU_ROW}
        self.allocatable: Amounts = np.zeros((8, size), dtype=np.int64)
        self.free: Amounts = np.zeros((8, size), dtype=np.int64)
        self.gpu_free_bits: Amounts = np.zeros(size, dtype=np.int64)
        self.gpu_bits: Amounts = np.zeros(size, dtype=np.int64)
        """Every GPU that the node offers as a whole one, free or not."""
        self.gpu_parts: Amounts = np.zeros((8, size), dtype=np.int64)
        self.gpu_whole: Amounts = np.full(size, WHOLE_GPU_MILLI, dtype=np.int64)
        self.gpu_seats: NDArray[np.int32] = np.zeros((8, size), dtype=np.int32)
        self.awake_rooms = AwakeRooms()
        self.gpu_memory_mib: Amounts = np.zeros(size, dtype=np.int64)
        self.sharing_ids: NDArray[np.int32] = np.zeros(size, dtype=np.int32)
        self.sharings: list[Sharing | None] = [None]
        self.sliced: NDArray[np.bool_] = np.zeros(size, dtype=np.bool_)
        self.divided = False
        """Whether there was ever a node that shares or slices its GPUs."""
        self.usable: NDArray[np.bool_] = np.zeros(size, dtype=np.bool_)
        self.plugin_gone: NDArray[np.bool_] = np.zeros(size, dtype=np.bool_)
        """Where whoever asks a device plugin for GPUs would be rejected (see `Node`)."""
        self.quarantined: NDArray[np.bool_] = np.zeros(size, dtype=np.bool_)
        """Kept by `Quarantines`."""
        self.spare: NDArray[np.bool_] = np.zeros(size, dtype=np.bool_)
        """Held back from pods that ask for devices; kept by `Spares`."""
        self.closes_ms: NDArray[np.int64] = np.full(size, FOR_EVER_MS, dtype=np.int64)
        """Until when pods may run on it: the start of its maintenance, 0 where that has none."""
        self.in_maintenance: dict[int, Maintenance] = {}
        """By slot."""
        self.closings_ms: list[int] = []
        """The distinct starts of these, ascending."""
        self.taint_ids: NDArray[np.int32] = np.zeros(size, dtype=np.int32)
        self.taint_sets: list[tuple[Taint, ...]] = [()]
        self.layout_ids: NDArray[np.int32] = np.zeros(size, dtype=np.int32)
        self.layouts: list[Layout | None] = [None]
        self.book_numbers: NDArray[np.int64] = np.zeros(size, dtype=np.int64)
        self.device_numbers: NDArray[np.int64] = np.zeros(size, dtype=np.int64)
        self.columns = Columns(size, self.labels)
        self.amounts_journal = Journal(limit=4096)
        self.records_journal = Journal(limit=4096)
        self.devices_journal = Journal(limit=4096)
        """Where other devices are offered by claim, or are meant by the classes, than before."""
        self.resizes = 0
        """Grows when arrays were replaced by larger ones; caches of another layout start over."""
        self._taint_index: dict[tuple[Taint, ...], int] = {(): 0}
        self._layout_index: dict[Layout | None, int] = {None: 0}
        self._sharing_index: dict[Sharing | None, int] = {None: 0}
        self._vacant: list[int] = []

    @property
    def size(self) -> int:
        return len(self.usable)

    @property
    def used(self) -> int:
        """Slots from here on never had a node."""
        return len(self.records)

    def slot_of(self, name: str) -> int:
        """The slot of a node, assigned at the first call (a pod may become known before its node)."""
        slot = self.slots.get(name)
        if slot is None:
            slot = self._vacant.pop() if self._vacant else self._append()
            self.slots[name] = slot
            self.names[slot] = name
        return slot

    @property
    def vacant(self) -> tuple[int, ...]:
        """The slots that new nodes get, the last one first."""
        return tuple(self._vacant)

    def number(self, names: Sequence[str], vacant: Sequence[int]) -> None:
        """Give the nodes of these names the slots in this order; "" for a slot that is vacant. There are none yet."""
        for slot, name in enumerate(names):
            self._append()
            self.names[slot] = name
            if name:
                self.slots[name] = slot
        self._vacant = list(vacant)

    def _append(self) -> int:
        slot = len(self.records)
        self.names.append("")
        self.records.append(None)
        self.labels.append({})
        if slot >= self.size:
            self._grow(rows=2 * self.size, width=len(self.free), gpus=len(self.gpu_parts))
        return slot

    def _grow(self, rows: int, width: int, gpus: int) -> None:
        new = np.full(rows - self.size, WHOLE_GPU_MILLI, dtype=np.int64)
        self.gpu_whole = np.concatenate((self.gpu_whole, new))
        self.closes_ms = np.concatenate((self.closes_ms, np.full_like(new, FOR_EVER_MS)))
        self.allocatable = _larger(self.allocatable, width, rows)
        self.free = _larger(self.free, width, rows)
        self.gpu_free_bits = _larger(self.gpu_free_bits, rows)
        self.gpu_bits = _larger(self.gpu_bits, rows)
        self.gpu_parts = _larger(self.gpu_parts, gpus, rows)
        self.gpu_seats = _larger(self.gpu_seats, gpus, rows)
        self.gpu_memory_mib = _larger(self.gpu_memory_mib, rows)
        self.sharing_ids = _larger(self.sharing_ids, rows)
        self.sliced = _larger(self.sliced, rows)
        self.usable = _larger(self.usable, rows)
        self.plugin_gone = _larger(self.plugin_gone, rows)
        self.quarantined = _larger(self.quarantined, rows)
        self.spare = _larger(self.spare, rows)
        self.taint_ids = _larger(self.taint_ids, rows)
        self.layout_ids = _larger(self.layout_ids, rows)
        self.book_numbers = _larger(self.book_numbers, rows)
        self.device_numbers = _larger(self.device_numbers, rows)
        self.columns.resize(rows)
        self.resizes += 1

    def column(self, name: str) -> int:
        """The column of a resource, or the one of all resources that no node has ever offered: there is nothing of any
        of them, and whoever asks for names that are made up makes no columns."""
        column = self.resources.get(name)
        return column if column is not None else self._resource_column(UNOFFERED)

    def _resource_column(self, name: str) -> int:
        """The column of a resource, made on first sight."""
        column = self.resources.get(name)
        if column is None:
            column = self.resources[name] = len(self.resources)
            if column >= len(self.free):
                self._grow(rows=self.size, width=2 * len(self.free), gpus=len(self.gpu_parts))
        return column

    def put(self, node: Node) -> bool:
        """Insert or replace a node's record; what its pods hold stays held. False where nothing changed."""
        slot = self.slot_of(node.name)
        old = self.records[slot]
        if old == node:
            return False
        self.records[slot] = node
        self.labels[slot] = dict(node.labels)
        self.columns.update(slot)
        taints = node.taints
        if node.unschedulable and UNSCHEDULABLE_TAINT not in taints:
            taints = (*taints, UNSCHEDULABLE_TAINT)
        self.taint_ids[slot] = self._taint_id(taints)
        self.usable[slot] = node.problem is None
        self.plugin_gone[slot] = node.plugin_gone
        self._maintain(slot, node.maintenance)
        self._set_allocatable(slot, _offered(node))
        self.gpu_memory_mib[slot] = node.gpu_memory_mib
        self.sharing_ids[slot] = self._sharing_id(node.sharing)
        self.sliced[slot] = node.sliced
        self.divided |= node.sliced or node.sharing is not None
        self.layout_ids[slot] = self._layout_id(node.layout, self.gpu_count(slot))
        self.records_journal.add(slot)
        return True

    def remove(self, name: str) -> bool:
        """Forget a node's record. The slot stays with the name until `vacate`."""
        slot = self.slots.get(name)
        if slot is None or self.records[slot] is None:
            return False
        self.records[slot] = None
        self.labels[slot] = {}
        self.columns.update(slot)
        self.taint_ids[slot] = 0
        self.layout_ids[slot] = 0
        self.gpu_memory_mib[slot] = 0
        self.sharing_ids[slot] = 0
        self.sliced[slot] = False
        self.usable[slot] = False
        self.plugin_gone[slot] = False
        self.quarantined[slot] = False
        self._maintain(slot, None)
        self._set_allocatable(slot, {})
        self.records_journal.add(slot)
        return True

    def _maintain(self, slot: int, maintenance: Maintenance | None) -> None:
        if maintenance == self.in_maintenance.get(slot):
            return
        if maintenance is None:
            del self.in_maintenance[slot]
        else:
            self.in_maintenance[slot] = maintenance
        self.closes_ms[slot] = FOR_EVER_MS if maintenance is None else maintenance.start_ms
        starts = {one.start_ms for one in self.in_maintenance.values() if one.start_ms}
        self.closings_ms = sorted(starts)

    def vacate(self, name: str) -> None:
        """Give the slot of a node that is gone and holds no pod to the next new node."""
        slot = self.slots.pop(name)
        self.names[slot] = ""
        self._vacant.append(slot)

    def _set_allocatable(self, slot: int, amounts: dict[str, int]) -> None:
        columns = {self._resource_column(name): amount for name, amount in amounts.items()}
        row = np.zeros(len(self.free), dtype=np.int64)
        for column, amount in columns.items():
            row[column] = amount
        self.free[:, slot] += row - self.allocatable[:, slot]
        self.allocatable[:, slot] = row
        self.amounts_journal.add(slot)

    def gpu_count(self, slot: int) -> int:
        """How many whole GPUs the node has, as far as they can be distinguished; unhealthy ones count too."""
        record = self.records[slot]
        if record is None or record.sliced or (record.sharing is not None and record.sharing.resource == GPU):
            return 0
        offered = int(self.allocatable[self.resources[GPU], slot])
        return min(offered + self.gpus_out(slot).bit_count(), MAX_GPUS)

    def gpus_out(self, slot: int) -> int:
        """The GPUs of a known layout that the node does not offer, as bits."""
        record = self.records[slot]
        if record is None or not record.gpus_out or record.layout is None:
            return 0
        offered = int(self.allocatable[self.resources[GPU], slot])
        return record.gpus_out if offered + record.gpus_out.bit_count() == record.layout.gpus else 0

    def sharing(self, slot: int) -> Sharing | None:
        """How the node offers GPUs to several pods, if it does."""
        record = self.records[slot]
        return record.sharing if record is not None else None

    def reset_gpus(self, slot: int) -> None:
        """Make every GPU of the slot free; whoever holds one, or a part of one, has to hold it again."""
        count, sharing = self.gpu_count(slot), self.sharing(slot)
        cards = slice(count, count + sharing.cards) if sharing is not None else slice(0, 0)
        if max(count, cards.stop) > len(self.gpu_parts):
            self._grow(rows=self.size, width=len(self.free), gpus=-(-max(count, cards.stop) // 8) * 8)
        self.gpu_whole[slot] = WHOLE_GPU_MILLI * max(1, int(self.gpu_memory_mib[slot]))
        self.gpu_parts[:, slot] = 0
        self.gpu_seats[:, slot] = 0
        if sharing is not None:
            self.gpu_parts[cards, slot] = self.gpu_whole[slot]
            self.gpu_seats[cards, slot] = sharing.replicas
        self.gpu_bits[slot] = self.gpu_free_bits[slot] = (1 << count) - 1 & ~self.gpus_out(slot)

    def part_milli(self, index: Index | int) -> Amounts:
        """`gpu_parts` in thousandths of a GPU, rounded down."""
        milli: Amounts = self.gpu_parts[:, index] // (self.gpu_whole[index] // WHOLE_GPU_MILLI)
        return milli

    def room_milli(self, index: Index) -> Amounts:
        """What is left of each GPU, whole ones included, in thousandths, by GPU and slot."""
        parts = self.part_milli(index)
        whole = self.gpu_free_bits[index] >> np.arange(len(parts))[:, None] & 1
        room: Amounts = parts + WHOLE_GPU_MILLI * whole
        return room

    def layout(self, slot: int) -> Layout | None:
        """How the node's GPUs are wired; None where that is not known, and they are only counted."""
        return self.layouts[int(self.layout_ids[slot])]

    def inventory(self, slot: int) -> Inventory | None:
        """What the node's kubelet manages, where that is known."""
        record = self.records[slot]
        return record.inventory if record is not None else None

    def _layout_id(self, layout: Layout | None, gpus: int) -> int:
        if layout is None or layout.gpus != gpus or gpus > MAX_LINKED_GPUS:
            return 0
        found = self._layout_index.get(layout)
        if found is None:
            found = self._layout_index[layout] = len(self.layouts)
            self.layouts.append(layout)
        return found

    def _sharing_id(self, sharing: Sharing | None) -> int:
        found = self._sharing_index.get(sharing)
        if found is None:
            found = self._sharing_index[sharing] = len(self.sharings)
            self.sharings.append(sharing)
        return found

    def _taint_id(self, taints: tuple[Taint, ...]) -> int:
        found = self._taint_index.get(taints)
        if found is None:
            found = self._taint_index[taints] = len(self.taint_sets)
            self.taint_sets.append(taints)
        return found


def _offered(node: Node) -> dict[str, int]:
    """What can be had of a node. Of GPUs that are out its kubelet learns a little later than we do."""
    amounts = dict(node.allocatable)
    if node.gpus_out and node.layout is not None and GPU in amounts:
        amounts[GPU] = min(amounts[GPU], node.layout.gpus - node.gpus_out.bit_count())
    return amounts


_Scalar = TypeVar("_Scalar", bound=np.generic)


def _larger(old: NDArray[_Scalar], *shape: int) -> NDArray[_Scalar]:
    new = np.zeros(shape, dtype=old.dtype)
    new[tuple(slice(n) for n in old.shape)] = old
    return new
