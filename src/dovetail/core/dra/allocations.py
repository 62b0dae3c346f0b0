# SPDX-License-Identifier: Apache-2.0
"""The allocated devices of each pool.

Rules: a device is allocated whole, or in shares that consume its capacities. Admin access allocates nothing. Devices
are recorded whether they are offered or not: their slice may come later, or again.
"""

from __future__ import annotations

from msgspec import Struct, field

from dovetail.core.dra.capacity import Draw
from dovetail.core.dra.pools import PoolId
from dovetail.core.dra.types import Allocation, Device, Slice


class Use(Struct):
    """The number of whole allocations of a device, and what each share consumes: (name, milli)."""

    whole: int = 0
    shares: list[tuple[tuple[str, int], ...]] = field(default_factory=list)

    def drawn(self, driver: str, device: Device) -> Draw:
        """What all shares together consume of each capacity of the device."""
        total: dict[str, int] = {}
        for share in self.shares:
            for name, milli in share:
                qualified = name if "/" in name else f"{driver}/{name}"
                total[qualified] = total.get(qualified, 0) + milli
        return tuple(total.get(name, 0) for name, _ in device.capacity)


class Pool(Struct, eq=False):
    """All slices of a pool by name, of any generation; the use of its devices, by name; the slots it is offered to."""

    slices: dict[str, Slice] = field(default_factory=dict)
    taken: dict[str, Use] = field(default_factory=dict)
    slots: set[int] = field(default_factory=set)

    def holders(self) -> dict[str, tuple[int, list[tuple[tuple[str, int], ...]]]]:
        """The allocated devices, in a form that can be compared."""
        return {name: (use.whole, sorted(use.shares)) for name, use in self.taken.items()}


Pools = dict[PoolId, Pool]


def enter(pools: Pools, allocation: Allocation | None, sign: int) -> list[Pool]:
    """Enter an allocation (`sign` 1), or remove it (-1). Returns the pools of its devices."""
    concerned = []
    for grant in allocation.grants if allocation is not None else ():
        if grant.admin_access:
            continue
        pool = pools.setdefault((grant.driver, grant.pool), Pool())
        use = pool.taken.setdefault(grant.device, Use())
        if not grant.share:
            use.whole += sign
        elif sign > 0:
            use.shares.append(grant.consumed)
        else:
            use.shares.remove(grant.consumed)
        if not use.whole and not use.shares:
            del pool.taken[grant.device]
        if pool not in concerned:
            concerned.append(pool)
    return concerned
