# SPDX-License-Identifier: Apache-2.0
"""The score cache: for each shape one row, with every node's score and the number of such pods that it could take.

Rules: a row is updated when it is read, by computing the nodes that changed since the last read. It covers all rules
that depend on the node and the shape alone; `filters.hindrances` adds those that depend on other pods. A shape of
several forms takes for each node the value from the row of its form there. The least recently used rows are dropped
when the rows would take too much memory. The native kernel computes the scores of plain shapes where it is built; this
module is its reference, and both give the same scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dovetail.core.cluster import Cluster, shares
from dovetail.core.cluster.columns import ABSENT, Index, Mask
from dovetail.core.cluster.shapes import Shape
from dovetail.core.placing import filters, kernel, links, scores
from dovetail.core.placing.layout import BLOCK
from dovetail.core.placing.scores import Scoring

if TYPE_CHECKING:
    from dovetail.core.placing._kernel import Kernel

_ROWS_BYTES = 2**28
_NO_DOMAINS: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
_CHUNK = 8192
"""Slots that are computed at a time for a whole row: the temporary arrays then stay in the processor's cache."""


class ScoreRow:
    """`score[slot]` is INFEASIBLE where the shape does not fit now."""

    __slots__ = (
        "_amounts_seen", "_asked", "_cluster", "_copies", "_kernel", "_made_for", "_opening", "_parts", "_records_seen",
        "_refused", "_resizes", "_scoring", "_stale", "_tallies", "_tallies_of", "_tops", "_version", "preference",
        "score", "shape", "suitable",
    )  # fmt: skip

    def __init__(self, cluster: Cluster, scoring: Scoring, shape: Shape) -> None:
        self._cluster = cluster
        self._scoring = scoring
        self.shape = shape
        self._resizes = -1
        self._amounts_seen = -1
        self._records_seen = -1
        self._version = 0
        self.suitable: Mask
        self._parts: shares.GpuFractions | None = None
        self._opening = cluster.slices.opening(shape.slices) if shape.slices else None
        self.preference: scores.Scores
        self.score: scores.Scores
        self._asked: NDArray[np.intp]
        self._tops: scores.Scores
        self._stale: Mask
        self._copies: NDArray[np.int64] | None = None
        self._refused: NDArray[np.int64]
        """By slot: the number of the kubelet's state in which it refused the shape; -1 where it did not. (A refused pod
        may be admitted after others have come: a topology hint that vanishes no longer restricts.)"""
        self._tallies: dict[str, NDArray[np.int64]] = {}
        self._tallies_of = -1
        self._kernel: Kernel | None = None
        self._made_for = (-1, -1)
        """The number of layouts and the version of the scoring of the kernel; -1 where it must be made again."""

    def refresh(self) -> None:
        """Catch up with the cluster."""
        nodes, version = self._cluster.nodes, self._scoring.version(self._cluster)
        seen = self._amounts_seen, self._records_seen, self._version
        if (nodes.amounts_journal.end, nodes.records_journal.end, version) == seen:
            return
        if self._opening is not None:
            self._opening.refresh(nodes)
        again, self._version = version != self._version, version
        if not again and self._catch_up():
            return
        amounts = nodes.amounts_journal.since(self._amounts_seen)
        records = nodes.records_journal.since(self._records_seen)
        late = self._parts is None and shares.concerns(nodes, self.shape)
        if self._resizes != nodes.resizes or amounts is None or records is None or late:
            self._start_over()
        else:
            if len(records):
                self.suitable[records] = filters.takes(nodes, self.shape, records)
                self.preference[records] = scores.preference(nodes, self.shape, records)
                parts = shares.parts(nodes, self.shape, records)
                if self._parts is not None and parts is not None:
                    self._parts.put(records, parts)
                self._made_for = -1, -1
            if again:
                self._redo_all()
            elif len(changed := np.union1d(amounts, records) if len(records) else amounts):
                # Mostly there is one, and views of arrays are cheaper than copies.
                first = int(changed[0])
                self._redo(changed if len(changed) > 1 else slice(first, first + 1))
        self._amounts_seen = nodes.amounts_journal.end
        self._records_seen = nodes.records_journal.end

    def _catch_up(self) -> bool:
        """Update the nodes with the kernel, where only their amounts changed. Returns False where it cannot."""
        nodes = self._cluster.nodes
        journal, behind = nodes.amounts_journal, nodes.amounts_journal.end - self._amounts_seen
        start = len(journal.entries) - behind
        changed = nodes.records_journal.end != self._records_seen or self._resizes != nodes.resizes
        copies, by_gpu = self._copies, self._parts is not None or self.shape.needs_links
        if changed or start < 0 or (copies is not None and by_gpu) or (own := self._native()) is None:
            return False
        own.redo(journal.entries, start, bool(self._cluster.kubelets.books))
        self._amounts_seen = journal.end
        return True

    def _native(self) -> Kernel | None:
        """The kernel over the present arrays; None where it does not support the shape."""
        nodes = self._cluster.nodes
        now = len(nodes.layouts), self._version
        if self._made_for != now:
            self._made_for = now
            scored = self._scoring.native(self._cluster) if type(self) is ScoreRow else None
            idle = None if self._opening is None else self._opening.idle
            self._kernel = None
            if scored is not None:
                worth, fabric = scored[0] if scored else None, self._cluster.fabric
                if self._tallies_of != fabric.version:
                    self._tallies.clear()
                tallies = tuple([(fabric.domains(key), tally) for key, tally in self._tallies.items()])
                own = kernel.RowArrays(
                    self.score, self._tops, self._stale, self.suitable, self.preference, self._refused, self._copies
                )
                self._kernel = kernel.over(nodes, self.shape, self._parts, idle, worth, own, tallies)
        return self._kernel

    def best(self) -> int:
        """The slot with the highest score, the lowest of equals. It may be infeasible where all are."""
        if self._kernel is not None:
            return self._kernel.best()
        (stale,) = self._stale.nonzero()
        if len(stale):
            self._tops[stale] = self.score.reshape(-1, BLOCK)[stale].max(axis=1)
            self._stale[stale] = False
        start = int(self._tops.argmax()) * BLOCK
        return start + int(self.score[start : start + BLOCK].argmax())

    def refuse(self, slot: int) -> None:
        """Note that the node's kubelet would reject the shape. The same holds for all nodes with equal kubelet state,
        as long as they have that state."""
        nodes = self._cluster.nodes
        number = nodes.book_numbers[slot]
        equal = nodes.book_numbers == number
        # Includes slots without room now: they are not checked again when they have room.
        self._refused[equal] = number
        refusing = np.flatnonzero(equal & (self.score != scores.INFEASIBLE))
        self.score[refusing] = scores.INFEASIBLE
        self._stale[refusing // BLOCK] = True
        if self._copies is not None:
            self._move_tallies(refusing, -self._copies[refusing])
            self._copies[refusing] = 0

    def copies(self) -> NDArray[np.int64]:
        """By slot: the number of pods of the shape that it could take now."""
        if self._copies is None:
            nodes = self._cluster.nodes
            left = nodes.free[: self.shape.width] - self.shape.need
            self._copies = self._copies_at(slice(0, nodes.size), left, self.score != scores.INFEASIBLE)
            self._made_for = -1, -1
        return self._copies

    def tally(self, key: str) -> NDArray[np.int64]:
        """The copies summed by domain of a node label key."""
        fabric = self._cluster.fabric
        if self._tallies_of != fabric.version:
            self._tallies.clear()
            self._tallies_of = fabric.version
        tally = self._tallies.get(key)
        if tally is None:
            if not fabric.count(key):
                return _NO_DOMAINS
            domains, copies = fabric.domains(key), self.copies()
            inside = domains != ABSENT
            # Weighted counts are exact in float64 far beyond any number of pods.
            tally = np.bincount(domains[inside], weights=copies[inside], minlength=fabric.count(key)).astype(np.int64)
            self._tallies[key] = tally
            self._made_for = -1, -1
        return tally

    def _start_over(self) -> None:
        nodes = self._cluster.nodes
        self._resizes = nodes.resizes
        self._asked = np.flatnonzero(self.shape.need)
        everywhere = slice(0, nodes.size)
        self.suitable = filters.takes(nodes, self.shape, everywhere)
        self.preference = scores.preference(nodes, self.shape, everywhere)
        self._parts = shares.parts(nodes, self.shape, everywhere)
        self.score = np.full(nodes.size, scores.INFEASIBLE, dtype=np.int64)
        self._copies = None
        self._refused = np.full(nodes.size, -1, dtype=np.int64)
        self._tallies.clear()
        self._tops = np.empty(nodes.size // BLOCK, dtype=np.int64)
        self._stale = np.ones(nodes.size // BLOCK, dtype=np.bool_)
        self._made_for = -1, -1
        self._redo_all()

    def _redo_all(self) -> None:
        used = self._cluster.nodes.used
        if self._copies is None and (own := self._native()) is not None:
            own.redo_all(used, bool(self._cluster.kubelets.books))
            return
        for start in range(0, used, _CHUNK):
            self._redo(slice(start, min(start + _CHUNK, used)))

    def _redo(self, index: Index) -> None:
        nodes, shape = self._cluster.nodes, self.shape
        left = nodes.free[: shape.width, index] - shape.need
        fits = np.logical_and.reduce(left >= shape.floor) & self.suitable[index]
        share = None
        if self._parts is not None:
            parts = self._parts.at(index)
            least = parts.left(nodes, index)
            fits &= shares.fits(nodes, shape, index, parts, least)
            share = parts.rank(least)
        if self._opening is not None:
            share = self._opening.idle[index]
        close = None
        if shape.gpus > 1:
            close = links.closeness(nodes, index, nodes.gpu_free_bits[index], shape)
            fits &= close != links.TOO_FAR
            if share is not None and not shape.fraction:
                # Several replicas are no GPUs that work together: they are the last resort.
                close = np.where(shares.replicated(nodes, shape, index), 0, close)
        spare = None
        if shape.wants:
            able, spare, near = self._cluster.claims.answers.of_slots(index, shape)
            fits &= able
            close = near if close is None else np.minimum(close, near)
        if self._cluster.kubelets.books:
            fits &= self._refused[index] != nodes.book_numbers[index]
        offer = scores.ScoredOffer(shape, index, left, share, close, spare)
        score = self.preference[index] + self._scoring.scores(self._cluster, offer)
        self._put(index, np.where(fits, score, scores.INFEASIBLE), left, fits)

    def _put(self, index: Index, score: scores.Scores, left: NDArray[np.int64], fits: Mask) -> None:
        self.score[index] = score
        if isinstance(index, slice):
            self._stale[index.start // BLOCK : -(-index.stop // BLOCK)] = True
        else:
            self._stale[index // BLOCK] = True
        if self._copies is not None:
            new = self._copies_at(index, left, fits)
            self._move_tallies(index, new - self._copies[index])
            self._copies[index] = new

    def _copies_at(self, index: Index, left: NDArray[np.int64], fits: Mask) -> NDArray[np.int64]:
        """The number of pods that fit, where `left` is what one of them would leave."""
        nodes = self._cluster.nodes
        copies = (left[self._asked] // self.shape.need[self._asked]).min(axis=0) + 1
        if self._parts is not None:
            copies = np.minimum(copies, shares.copies(nodes, self.shape, index, self._parts.taken[index]))
        if self.shape.needs_links:
            copies = np.minimum(copies, links.times(nodes, index, nodes.gpu_free_bits[index], self.shape))
        if self.shape.wants:
            slots = np.arange(nodes.size)[index]
            for i in np.flatnonzero(fits & (copies > 0)):
                copies[i] = self._cluster.claims.answers.times(int(slots[i]), self.shape, int(copies[i]))
        return np.where(fits, copies, 0)

    def _move_tallies(self, index: Index, change: NDArray[np.int64]) -> None:
        if not self._tallies:
            return
        fabric = self._cluster.fabric
        if self._tallies_of != fabric.version:
            self._tallies.clear()
        for key, tally in self._tallies.items():
            domains = fabric.domains(key)[index]
            inside = domains != ABSENT
            np.add.at(tally, domains[inside], change[inside])


class FormsRow(ScoreRow):
    """The row of a shape of several forms."""

    __slots__ = ("_rows",)

    def __init__(self, cluster: Cluster, rows: ScoreCache, shape: Shape) -> None:
        super().__init__(cluster, rows.scoring, shape)
        self._rows = rows

    def refuse(self, slot: int) -> None:
        self._rows.of(self._cluster.shapes.at(self.shape, slot)).refuse(slot)
        self._redo(np.arange(self._cluster.nodes.used))

    def _redo(self, index: Index) -> None:
        score = np.full_like(self.score[index], scores.INFEASIBLE)
        for row, here in self._by_form(index):
            score[here] = row.score[index][here]
        self._put(index, score, self._cluster.nodes.free[:0, index], score != scores.INFEASIBLE)

    def _copies_at(self, index: Index, left: NDArray[np.int64], fits: Mask) -> NDArray[np.int64]:
        copies = np.zeros_like(self.score[index])
        for row, here in self._by_form(index):
            copies[here] = row.copies()[index][here]
        return copies

    def _by_form(self, index: Index) -> Iterator[tuple[ScoreRow, Mask]]:
        shapes = self._cluster.shapes
        lacking = shapes.lacking(self.shape, index)
        for bits in np.unique(lacking).tolist():
            yield self._rows.of(shapes.form(self.shape, bits)), lacking == bits


class ScoreCache:
    """Rows by shape, the least recently used first."""

    def __init__(self, cluster: Cluster, scoring: Scoring) -> None:
        self._cluster = cluster
        self.scoring = scoring
        self._rows: dict[int, ScoreRow] = {}

    def forget(self, number: int) -> None:
        """Drop the row of a shape that is gone."""
        self._rows.pop(number, None)

    def of(self, shape: Shape) -> ScoreRow:
        """The up-to-date row of a shape."""
        row = self._rows.pop(shape.id, None)
        if row is None:
            several = shape.stand_ins is not None
            row = FormsRow(self._cluster, self, shape) if several else ScoreRow(self._cluster, self.scoring, shape)
            most = max(16, _ROWS_BYTES // (25 * self._cluster.nodes.size))
            if len(self._rows) >= most:
                del self._rows[next(iter(self._rows))]
        self._rows[shape.id] = row
        row.refresh()
        return row
