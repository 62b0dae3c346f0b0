# SPDX-License-Identifier: Apache-2.0
"""What failed since room was last freed, by equivalence class, so that equal workloads are not tried again.

Rules: a `Signature` is all that a remembered answer may depend on. Whether there is room depends on what is wanted
(`requests`); whether preemption can make room, and whether room may be held, on the queue and the priority too. A
workload that nothing is known about has to be tried. This module keeps what was found; `known_refusals` answers by it.
kube-scheduler calls the same a pod scheduling signature.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from msgspec import Struct

from dovetail.core.cluster.shapes import Shape
from dovetail.core.complexity import parts
from dovetail.core.model import Work
from dovetail.core.reasons import Refusal
from dovetail.core.workloads.index import Precedence

_MOST_PARTS = 64 * 1024
_AGAIN_MS = 60_000
"""How long a search that failed counts at most: what is due moves, and jobs save their work."""


class Signature(NamedTuple):
    """Workloads with one signature get the same refusal: it is all that a cached answer may read. `requests` is what
    the workload wants. `fixed`: it must not be preempted. `preempts`: it may preempt others. `work` is what pods that
    may be moved for it are weighed against; None where no pod is moved."""

    requests: Hashable
    queue: str
    precedence: Precedence
    fixed: bool
    preempts: bool
    work: Work | None


class Known(Struct, eq=False):
    """What was found at `version` about the workloads of a signature, which need `wanted` at least: why all of them are
    `refused`, whether the post-filter can do nothing for them (`final`), and whether it would search for victims
    (`asks`). None: not worked out."""

    signature: Signature
    shapes: list[Shape]
    wanted: dict[str, int]
    version: int = -1
    refused: Refusal | None = None
    final: bool | None = None
    asks: bool | None = None


class EquivalenceCache:
    """By what is wanted: `no_room` is why it does not fit, `beside` why not beside the reservations, `reserved` why not
    if it does not end before they start. `sought` has the searches for victims that failed, with what was found."""

    def __init__(self) -> None:
        self.no_room: dict[object, Refusal] = {}
        self.reserved: dict[object, Refusal] = {}
        self.beside: dict[object, Refusal] = {}
        self.sought: dict[object, str] = {}
        self.again_ms = 0
        """When such a search may find victims that it did not find before, although nothing happens."""
        self._known: dict[Signature, Known] = {}
        self._parts = 0
        """The length of all signatures (see `core.complexity`)."""
        self._refused: set[object] = set()
        """What refused workloads want, as far as the refusals still count."""
        self._workloads: dict[str, Known] = {}
        self._version = 0
        """Grows when what was found by signature counts no more."""

    @property
    def noted(self) -> bool:
        """Whether signatures of workloads are known."""
        return bool(self._workloads)

    def clear(self) -> None:
        """Room was freed."""
        self.recheck()
        self.no_room.clear()
        self.sought.clear()

    def recheck(self) -> None:
        """A reservation has changed."""
        self.reserved.clear()
        self.beside.clear()
        self._refused.clear()
        self._version += 1

    def room_released(self) -> None:
        """A reservation was dropped: others may start there, or be evicted there."""
        self.recheck()
        self.sought.clear()

    def concern(self, requests: object) -> bool:
        """Whether anything is known by which a workload that wants this could be refused."""
        return requests in self.no_room or requests in self._refused

    def search_failed(self, key: object, why: str, now_ms: int, ripe_ms: int) -> None:
        """No victims were found; a new search may find some from `ripe_ms` on (0: not known)."""
        again_ms = min(now_ms + _AGAIN_MS, ripe_ms) if ripe_ms else now_ms + _AGAIN_MS
        self.again_ms = min(self.again_ms, again_ms) if any(self.sought.values()) else again_ms
        self.sought[key] = why

    def find(self, signature: Signature) -> Known | None:
        """What is known of the signature."""
        return self._known.get(signature)

    def add(self, signature: Signature, shapes: list[Shape], wanted: dict[str, int]) -> Known:
        """A signature of which nothing is known yet."""
        self._parts += 1 + sum([parts(shape.request) for shape in shapes])
        if self._parts > _MOST_PARTS:
            # Workloads keep what is known of them; what they want is tried once more.
            self._known.clear()
            self._parts = 0
            self.no_room.clear()
            self.reserved.clear()
            self.beside.clear()
        known = self._known[signature] = Known(signature, shapes, wanted)
        return known

    def assign(self, workload: str, known: Known) -> None:
        """The workload has this signature as long as nothing about it changes."""
        self._workloads[workload] = known

    def of(self, workload: str) -> Known | None:
        """What is known of the workload's signature, without what counts no more."""
        known = self._workloads.get(workload)
        if known is not None and known.version != self._version:
            known.version, known.refused, known.final, known.asks = self._version, None, None, None
        return known

    def forget(self, workload: str) -> None:
        """Something about the workload has changed."""
        self._workloads.pop(workload, None)

    def refuse(self, known: Known, refusal: Refusal) -> None:
        """All workloads of this signature are refused so."""
        known.refused = refusal
        self._refused.add(known.signature.requests)
