# SPDX-License-Identifier: Apache-2.0
"""Leader election on a coordination.k8s.io Lease: client-go's algorithm as a pure step function, and a loop around it.

Rules
- The times written in a lease are for people. A candidate waits until the lease has not changed for its duration,
  measured on its own monotonic clock from when it saw the last change.
- A leader counts from before it sent the write that renewed the lease, and is leader no more `renew_deadline_ms` later.
  The deadline is shorter than the duration, so it has stopped before anyone else begins, however long a process, a
  write or the network is held up, while clocks differ in rate by less than duration / deadline.
- Every write is conditional on the resource version that was read: of two candidates one loses.
- A write with an unknown outcome is a failed one; the lease is read again.
Does not know: what a leader does. A leader asks `is_leader` right before each act.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.kube.api.client import JSON, MERGE_PATCH, Attempts, Client
from dovetail.kube.api.errors import AlreadyExists, Conflict, KubeError, NotFound
from dovetail.kube.api.resources import LEASES

log = logging.getLogger(__name__)

LEASE_LABEL = {"app.kubernetes.io/name": "dovetail-scheduler"}
"""What leases of our schedulers are found by."""
SCHEDULER_NAME = "dovetail.dev/scheduler-name"
"""The annotation of a lease with the scheduler name of its holder: two such leases are two leaders."""


class Terms(Struct, frozen=True):
    """The times of an election; kube-scheduler's by default. All replicas should have the same."""

    duration_ms: int = 15_000
    renew_deadline_ms: int = 10_000
    retry_period_ms: int = 2_000

    def __post_init__(self) -> None:
        if not self.duration_ms > self.renew_deadline_ms > self.retry_period_ms > 0:
            raise ValueError(f"lease duration > renew deadline > retry period > 0 does not hold: {self}")


class LeaseLock(Struct, frozen=True):
    """The Lease that candidates contend for, and the labels and annotations that it gets when it is taken."""

    namespace: str
    name: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}

    @property
    def marks(self) -> dict[str, dict[str, str]]:
        """Of the metadata, the part that is not empty."""
        both = {"labels": self.labels, "annotations": self.annotations}
        return {field: values for field, values in both.items() if values}


class LeaseRecord(Struct, frozen=True):
    """The fields of a lease that count. `version` is the resource version; "" in a record that is to be created."""

    holder: str
    duration_ms: int
    transitions: int
    version: str


class Woke(Struct, frozen=True):
    """Happened: the time to wait is over, or the election begins."""


class ObservedLease(Struct, frozen=True):
    """Happened: the lease was read. None: there is none."""

    record: LeaseRecord | None


class LeaseWritten(Struct, frozen=True):
    """Happened: the write succeeded, and this is the lease now."""

    record: LeaseRecord


class Failed(Struct, frozen=True):
    """Happened: a read or write failed or was refused, or its outcome is unknown."""


class LeaseLook(Struct, frozen=True):
    """To do: read the lease, then step with Seen or Failed."""


class Write(Struct, frozen=True):
    """To do: write this record if the version is still the one in it, then step with Written or Failed."""

    record: LeaseRecord
    acquire: bool


class Wait(Struct, frozen=True):
    """To do: nothing until then; then step with Woke."""

    until_ms: int


class Lead(Struct, frozen=True):
    """To do: lead (or go on leading); step with Woke then."""

    until_ms: int


class StepDown(Struct, frozen=True):
    """To do: stop leading at once; then step with Woke."""


Happening = Woke | ObservedLease | LeaseWritten | Failed
Action = LeaseLook | Write | Wait | Lead | StepDown


class LeaseState(Struct, frozen=True):
    """The state of a candidate. All times are its own monotonic milliseconds."""

    identity: str
    terms: Terms = Terms()
    seen: LeaseRecord | None = None
    # When `seen` was first seen.
    changed_ms: int = 0
    # Whether `seen` is what our last write left, so that the next one needs no read.
    ours: bool = False
    sent_ms: int = 0
    # None when not leading.
    leads_until_ms: int | None = None

    def leads(self, now_ms: int) -> bool:
        return self.leads_until_ms is not None and now_ms < self.leads_until_ms


def step(state: LeaseState, happening: Happening, now_ms: int) -> tuple[LeaseState, Action]:
    """The next action after an event."""
    terms = state.terms
    if isinstance(happening, ObservedLease | LeaseWritten) and happening.record != state.seen:
        state = replace(state, seen=happening.record, changed_ms=now_ms)
    state = replace(state, ours=isinstance(happening, LeaseWritten) or (isinstance(happening, Woke) and state.ours))
    if state.leads_until_ms is not None:
        usurped = isinstance(happening, ObservedLease) and (state.seen is None or state.seen.holder != state.identity)
        if usurped or now_ms >= state.leads_until_ms:
            return replace(state, leads_until_ms=None), StepDown()
    match happening:
        case Woke():
            return _write(state, now_ms) if state.ours else (state, LeaseLook())
        case ObservedLease(record):
            held = record is not None and record.holder not in ("", state.identity)
            if record and held and now_ms < state.changed_ms + (record.duration_ms or terms.duration_ms):
                return state, Wait(now_ms + terms.retry_period_ms)
            return _write(state, now_ms)
        case LeaseWritten() if now_ms < state.sent_ms + terms.renew_deadline_ms:
            until_ms = state.sent_ms + terms.renew_deadline_ms
            return replace(state, leads_until_ms=until_ms), Lead(now_ms + terms.retry_period_ms)
        case _:
            return state, Wait(now_ms + terms.retry_period_ms)


def _write(state: LeaseState, now_ms: int) -> tuple[LeaseState, Write]:
    seen = state.seen or LeaseRecord("", 0, -1, "")
    acquire = seen.holder != state.identity
    record = LeaseRecord(state.identity, state.terms.duration_ms, seen.transitions + acquire, seen.version)
    return replace(state, sent_ms=now_ms), Write(record, acquire)


def resign(record: LeaseRecord) -> Write:
    """The record that releases a lease, so that the next leader need not wait."""
    return Write(replace(record, holder="", duration_ms=1_000), acquire=False)


class _Spec(Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None


class _Meta(Struct, rename="camel"):
    resource_version: str = ""


class _Lease(Struct):
    metadata: _Meta
    spec: _Spec = field(default_factory=_Spec)

    def record(self) -> LeaseRecord:
        spec, version = self.spec, self.metadata.resource_version
        duration_ms = 1_000 * (spec.lease_duration_seconds or 0)
        return LeaseRecord(spec.holder_identity or "", duration_ms, spec.lease_transitions or 0, version)


def monotonic_ms() -> int:
    """Milliseconds since some moment, of a clock that is never set."""
    # Unlike CLOCK_MONOTONIC this one also counts while the machine is suspended, as the other candidates' clocks do.
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1_000_000


class Elector:
    """One candidate. `identity` gets a random suffix, as two processes of one name would both believe that they lead.

    `on_started_leading` and `on_stopped_leading` are called in turn, the second also when `run` is cancelled; they must
    not block. The second may come late (a frozen process), which is why acts are guarded by `is_leader`.
    """

    def __init__(
        self,
        client: Client,
        lock: LeaseLock,
        identity: str,
        *,
        on_started_leading: Callable[[], None],
        on_stopped_leading: Callable[[], None],
        terms: Terms = Terms(),
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self.identity = f"{identity}_{secrets.token_hex(4)}"
        self._client = client
        self._lock = lock
        self._on_started_leading = on_started_leading
        self._on_stopped_leading = on_stopped_leading
        self._clock_ms = clock_ms
        self._state = LeaseState(self.identity, terms)
        self._leading = False

    @property
    def is_leader(self) -> bool:
        """Whether this process leads at this moment. Cheap: check it before every write."""
        return self._state.leads(self._clock_ms())

    @property
    def leader(self) -> str:
        """The identity that held the lease when it was last seen; "" if it was free."""
        return self._state.seen.holder if self._state.seen else ""

    async def run(self) -> None:
        """Take part in the election until cancelled; call `release` after that, so that another candidate can lead
        without waiting."""
        happening: Happening = Woke()
        try:
            while True:
                self._state, action = step(self._state, happening, self._clock_ms())
                match action:
                    case LeaseLook():
                        happening = await self._attempt(self._look())
                    case Write():
                        happening = await self._attempt(self._write(action))
                    case StepDown():
                        self._report_leading(leading=False)
                        happening = Woke()
                    case Wait(until_ms) | Lead(until_ms):
                        self._report_leading(leading=self.is_leader)
                        # Candidates that wait are spread a little, or they would all try in the same instant.
                        spread = 1.0 if self._leading else 1.0 + 0.2 * self._client.jitter()
                        await asyncio.sleep(max(0, until_ms - self._clock_ms()) / 1_000 * spread)
                        happening = Woke()
        finally:
            self._state = replace(self._state, leads_until_ms=None, ours=False)
            self._report_leading(leading=False)

    async def release(self) -> None:
        """After `run`: release the lease if it is still held. Errors are only logged, as the lease expires by
        itself."""
        # Read first: the write that `run` was cancelled in may have taken effect.
        seen = await self._attempt(self._look())
        if isinstance(seen, ObservedLease) and seen.record and seen.record.holder == self.identity:
            await self._attempt(self._write(resign(seen.record)))

    def _report_leading(self, *, leading: bool) -> None:
        if leading != self._leading:
            self._leading = leading
            (self._on_started_leading if leading else self._on_stopped_leading)()

    async def _attempt(self, happening: Awaitable[Happening]) -> Happening:
        try:
            return await happening
        except (Conflict, AlreadyExists):
            return Failed()
        except KubeError as error:
            log.warning("election: %s; trying again", error)
            return Failed()

    async def _look(self) -> ObservedLease:
        path = LEASES.path(self._lock.namespace, self._lock.name)
        try:
            lease = await self._client.request("GET", path, decode=_Lease, attempts=self._attempts())
        except NotFound:
            return ObservedLease(None)
        return ObservedLease(lease.record())

    async def _write(self, write: Write) -> LeaseWritten | Failed:
        record, lock, now = write.record, self._lock, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec: dict[str, object] = {
            "holderIdentity": record.holder,
            "leaseDurationSeconds": record.duration_ms // 1_000,
            "leaseTransitions": record.transitions,
            "renewTime": now,
        }
        metadata: dict[str, object] = {}
        if write.acquire:
            spec["acquireTime"] = now
            metadata |= self._lock.marks
        if record.version:
            # A patch, as a PUT of the fields read here would drop the labels and annotations of others.
            method, path, content_type = "PATCH", LEASES.path(lock.namespace, lock.name), MERGE_PATCH
            metadata["resourceVersion"] = record.version
            body: dict[str, object] = {"metadata": metadata, "spec": spec}
        else:
            method, path, content_type = "POST", LEASES.path(lock.namespace), JSON
            metadata["name"] = lock.name
            body = {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": metadata, "spec": spec}
        try:
            lease = await self._client.request(
                method, path, body, decode=_Lease, content_type=content_type, attempts=self._attempts()
            )
        except NotFound:
            if record.version:
                raise
            there = f"there is no namespace {lock.namespace} for the lease"
            log.warning("election: %s: kubectl create namespace %s; trying again", there, lock.namespace)
            return Failed()
        return LeaseWritten(lease.record())

    def _attempts(self) -> Attempts:
        """No request may outlast the leadership, as stepping down would wait for it, or queue behind other writes."""
        until_ms = self._state.leads_until_ms
        left_ms = self._state.terms.renew_deadline_ms if until_ms is None else until_ms - self._clock_ms()
        return Attempts(max(left_ms, 1) / 1_000, retries=0, urgent=True)
