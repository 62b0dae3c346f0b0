# SPDX-License-Identifier: Apache-2.0
"""A PCI device, and the distance of two.

Rules
- The distance of two devices follows from their places in the PCI tree, with the levels of `nvidia-smi topo`: PIX below
  one switch, PXB across several bridges, PHB below one root complex, else NODE or SYS by their NUMA nodes. Two
  functions of one device have the level BOARD.
Source: NCCL, src/graph/topo (places of devices).
"""

from __future__ import annotations

from itertools import takewhile

from msgspec import Struct

from dovetail.core.devices.layout import BOARD, NODE, PHB, PIX, PXB, SYS, UNKNOWN

NVIDIA = 0x10DE
DISPLAY_CLASSES = (0x0300, 0x0302)
"""VGA and 3D controllers: the PCI classes of GPUs."""
SWITCH_CLASS = 0x0680
"""Other bridge: the PCI class of an NVSwitch."""


class PciDevice(Struct, frozen=True):
    """`place` is the path from the root complex (`pci0000:16`) through the bridges to the device. `kind` is the PCI
    class without the programming interface. `driver` is "" if none is bound, `numa` None if it is unknown. `virtual`:
    it is a virtual function."""

    bus_id: str
    vendor: int
    kind: int
    driver: str
    numa: int | None
    place: tuple[str, ...]
    virtual: bool = False

    @property
    def root(self) -> str:
        return self.place[0] if self.place else ""

    @property
    def is_gpu(self) -> bool:
        return self.vendor == NVIDIA and self.kind in DISPLAY_CLASSES


def level(a: PciDevice | None, b: PciDevice | None) -> int:
    """The distance of two devices, a level of `core.devices.layout`; UNKNOWN if the place of one is unknown."""
    if a is None or b is None or not a.place or not b.place:
        return UNKNOWN
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a.place, b.place, strict=False)))
    if a.bus_id.partition(".")[0] == b.bus_id.partition(".")[0]:
        return BOARD
    if shared == 1:
        return PHB
    if shared:
        # Below a switch are its port and the device.
        return PIX if max(len(a.place), len(b.place)) - shared <= 2 else PXB
    if a.numa is None or b.numa is None:
        return UNKNOWN
    return NODE if a.numa == b.numa else SYS
