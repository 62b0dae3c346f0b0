# SPDX-License-Identifier: Apache-2.0
"""Registers an API, of the scheduler's views or of the history, while it is answered, and takes it away when it is not.

Rules
- The addresses in the EndpointSlices show that a leader, or a collector, lives: it writes them again within half a
  minute. To take the
  API away, first they are emptied, and then it is deleted: a process that ends between the two leaves what the next one
  goes on from.
- Nothing is withdrawn while the slices or the API cannot be read.
- A change of the GPUStack ends the pause: whoever changed it may have removed the cause.
- A process that begins while the API is withdrawn waits for the first pause, so that one that restarts again and again
  does not register it each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from dovetail.kube.api.client import MERGE_PATCH
from dovetail.kube.api.errors import KubeError
from dovetail.kube.api.resources import API_SERVICES, ENDPOINT_SLICES
from dovetail.kube.namespaces import SYSTEM_NAMESPACE
from dovetail.kube.objects.history import HISTORY_GROUP, HISTORY_VERSION
from dovetail.kube.objects.stack import GPUStack, StackCondition, StackStatus
from dovetail.kube.objects.views import VIEWS_GROUP, VIEWS_VERSION
from dovetail.operator import metrics
from dovetail.operator.conditions import HISTORY_AVAILABLE, VIEWS_AVAILABLE, StackReason, condition
from dovetail.operator.live import LiveObject, ObjectRef
from dovetail.operator.parts import SharedByParts, StackPart
from dovetail.operator.rendering.stack_objects import Document
from dovetail.operator.views.state import UNANSWERED_S, ViewFacts, ViewRecord, ViewState, followed, withdrawn

_AGAIN_S = 5.0


class RegisteredApi(Struct, frozen=True):
    """An API: its APIService, the name of its Service, the condition of the GPUStack, what answers it, and what is so
    while nothing does."""

    api: ObjectRef
    service: str
    condition: str
    answerer: str
    meanwhile: str

    @property
    def slices(self) -> tuple[ObjectRef, ...]:
        names = (f"{self.service}-{family}" for family in ("ipv4", "ipv6"))
        return tuple(ObjectRef(ENDPOINT_SLICES, SYSTEM_NAMESPACE, name) for name in names)


VIEWS = RegisteredApi(
    ObjectRef(API_SERVICES, "", f"{VIEWS_VERSION}.{VIEWS_GROUP}"), "dovetail-views", VIEWS_AVAILABLE, "scheduler",
    "commands read the cluster themselves",
)  # fmt: skip
HISTORY = RegisteredApi(
    ObjectRef(API_SERVICES, "", f"{HISTORY_VERSION}.{HISTORY_GROUP}"), "dovetail-history", HISTORY_AVAILABLE,
    "collector", "history, report, cost, idle and advise are not answered",
)  # fmt: skip


class ApiRegistration(StackPart):
    """The registration of one API."""

    def __init__(self, shared: SharedByParts, answered: RegisteredApi) -> None:
        self._shared = shared
        self._answered = answered
        self._stack: GPUStack | None = None
        self._asked: bool | None = None
        """Whether the stack has views; None before that is known."""
        self._record: ViewRecord | None = None
        self._emptied = True
        """Whether the addresses are gone since the API was withdrawn."""
        self._woken = asyncio.Event()

    def follow(self, stack: GPUStack | None) -> None:
        before, self._stack = self._stack, stack
        if stack is None:
            self._asked, self._record, self._emptied = None, None, True
            return
        record = self._record
        changed = before is not None and before.metadata.generation != stack.metadata.generation
        if changed and record is not None and record.state is ViewState.WITHDRAWN:
            self._record = replace(record, until_s=time.monotonic(), tries=0)
        self._look()

    def adjusted(self, documents: tuple[Document, ...]) -> tuple[Document, ...]:
        """The objects; the API is among them while it is to be registered."""
        self._asked = any(self._is_api(one) for one in documents)
        if not self._asked:
            self._record = None
        elif self._record is None:
            self._look()
        if self._wanted:
            return documents
        return tuple(one for one in documents if not self._is_api(one))

    def unwanted(self) -> tuple[ObjectRef, ...]:
        """The API, while it is withdrawn, or no leader has written its address."""
        return () if self._wanted or not self._emptied else (self._answered.api,)

    def report(self, status: StackStatus) -> StackStatus:
        """The status with the condition of the views, where the stack has them."""
        if not self._asked or self._record is None:
            return status
        return replace(status, conditions=(*status.conditions, condition_of(self._record, self._answered)))

    async def run(self) -> None:
        """Withdraw the API when that is due, until cancelled."""
        while True:
            self._woken.clear()
            wait_s = self._wait_s()
            try:
                await self._step()
            except KubeError as error:
                metrics.log.warning("the API %s: %s; trying again", self._answered.api.name, error)
                wait_s = _AGAIN_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()

    def _is_api(self, document: Document) -> bool:
        return (document["kind"], document["metadata"]["name"]) == (API_SERVICES.kind, self._answered.api.name)

    @property
    def _wanted(self) -> bool:
        """Whether the API is to be registered. While nothing is known it stays as it is."""
        if self._record is None:
            return self._shared.objects.get(self._answered.api) is not None
        return self._record.state is ViewState.REGISTERED

    def _wait_s(self) -> float | None:
        due_s = None if self._record is None else self._record.due_s
        wait_s = None if due_s is None else due_s - time.monotonic()
        return wait_s if wait_s is not None and wait_s > 0 else None

    async def _step(self) -> None:
        """Do what is due. Raises ApiError, NotLeading."""
        before = self._record
        self._look()
        if not self._emptied:
            for ref in self._answered.slices:
                if _addresses(self._shared.objects.get(ref)):
                    await self._shared.client.fetch("PATCH", ref.path, {"endpoints": []}, content_type=MERGE_PATCH)
            self._emptied = True
            metrics.log.warning(
                "the API %s is withdrawn: %s", self._answered.api.name, self._record and self._record.why
            )
            self._shared.changed()
        elif self._record != before:
            self._shared.changed()

    def _look(self) -> None:
        """Bring the record up to date."""
        objects, stack = self._shared.objects, self._stack
        if stack is None or self._asked is False or any(map(objects.unread, (API_SERVICES, ENDPOINT_SLICES))):
            return
        now_s, api = time.monotonic(), objects.get(self._answered.api)
        before = self._record
        if before is None:
            old = next((one for one in stack.status.conditions if one.type == self._answered.condition), None)
            gone = old is not None and old.reason == StackReason.NOT_ANSWERED and api is None
            before = withdrawn("", now_s) if gone else ViewRecord()
        addressed = any(_addresses(objects.get(ref)) for ref in self._answered.slices)
        record = followed(before, ViewFacts(addressed, *_availability(api)), now_s)
        if record == self._record:
            return
        if (record.state is ViewState.WITHDRAWN) is not (before.state is ViewState.WITHDRAWN):
            self._emptied = record.state is not ViewState.WITHDRAWN
        self._record = record
        self._woken.set()


def condition_of(record: ViewRecord, answered: RegisteredApi) -> StackCondition:
    """The condition of the GPUStack."""
    answerer = answered.answerer
    match record.state:
        case ViewState.AWAITED:
            reason, text = StackReason.NOT_REGISTERED, f"no {answerer} has registered; {answered.meanwhile}"
        case ViewState.WITHDRAWN:
            shown = f" ({record.why})" if record.why else ""
            reason = StackReason.NOT_ANSWERED
            text = (
                f"nothing answered the API server for {UNANSWERED_S / 60:.0f} minutes{shown}, so the API was removed; "
                f"it comes back after a pause, once a {answerer} has registered"
            )
        case ViewState.REGISTERED if record.answered:
            reason, text = StackReason.ANSWERED, ""
        case _:
            reason, text = StackReason.REGISTERING, f"a {answerer} has registered; the API server has no answer yet"
    return condition(answered.condition, reason, text)


def _addresses(live: LiveObject | None) -> list[str]:
    return list(_each_address(live)) if live is not None else []


def _each_address(live: LiveObject) -> Iterator[str]:
    for endpoint in live.endpoints or ():
        yield from endpoint.get("addresses") or ()


def _availability(api: LiveObject | None) -> tuple[bool | None, str]:
    """Whether the API server gets answers, and its words where it does not."""
    status = api.status if api is not None and isinstance(api.status, dict) else {}
    for one in status.get("conditions") or ():
        if one.get("type") == "Available":
            # What comes before the cause is the address, twice.
            cause = str(one.get("message", "")).rpartition('": ')[2]
            return one.get("status") == "True", f"{one.get('reason', '')}: {cause}".strip(": ")
    return None, ""
