# SPDX-License-Identifier: Apache-2.0
"""Brings objects to what is wanted: server-side apply with the operator's field manager, only where something differs.

Rules
- An object whose live state has all wanted fields is not written (`comparison`).
- A difference that remains after a write, because a webhook or a default changes what was written, is remembered with
  the content that the write left: while neither changes it is not written again, and it is reported as altered.
- An object that others change again and again is restored after growing pauses, and reported as contested.
- A refused object does not hold up the others. An API server that does not answer ends the pass.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from dovetail.kube.api.client import APPLY_PATCH, Attempts, Client
from dovetail.kube.api.errors import ApiError, Conflict, NotFound, OutcomeUnknown, Unreachable
from dovetail.operator import metrics
from dovetail.operator.comparison import FIELD_MANAGER, differences
from dovetail.operator.conditions import StackReason
from dovetail.operator.inventory import OwnedObjects
from dovetail.operator.kinds import resource_of
from dovetail.operator.live import LiveObject, ObjectRef, digest
from dovetail.operator.rendering.stack_objects import Document

_ATTEMPTS = Attempts(retries=1)
_FORCED: dict[str, str | int] = {"fieldManager": FIELD_MANAGER, "force": "true"}
_CONTESTED = 3
"""Restored so often within a calm period, an object is contested."""
_PAUSE_S, _PAUSE_MAX_S = 2.0, 300.0
_CALM_S = 600.0
_ADMISSION = ("admission webhook", "failed calling webhook", "ValidatingAdmissionPolicy", "denied the request")


class ApplyProblem(Struct, frozen=True):
    """Why an object is not as wanted."""

    ref: ObjectRef
    reason: StackReason
    text: str

    def __str__(self) -> str:
        return f"{self.ref}: {self.text}"


class ApplyResult(Struct):
    """What a pass over all objects found. `altered`: objects that something changes while they are written. `again_s`:
    seconds after which a paused restoration is due."""

    written: int = 0
    problems: list[ApplyProblem] = []
    altered: list[str] = []
    again_s: float | None = None


class _Record(Struct):
    """Of an object: what was last applied, what that left, and how often it was restored, lately."""

    wanted: bytes = b""
    left: bytes = b""
    restored: int = 0
    last_s: float = 0.0


class Applier:
    """Writes objects."""

    def __init__(self, client: Client, inventory: OwnedObjects) -> None:
        self._client = client
        self._inventory = inventory
        self._records: dict[ObjectRef, _Record] = {}
        self._deleted: set[str] = set()

    async def apply(self, documents: Iterable[Document]) -> ApplyResult:
        """Apply what differs, in this order. Raises NotLeading, and ApiError where the server does not answer."""
        result = ApplyResult()
        for document in documents:
            meta = document["metadata"]
            ref = ObjectRef(resource_of(document), meta.get("namespace", ""), meta["name"])
            if error := self._inventory.unread(ref.resource):
                result.problems.append(ApplyProblem(ref, StackReason.FORBIDDEN, str(error)))
                continue
            try:
                await self._bring(ref, document, result)
            except (Unreachable, OutcomeUnknown):
                raise
            except ApiError as error:
                if error.status == 429 or (error.status >= 500 and not _by_admission(error)):
                    raise
                result.problems.append(ApplyProblem(ref, reason_of(error), error.message))
        return result

    async def _bring(self, ref: ObjectRef, document: Document, result: ApplyResult) -> None:
        live, wanted = self._inventory.get(ref), digest(document)
        record, found = self._records.setdefault(ref, _Record()), None
        if live is not None:
            found = next(differences(document, live), None)
            if found is None:
                record.wanted, record.left = wanted, b""
                return
            if (record.wanted, record.left) == (wanted, digest(live.content)):
                result.altered.append(f"{ref}: {found}")
                return
        now_s = time.monotonic()
        if record.wanted == wanted:
            # It was as wanted, or was written, and somebody has changed or deleted it since.
            pause_s = self._pause_s(record, now_s)
            if record.restored >= _CONTESTED:
                text = f"others change it again and again, {found or 'it is deleted'} for example"
                result.problems.append(ApplyProblem(ref, StackReason.CONTESTED, text))
            if pause_s > 0:
                result.again_s = min(result.again_s or pause_s, pause_s)
                return
            record.restored, record.last_s = record.restored + 1, now_s
            metrics.count(metrics.RESTORED, ref.resource.kind)
            metrics.log.warning("restoring %s: others changed %s", ref, found or "it: it was deleted")
        left = await self._apply(ref, document)
        if left is not None:
            remains = next(differences(document, left), None)
            record.wanted, record.left = wanted, digest(left.content) if remains else b""
            if remains:
                result.altered.append(f"{ref}: {remains}")
        result.written += 1

    def _pause_s(self, record: _Record, now_s: float) -> float:
        """Seconds to wait before the object is restored once more."""
        if now_s - record.last_s > _CALM_S:
            record.restored = 0
        if not record.restored:
            return 0.0
        return record.last_s + min(_PAUSE_MAX_S, _PAUSE_S * 2.0 ** (record.restored - 1)) - now_s

    async def _apply(self, ref: ObjectRef, document: Document) -> LiveObject:
        live = await self._write(
            ref, "apply", "PATCH", ref.path, document, decode=LiveObject, params=_FORCED, content_type=APPLY_PATCH
        )
        assert isinstance(live, LiveObject)
        self._inventory.note(ref, live)
        metrics.log.info("applied %s", ref)
        return live

    async def delete(self, ref: ObjectRef, live: LiveObject, *, foreground: bool = False) -> None:
        """Delete this object, and no other one of its name. With `foreground` it stays until what it owns is gone."""
        uid = live.metadata.uid
        if uid in self._deleted or live.metadata.deletion_timestamp is not None:
            return
        options = {
            "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid},
            "propagationPolicy": "Foreground" if foreground else "Background",
        }  # fmt: skip
        with contextlib.suppress(NotFound):
            await self._write(ref, "delete", "DELETE", ref.path, options)
        self._deleted.add(uid)
        self._records.pop(ref, None)
        metrics.log.info("deleted %s", ref)

    async def remove(self, ref: ObjectRef, live: LiveObject, *, foreground: bool = False) -> ApplyProblem | None:
        """Delete this object. Returns why the server refuses it. Raises as `apply`, and Conflict where it is another
        object of this name."""
        try:
            await self.delete(ref, live, foreground=foreground)
        except (Unreachable, OutcomeUnknown, Conflict):
            raise
        except ApiError as error:
            return ApplyProblem(ref, reason_of(error), str(error))
        return None

    async def _write(self, ref: ObjectRef, verb: str, method: str, path: str, body: Document, **options: Any) -> Any:
        kind = ref.resource.kind
        try:
            reply = await self._client.request(method, path, body, attempts=_ATTEMPTS, **options)
        except ApiError as error:
            metrics.count(metrics.WRITES, kind, verb, "gone" if isinstance(error, NotFound) else "refused")
            raise
        metrics.count(metrics.WRITES, kind, verb, "written")
        return reply


def reason_of(error: ApiError) -> StackReason:
    """The reason for a refusal."""
    if _by_admission(error):
        return StackReason.REFUSED_BY_ADMISSION
    if error.status in (401, 403):
        return StackReason.FORBIDDEN
    return StackReason.KIND_MISSING if error.status == 404 else StackReason.INVALID


def _by_admission(error: ApiError) -> bool:
    return any(text in error.message for text in _ADMISSION)
