# SPDX-License-Identifier: Apache-2.0
"""What the model must hear of its leases although it did not ask: save a checkpoint now, and that a lease is over.

Rules
- A notice of a deadline is a line in each answer until it is acknowledged, the lease is returned or renewed, or the
  lease is over. A new deadline is a new notice.
- That a lease is over is a line in the next answer, once. At most MOST_NOTICES are kept; the oldest are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from dovetail.core.bargaining.types import EndCause
from dovetail.plane.lease import RevokeNotice
from dovetail.plane.mcp.quoting import clean, quoted

MOST_NOTICES = 32
MOST_SHOWN = 8
"""In one answer."""
MOST_MESSAGE = 100
"""Characters of what the broker wrote."""
_NEXT = {
    EndCause.EXPIRED: "ask again if you need more time",
    EndCause.RETURNED: "nothing: the devices are free again",
}


class LeaseWarning(Struct, frozen=True):
    """A lease ends at `deadline_ms` (0: it is over) for this cause. `message` is the broker's, `action` what to do."""

    lease: str
    deadline_ms: int
    cause: EndCause
    message: str
    action: str


class LeaseWarnings:
    """`changed` is called for each new one."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._warnings: dict[str, LeaseWarning] = {}

    def deadline(self, lease: str, notice: RevokeNotice) -> None:
        """The lease is revoked, or its term ends soon."""
        self._put(LeaseWarning(lease, notice.deadline_ms, notice.cause, notice.message, notice.action))

    def over(self, lease: str, cause: EndCause) -> None:
        """The lease is over, and the model did not give it back."""
        action = _NEXT.get(cause, "stop using its devices; ask again, and go on from the last checkpoint")
        self._put(LeaseWarning(lease, 0, cause, "", action))

    def done(self, leases: Iterable[str]) -> None:
        """Acknowledged, returned or renewed: these are not repeated."""
        for lease in leases:
            self._warnings.pop(lease, None)

    def shown(self) -> tuple[LeaseWarning, ...]:
        """Those for the next answer. What is over comes once."""
        found = self.open
        self.done([one.lease for one in found if not one.deadline_ms])
        return found

    @property
    def open(self) -> tuple[LeaseWarning, ...]:
        """The first MOST_SHOWN: deadlines, the next one first, and then what is over. This does not count as shown."""
        order = sorted(self._warnings.values(), key=lambda one: (not one.deadline_ms, one.deadline_ms))
        return tuple(order[:MOST_SHOWN])

    def _put(self, warning: LeaseWarning) -> None:
        self._warnings.pop(warning.lease, None)
        self._warnings[warning.lease] = warning
        while len(self._warnings) > MOST_NOTICES:
            del self._warnings[next(iter(self._warnings))]
        self._changed()


def line(warning: LeaseWarning, now_ms: int) -> str:
    """The warning as one line of a text."""
    if not warning.deadline_ms:
        return f"LEASE OVER: {warning.lease} ended ({warning.cause}). Next: {warning.action}."
    left_s = max(0, (warning.deadline_ms - now_ms) // 1000)
    about = f" Broker: {quoted(warning.message, MOST_MESSAGE)}." if warning.message else ""
    return (
        f"CHECKPOINT NOW: lease {warning.lease} ends in {left_s} s ({warning.cause}). Next: {warning.action}."
        f"{about} Repeated until you acknowledge it with leases."
    )


def content(warning: LeaseWarning, now_ms: int) -> dict[str, object]:
    """The warning as JSON."""
    found: dict[str, object] = {"lease": warning.lease, "cause": warning.cause.value, "action": warning.action}
    if not warning.deadline_ms:
        return {"kind": "over", **found}
    left_s = max(0, (warning.deadline_ms - now_ms) // 1000)
    return {"kind": "checkpoint", "seconds_left": left_s, "message": clean(warning.message, MOST_MESSAGE), **found}
