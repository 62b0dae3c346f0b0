# SPDX-License-Identifier: Apache-2.0
"""A lease as its agent holds it.

Rules
- `devices` and `fence` are there only while the lease is surely live: before its end and its revocation's deadline,
  and not longer than its grace after the broker was last heard. Nothing that the broker decides can take effect sooner
  than that.
- What is over stays over. A lease that was only unsure, since the broker was away, is live again with the next news.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Protocol

from msgspec import Struct

from dovetail.core.bargaining.types import EndCause, GpuLease, LeaseAction, LeaseAlternative, Revocation
from dovetail.plane.broker import BrokerClock, LeaseNotice
from dovetail.plane.placement import HeldDevice, devices_of

_MINUTE_MS = 60_000


class LeaseOver(Exception):
    """The lease is not, or not surely, held any more."""


class NotGranted(Exception):
    """A negotiation ended without a lease; the message is why."""


class RenewalRefused(Exception):
    """The lease ends when it did before; the message is why."""


class RevokeNotice(Struct, frozen=True):
    """The devices are gone at `deadline_ms` of the broker's clock, in `left`. `action` is what to do now. The cause is
    EXPIRED where the term is about to end: a renewal may still be possible."""

    deadline_ms: int
    left: timedelta
    cause: EndCause
    message: str
    action: str


OnRevoke = Callable[[RevokeNotice], Awaitable[None] | None]


class LeaseOwner(Protocol):
    """What a lease needs of its plane."""

    @property
    def clock(self) -> BrokerClock: ...

    @property
    def heard_ms(self) -> int: ...

    async def act(self, lease: PlaneLease, action: LeaseAction) -> None: ...

    async def answer_to(self, lease: PlaneLease, number: int) -> str: ...


class PlaneLease:
    """`revoked` is set once the lease is revoked, `over` once it has ended; both can be awaited (`.wait()`)."""

    def __init__(self, owner: LeaseOwner, notice: LeaseNotice) -> None:
        self.revoked = asyncio.Event()
        self.over = asyncio.Event()
        self.cause: EndCause | None = None
        self.on_revoke: OnRevoke | None = None
        self.asked_as = ""
        """The name in the AgentRequest that led to it."""
        self._owner = owner
        self._notice = notice
        self._renewing = asyncio.Lock()
        self._number = notice.answered
        self.reported_ms = 0
        """The deadline that on_revoke was called for last."""

    def __repr__(self) -> str:
        state = "live" if self.live else "over" if self.over.is_set() else "unsure"
        return f"<lease {self.name} of {self.granted.count} devices, {state}>"

    @property
    def record(self) -> GpuLease:
        """The lease as the broker last described it."""
        return self._notice.lease

    @property
    def notice(self) -> LeaseNotice:
        return self._notice

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def name(self) -> str:
        """The last part of its id: the name of the GPULease, which pods within it name."""
        return self.record.name

    @property
    def granted(self) -> LeaseAlternative:
        """What was granted."""
        return self.record.alternative

    @property
    def revocation(self) -> Revocation | None:
        return self.record.revocation

    @property
    def end_ms(self) -> int:
        """When it ends, by the broker's clock, as far as is known."""
        record = self.record
        return min(record.end_ms, record.revocation.deadline_ms) if record.revocation is not None else record.end_ms

    @property
    def sure_until_ms(self) -> int:
        """Until when it is surely live without further news."""
        record = self.record
        # Nothing about it was decided before it was granted.
        heard_ms = max(self._owner.heard_ms, record.start_ms)
        return min(self.end_ms, heard_ms + record.grace_ms) if record.grace_ms else self.end_ms

    @property
    def live(self) -> bool:
        return not self.over.is_set() and self._owner.clock.now_ms() < self.sure_until_ms

    @property
    def devices(self) -> tuple[HeldDevice, ...]:
        """Raises LeaseOver."""
        self._require()
        return devices_of(self.record)

    @property
    def fence(self) -> int:
        """What everything that acts under the lease shows; of two leases of a device the later has the greater one.
        Raises LeaseOver."""
        self._require()
        return self.record.fence

    def remaining(self) -> timedelta:
        """The time until it ends, zero once it is over."""
        left_ms = 0 if self.over.is_set() else self.end_ms - self._owner.clock.now_ms()
        return timedelta(milliseconds=max(0, left_ms))

    async def renew(self, minutes: float) -> timedelta:
        """Let it end in so many minutes from now, at most a term. The broker takes it in the last third of a term.
        Returns the time that remains. Raises RenewalRefused."""
        async with self._renewing:
            number = self._next_number()
            # A whole term from now, and not a moment more, is what the broker takes.
            until_ms = self._owner.clock.least_ms() + round(_MINUTE_MS * minutes)
            await self._owner.act(self, LeaseAction(self.id, number, self.record.fence, "renew", until_ms))
            refused = await self._owner.answer_to(self, number)
            if refused:
                raise RenewalRefused(refused)
            return self.remaining()

    async def give_back(self) -> None:
        """Return it. Its devices must not be used from this call on. Without a broker it ends by itself, at its end."""
        if self.over.is_set():
            return
        self.close(EndCause.RETURNED)
        await self._owner.act(self, LeaseAction(self.id, self._next_number(), self.record.fence, "return"))

    def see(self, notice: LeaseNotice) -> None:
        """News of it."""
        self._notice = notice
        if notice.lease.revocation is not None:
            self.revoked.set()

    def close(self, cause: EndCause) -> None:
        """It is over."""
        if not self.over.is_set():
            self.cause = cause
            self.over.set()

    def _next_number(self) -> int:
        # Greater than those of an earlier process of the agent, too.
        self._number = max(self._number + 1, self._notice.answered + 1)
        return self._number

    def _require(self) -> None:
        if self.over.is_set():
            raise LeaseOver(f"the lease {self.name} is over: {self.cause}")
        if not self.live:
            raise LeaseOver(
                f"the lease {self.name} may be over: the broker was not heard for too long, or its end came"
            )


def advice(lease: PlaneLease, now_ms: int) -> RevokeNotice:
    """What to report of a lease that ends soon."""
    revocation = lease.revocation
    left = timedelta(milliseconds=max(0, lease.end_ms - now_ms))
    if revocation is None:
        what = "renew the lease, or save a checkpoint now"
        return RevokeNotice(lease.end_ms, left, EndCause.EXPIRED, "the term ends", what)
    lost = revocation.cause is EndCause.HARDWARE
    what = (
        "start again from the last checkpoint elsewhere" if lost else "save a checkpoint now, and give the lease back"
    )
    return RevokeNotice(revocation.deadline_ms, left, revocation.cause, revocation.message, what)
