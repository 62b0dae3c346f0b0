# SPDX-License-Identifier: Apache-2.0
"""The first object of a snapshot: when it was taken, what is not in it, and facts that are no objects of the cluster.

It is read by commands alone; no API server knows the kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TypeVar

import msgspec
from msgspec import Raw

from dovetail.core.json_text import JsonError, decode_json
from dovetail.kube.manifests.documents import Document, ManifestError
from dovetail.kube.objects.base import Wire, epoch_ms

API_VERSION, KIND = "dovetail.dev/v1alpha1", "Snapshot"
T = TypeVar("T")


class SnapshotRecord(Wire, frozen=True, kw_only=True):
    """`taken_at` is the time of the cluster, `dovetail` the version that wrote it. `unread` names what could not be
    read and why. `facts` are by the name of the command that shows them. With `redacted` names are pseudonyms."""

    api_version: str = API_VERSION
    kind: str = KIND
    metadata: dict[str, str] = msgspec.field(default_factory=lambda: {"name": "snapshot"})
    taken_at: datetime
    dovetail: str = ""
    redacted: bool = False
    unread: tuple[str, ...] = ()
    facts: dict[str, Raw] = msgspec.field(default_factory=dict)

    @property
    def taken_ms(self) -> int:
        """Epoch milliseconds."""
        return epoch_ms(self.taken_at)


class NoFacts(Exception):
    """The input has no such facts; the message is why."""


def is_record(document: Document) -> bool:
    """Whether this is the first object of a snapshot."""
    value = document.value
    return isinstance(value, dict) and (value.get("apiVersion"), value.get("kind")) == (API_VERSION, KIND)


def record_of(document: Document) -> SnapshotRecord:
    """Raises ManifestError."""
    try:
        # The facts are decoded when a command shows them.
        return decode_json(msgspec.json.encode(document.value), SnapshotRecord)
    except JsonError as error:
        raise ManifestError(f"{KIND}: {error}", document.file, document.line()) from error


def facts(documents: Iterable[Document], name: str, kind: type[T]) -> tuple[SnapshotRecord, T]:
    """The record and the facts of a command, as a `kind`. Raises ManifestError and NoFacts."""
    record = next((record_of(one) for one in documents if is_record(one)), None)
    if record is None:
        raise NoFacts(f"it is no snapshot: `dovetail snapshot` saves what `dovetail {name}` shows")
    if name not in record.facts:
        missing = [line for line in record.unread if line.startswith(f"{name}: ")]
        why = "names are redacted in it" if record.redacted else f"dovetail {record.dovetail} did not save them"
        raise NoFacts(missing[0] if missing else f"it has no facts for `dovetail {name}`: {why}")
    try:
        return record, decode_json(record.facts[name], kind)
    except JsonError as error:
        raise NoFacts(f"this version cannot read the facts of dovetail {record.dovetail}: {error}") from error
