# SPDX-License-Identifier: Apache-2.0
"""What a Fabric records of an import: each source with its places and time, the writers of the fabric's labels on the
nodes with their times, and what is wrong between the sources.

Rules
- The places of a source are its narrowest domains, each with its nodes as a hostlist. Where they would take the whole
  record over MOST_BYTES, which an API server stores only just, the last sources are written without them: the first is
  the import.
- The times of labels are those of the field managers of the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any

import msgspec
from msgspec import Struct, field

from dovetail.topology.fabric import FabricFinding, FabricPlacement, FabricReading, in_order
from dovetail.topology.hostlist import compress, expand
from dovetail.topology.node_list import ListedMetadata, ListedNode

MOST_BYTES = 900_000
MOST_FINDINGS = 200
MOST_WRITERS = 64
_LONGEST_TEXT = 4096
_CONSISTENT = "Consistent"
Document = dict[str, Any]


class RecordedDomain(Struct, frozen=True):
    path: tuple[str, ...]
    nodes: str


class RecordedSource(Struct, frozen=True, rename="camel"):
    """As in `status.sources` of a Fabric."""

    name: str
    read_at: datetime
    nodes: int
    keys: tuple[str, ...] = ()
    domains: tuple[RecordedDomain, ...] = ()

    def reading(self) -> FabricReading:
        """The places that were recorded. Raises FabricError for a hostlist that is none."""
        places = [FabricPlacement(node, one.path) for one in self.domains for node in expand(one.nodes)]
        return FabricReading(tuple(places), self.keys)


class LabelWriter(Struct, frozen=True, omit_defaults=True):
    """As in `status.labels`: on how many `nodes` a field manager wrote the label `key`, and when it last did."""

    key: str
    manager: str
    nodes: int
    since: datetime | None = None


class StatedLevel(Struct, frozen=True, omit_defaults=True):
    """As in `spec.levels`."""

    key: str = ""
    bandwidth_mbps: int = field(default=0, name="bandwidthMBps")
    latency_ns: int = field(default=0, name="latencyNs")
    source: str = ""


class MeasuredPart(Struct, frozen=True, omit_defaults=True):
    """As in `status.slow`: a node, or a domain of a level."""

    name: str
    measured_mbps: int = field(name="measuredMBps")
    expected_mbps: int = field(name="expectedMBps")
    measured_at: datetime = field(name="measuredAt")
    expires_at: datetime = field(name="expiresAt")
    level: str = ""


class MeasuredLevel(Struct, frozen=True, omit_defaults=True):
    """As in `status.measured`."""

    groups: int
    measured_at: datetime = field(name="measuredAt")
    level: str = ""
    failed: int = 0
    slowest_mbps: int = field(default=0, name="slowestMBps")
    median_mbps: int = field(default=0, name="medianMBps")
    expected_mbps: int = field(default=0, name="expectedMBps")
    image: str = ""


class StatedSpares(Struct, frozen=True, rename="camel"):
    """As in `spec.spares`."""

    key: str
    per_domain: int


class RecordedSpec(Struct, frozen=True):
    levels: tuple[StatedLevel, ...] = ()
    spares: tuple[StatedSpares, ...] = ()


class RecordedStatus(Struct, frozen=True):
    sources: tuple[RecordedSource, ...] = ()
    labels: tuple[LabelWriter, ...] = ()
    slow: tuple[MeasuredPart, ...] = ()
    measured: tuple[MeasuredLevel, ...] = ()


class RecordedFabric(Struct, frozen=True):
    """A Fabric as commands read it."""

    metadata: ListedMetadata
    spec: RecordedSpec = RecordedSpec()
    status: RecordedStatus = RecordedStatus()


def status_of(
    readings: Mapping[str, FabricReading],
    keys: Sequence[str],
    findings: Mapping[str, Sequence[FabricFinding]],
    writers: Iterable[LabelWriter],
    now: datetime,
    before: Mapping[str, Any] | None = None,
) -> Document:
    """The status after an import of the first of the readings, whose labels have these keys, the widest first. A
    condition that has not changed since the status `before` keeps its time."""
    names = list(readings)
    sources = [_source(name, readings[name], keys if name == names[0] else readings[name].keys, now) for name in names]
    every = [(name, one) for name, found in findings.items() for one in found]
    every.sort(key=lambda pair: not pair[1].kind.is_error)
    listed: list[Document] = [
        {
            "source": name, "severity": one.severity, "code": one.code, "what": one.what[:_LONGEST_TEXT],
            **({"node": one.node} if one.node else {}),
        }
        for name, one in every[:MOST_FINDINGS]
    ]  # fmt: skip
    status: Document = {
        "sources": sources, "labels": msgspec.to_builtins(list(writers)), "findings": listed,
        "conditions": [_condition(every, now, before or {})],
    }  # fmt: skip
    for one in reversed(sources):
        if len(msgspec.json.encode(status)) > MOST_BYTES:
            del one["domains"]
    return status


def writers_of(nodes: Iterable[ListedNode], keys: Iterable[str]) -> tuple[LabelWriter, ...]:
    """The writers of these labels, by key in their order, and by manager; the first MOST_WRITERS."""
    found: dict[str, dict[str, dict[str, list[datetime]]]] = {key: {} for key in keys}
    for node in nodes:
        for entry in node.metadata.managed_fields:
            for name in entry.fields.metadata.labels:
                if (by_manager := found.get(name.removeprefix("f:"))) is not None:
                    # A manager that applies and updates has two entries.
                    times = by_manager.setdefault(entry.manager, {}).setdefault(node.metadata.name, [])
                    times += [entry.time] if entry.time is not None else []
    writers = (
        LabelWriter(key, manager, len(by_node), max(chain.from_iterable(by_node.values()), default=None))
        for key, by_manager in found.items()
        for manager, by_node in sorted(by_manager.items())
    )
    return tuple(islice(writers, MOST_WRITERS))


def _source(name: str, reading: FabricReading, keys: Sequence[str], now: datetime) -> Document:
    domains: dict[tuple[str, ...], list[str]] = {}
    for one in in_order(reading.placements):
        domains.setdefault(one.path, []).append(one.node)
    return {
        "name": name, "readAt": _text(now), "nodes": len(reading.placements), "keys": list(keys),
        "domains": [{"path": list(path), "nodes": compress(nodes)} for path, nodes in domains.items()],
    }  # fmt: skip


def _condition(findings: Sequence[tuple[str, FabricFinding]], now: datetime, before: Mapping[str, Any]) -> Document:
    errors = [one for _, one in findings if one.kind.is_error]
    if errors:
        status, reason, message = "False", "SourcesDisagree", f"{len(errors)} errors, the first: {errors[0].what}"
    elif findings:
        status, reason, message = "True", "Warnings", f"{len(findings)} warnings, the first: {findings[0][1].what}"
    else:
        status, reason, message = "True", "NoFindings", "the sources agree"
    old: Mapping[str, Any] = next((one for one in before.get("conditions", ()) if one["type"] == _CONSISTENT), {})
    since = old["lastTransitionTime"] if old.get("status") == status else _text(now)
    return {
        "type": _CONSISTENT, "status": status, "reason": reason, "message": message[:_LONGEST_TEXT],
        "lastTransitionTime": since,
    }  # fmt: skip


def _text(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
