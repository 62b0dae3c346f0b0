# SPDX-License-Identifier: Apache-2.0
"""The history of a simulated run. Its time 0 is the start of 2026 (UTC); pods run from their bind on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from dovetail.core.state import State
from dovetail.history.pod_records import PodFact
from dovetail.history.records import HistoryBatch, Outcome
from dovetail.history.timeline import Seen, Timeline
from dovetail.history.writing import Collected

START_MS = 1_767_225_600_000
_AT_ONCE = 5000


class SimulatedHistory:
    """Called as the simulation goes on; `write` gets batches. `finish` writes what is left."""

    def __init__(self, write: Callable[[HistoryBatch], None]) -> None:
        self._write = write
        # The clock of the core is one millisecond ahead.
        self._timeline = Timeline(offset_ms=START_MS - 1)
        self._collected = Collected()

    def __call__(self, state: State, now_ms: int, touched: Collection[str], ends: Mapping[str, Outcome]) -> None:
        placements = state.cluster.placements
        facts = {
            uid: PodFact(started_ms=placements[uid].pod.bound_ms + START_MS - 1)
            for uid in touched
            if uid in placements and placements[uid].pod.bound_ms
        }
        facts |= {uid: PodFact(outcome=outcome, code=_CODES.get(outcome, "")) for uid, outcome in ends.items()}
        self._collected.add(self._timeline.advance(state, now_ms, Seen(touched, {}, facts)))
        if self._collected.size >= _AT_ONCE:
            self.finish()

    def finish(self) -> None:
        self._write(self._collected.take())


_CODES: Mapping[Outcome, str] = {"Failed": "NodeFailed"}
