# SPDX-License-Identifier: Apache-2.0
"""Which nodes the parts of this process have taken out of service, or are about to, before any watch shows it.

Takeovers and rollouts share the budgets of spec.upgrade. Each decides from the objects of the cluster and from what the
others hold at this moment; between its decision and its `hold` it does not wait, so that two decisions never rest on
the same room. A process that begins knows what another part holds when that part has read it: until then `others` is
None, and nothing may be begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


class DisruptionShare:
    """What one part holds. `changed` is called when another part holds other nodes."""

    def __init__(self, shares: list[DisruptionShare], changed: Callable[[], None]) -> None:
        self._shares, self._changed = shares, changed
        self._held: frozenset[str] | None = None

    @property
    def known(self) -> bool:
        """Whether the part has read what it holds."""
        return self._held is not None

    @property
    def others(self) -> frozenset[str] | None:
        """The nodes that other parts hold; None while one of them does not know."""
        found = set[str]()
        for one in self._shares:
            if one is self:
                continue
            if one._held is None:
                return None
            found |= one._held
        return frozenset(found)

    def hold(self, nodes: Iterable[str]) -> None:
        """These, and no others from now on."""
        held = frozenset(nodes)
        if held == self._held:
            return
        self._held = held
        for one in self._shares:
            if one is not self:
                one._changed()


class Disruptions:
    """The shares of all parts of a process."""

    def __init__(self) -> None:
        self._shares: list[DisruptionShare] = []

    def join(self, changed: Callable[[], None]) -> DisruptionShare:
        """The share of one more part."""
        share = DisruptionShare(self._shares, changed)
        self._shares.append(share)
        return share
