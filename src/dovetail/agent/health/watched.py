# SPDX-License-Identifier: Apache-2.0
"""Which errors count.

Rules: the ignored XIDs are those of NVIDIA's device plugin, with its two environment variables. DP_DISABLE_HEALTHCHECKS
lists XIDs to ignore, besides 13, 31, 43, 45, 68 and 109; `xids` ignores all XIDs and ECC errors, `all` disables every
check. DP_ENABLE_HEALTHCHECKS lists XIDs that count anyway, or `all`; it takes precedence over the other. Both take
precedence over the administrator's table of actions (`agent.health.xids`), and that over the six ignored XIDs: an XID
that the table names counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from dovetail.agent.health.xids import Action, XidTable, default

DISABLE = "DP_DISABLE_HEALTHCHECKS"
ENABLE = "DP_ENABLE_HEALTHCHECKS"
IGNORED = frozenset({13, 31, 43, 45, 68, 109})
"""The errors that applications cause, as in NVIDIA's device plugin."""

BY_DRIVER = 154
"""Not an error, but the notice that the driver's recommended recovery action has changed: the driver is queried."""


class WatchedError(ValueError):
    """One of the two variables is invalid; the text names it, its value, and the valid values."""


class Watched(Struct, frozen=True):
    """Which errors count. `none`: no health checks at all. `events`: ECC errors count, and XIDs that are not in
    `ignored`; without it only the XIDs in `enabled` count, and ECC errors do not. `table` has their actions."""

    none: bool = False
    events: bool = True
    ignored: frozenset[int] = IGNORED
    enabled: frozenset[int] = frozenset()
    table: XidTable = field(default_factory=default)

    def counts(self, xid: int) -> bool:
        return xid in self.enabled or (self.events and xid not in self.ignored)

    def makes_unhealthy(self, xid: int | None) -> bool:
        """Whether this XID, or a double-bit ECC error (None), makes a GPU unhealthy."""
        if self.none:
            return False
        if xid is None:
            return self.events
        return xid in self.enabled or (self.counts(xid) and self.table.meaning(xid).action != Action.NOTE)


def watched(variables: Mapping[str, str], table: XidTable | None = None) -> Watched:
    """The errors that count according to the two variables and the table (see above). Raises WatchedError."""
    table = table if table is not None else default()
    disabled, off = _listed(DISABLE, variables)
    enabled, on = _listed(ENABLE, variables)
    return Watched(
        none="all" in off and not enabled and not on,
        events=bool(on) or not off,
        ignored=frozenset() if on else (IGNORED - table.replaced) | disabled,
        enabled=enabled,
        table=table,
    )


def _listed(variable: str, variables: Mapping[str, str]) -> tuple[frozenset[int], set[str]]:
    """The XIDs and the keywords in a variable."""
    items = [item.strip().lower() for item in variables.get(variable, "").split(",") if item.strip()]
    words = {item for item in items if item in ("all", "xids")}
    for item in items:
        if item not in words and not (item.isdecimal() and item.isascii()):
            raise WatchedError(f"{variable}: {item!r} is neither the number of an XID nor `all` or `xids`")
    return frozenset(int(item) for item in items if item not in words), words
