# SPDX-License-Identifier: Apache-2.0
"""The shortcut for a pod of one container: most pods have one, and most are admitted.

Rules: the managers' hints for a single container follow from little: the sets of NUMA nodes with enough CPUs, those
with enough memory, and the devices that are held. The decision for these, and the devices that are then allocated, are
computed the full way once and kept. The managers' own rules take CPUs and memory. A pod that would be refused takes the
full way, which has the kubelet's messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from mypy_extensions import mypyc_attr

from dovetail.core.devices.kubelet.cpus import Cpus
from dovetail.core.devices.kubelet.hints import Hint
from dovetail.core.devices.kubelet.holdings import (
    AllocationRefused,
    Block,
    HeldResources,
    Holdings,
    MemoryNode,
    PodHeld,
)
from dovetail.core.devices.kubelet.memory import MemoryManager
from dovetail.core.devices.kubelet.pods import ManagedPod

_REMEMBERED = 4096


Devices = tuple[tuple[str, int], ...]
"""Devices by resource, sorted by its name."""


class ShortcutAnswer(NamedTuple):
    """The Topology Manager's decision, the devices that the container then gets, all devices that are held afterwards,
    and whether none of them was chosen at random."""

    hint: Hint
    devices: Devices
    in_use: Devices
    certain: bool


@mypyc_attr(acyclic=True)
class Alone:
    """What the only container of a pod holds, and so the pod."""

    __slots__ = ("cpus", "devices", "memory", "pod")

    def __init__(self, pod: ManagedPod, cpus: int | None, memory: tuple[Block, ...] | None, devices: Devices) -> None:
        self.pod = pod
        self.cpus = cpus
        self.memory = memory
        self.devices = devices

    @property
    def held(self) -> PodHeld:
        return PodHeld(self.pod, (HeldResources(self.cpus, self.memory, self.devices),))


Admitted = tuple[int, tuple[MemoryNode, ...], Devices, Alone, bool]
"""CPUs, memory and devices as in `Holdings` with the pod, what the pod holds of them, and whether that is certain."""


class Shortcut:
    """The shortcut for equal pods at kubelets of one kind. `cpus` and `memory` are None where the pod gets none.
    `decide` answers for some holdings, None where the pod is refused; it depends only on its arguments."""

    def __init__(
        self,
        pod: ManagedPod,
        cpus: Cpus | None,
        memory: MemoryManager | None,
        devices: bool,
        decide: Callable[[Holdings, int, int], ShortcutAnswer | None],
    ) -> None:
        (container,) = pod.containers
        self._pod = pod
        self._cpus = cpus
        self._count = container.whole_cpus
        self._memory = memory
        self._affinity = memory.affinity if memory is not None else None
        self._sizes: Mapping[str, int] = container.memory_bytes
        self._wants = memory.affinity.wants(self._sizes) if memory is not None else ()
        self._devices = devices
        self._decide = decide
        self._decided: dict[object, ShortcutAnswer | None] = {}
        self._blocks: dict[int, tuple[Block, ...]] = {}

    def admit(self, shared: int, nodes: tuple[MemoryNode, ...], in_use: Devices) -> Admitted | None:
        """Admit a pod beside these holdings, as in `Holdings`; None for a pod that has to take the full way."""
        cpus, memory = self._cpus, self._memory
        enough_cpus = 0 if cpus is None else cpus.suffices(shared, self._count)
        enough_memory = 0 if self._affinity is None else self._affinity.suffices(nodes, self._wants)
        key = enough_cpus, enough_memory, in_use if self._devices else None
        try:
            decided = self._decided[key]
        except KeyError:
            if len(self._decided) >= _REMEMBERED:
                self._decided.clear()
            decided = self._decided[key] = self._decide(
                Holdings(shared, nodes, dict(in_use), {}), enough_cpus, enough_memory
            )
        if decided is None:
            return None
        taken, blocks = None, None
        try:
            if cpus is not None:
                taken = cpus.take(shared, self._count, decided.hint)
                shared &= ~taken
            if memory is not None:
                mask, nodes = memory.take(nodes, self._wants, decided.hint)
                blocks = self._blocks.get(mask)
                if blocks is None:
                    blocks = tuple([Block(mask, name, size) for name, size in self._sizes.items()])
                    self._blocks[mask] = blocks
        except AllocationRefused:
            return None
        alone = Alone(self._pod, taken, blocks, decided.devices)
        return shared, nodes, decided.in_use if self._devices else in_use, alone, decided.certain
