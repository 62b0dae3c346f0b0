# SPDX-License-Identifier: Apache-2.0
"""A recorded or simulated day: the grid of the fleet over time, and the state of the scheduler at any of its times.

Rules
- The recording is repeated once, from its beginning, with every decision compared: what is shown was so. `read` does
  that in a thread, and what it has read so far can be shown meanwhile.
- It ends where the recording is cut off, or cannot be used any further: what is before stays, and `problem` has why.
- Each EVERY_S of CPU time a checkpoint of the state is kept, MOST_KEPT at most: of more, every other one is dropped.
  The state at a time is repeated from the one before it. Where a state that was restored decides otherwise than the one
  that went on, it is repeated from an earlier one, at last from the beginning of the segment, as was recorded.
- Calls before the first step of a process are its first reading of the cluster, and are not shown.
- A recording has what the core reads. It has not the health that agents report: a node in quarantine has the letter of
  quarantine at GPUs that no pod holds.
"""

from __future__ import annotations

import time
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.checkpoint import restore, take
from dovetail.core.cycle import apply_events, enter, step
from dovetail.core.decisions import Decision, Drain, Evict, Hold
from dovetail.core.events import NodeRemoved
from dovetail.core.policy import Policy
from dovetail.core.state import State
from dovetail.dashboard.day_line import DayLine, DayPoint
from dovetail.dashboard.gpu_cells import FREE, QUARANTINED, cells_of
from dovetail.dashboard.grid_film import FilmFull, FilmNode, GridFilm
from dovetail.recording.format import CHECKPOINT, DECISIONS, RecordedLine
from dovetail.recording.reader import BadRecording, LinePlace, RecordedRun, Segment, find
from dovetail.recording.replay import Differs, Player, Replay, described
from dovetail.views.node_holders import node_holders
from dovetail.views.nodes import node_health

EVERY_S = 1.0
MOST_KEPT = 48
_HINT = "it must be a recording: of the scheduler, or one that `dovetail simulate --recording FILE` writes"


class _KeptState(Struct, frozen=True):
    """A state at a time: that after a line of a segment, or without `after` the one with which the segment begins."""

    at_ms: int
    run: RecordedRun
    segment: Segment
    policy: Policy
    after: LinePlace | None = None
    packed: bytes = b""


class _Stopped(Exception):
    """Nobody wants it any more."""


class NoSuchTime(Exception):
    """The day has not this time, or not yet."""


class RecordedDay:
    """Of a folder or a file. Raises BadRecording where nothing can be shown of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.film, self.line = GridFilm(), DayLine()
        self.start_ms = self.end_ms = 0
        self.shown_ms = 0
        """The film is there up to this time."""
        self.whole = False
        """It is read to its end, or as far as it can be."""
        self.problem = ""
        self.stopped = False
        """Set by whoever does not want it any more."""
        self._runs, wrong = find((path,))
        if not self._runs:
            raise BadRecording(path, 0, f"{_without(wrong[0], path)}; {_HINT}")
        self._wrong = wrong
        self.size_bytes = sum(one.size_bytes for one in self._runs)
        self.read_bytes = 0
        self._kept: list[_KeptState] = []
        self._every_s, self._kept_s = EVERY_S, 0.0
        self._run = self._runs[0]
        self._player = Player(Replay("", "", ""), lambda _: None)
        self._steps_of_run = 0
        self._segment_state: _KeptState | None = None
        self._all = True
        """All nodes have to be examined."""
        self._seen = (0, 0)

    def read(self) -> None:
        """Read it all, in this thread."""
        try:
            self._read()
        except (BadRecording, FilmFull) as error:
            self.problem = str(error)
        except Differs as error:
            one = error.difference
            where = f"{one.file}, line {one.line}, step {one.step}"
            self.problem = f"this version decides otherwise than version {error.recorded_by}, which wrote it: {where}"
        except _Stopped:
            return
        finally:
            try:
                self.film.close_part()
            except FilmFull as error:
                self.problem = str(error)
            self.shown_ms = self.end_ms
            self.whole = True

    def state_at(self, at_ms: int) -> State:
        """The state at this time, which nothing else uses. Raises NoSuchTime, BadRecording, Differs."""
        kept = list(self._kept)
        number = bisect_right(kept, at_ms, key=lambda one: one.at_ms) - 1
        if number < 0 or at_ms > self.end_ms:
            raise NoSuchTime("the recording has not this time" if self.whole else "it is not read up to there yet")
        while kept[number].after is not None:
            state = self._followed(kept[number], at_ms)
            if state is not None:
                return state
            number -= 1
        return self._repeated(kept[number], at_ms)

    def _read(self) -> None:
        done_bytes = 0
        for run in self._runs:
            first, start_bytes = run.segments[0].brief, done_bytes
            self._run, self._steps_of_run = run, 0

            def read(at: int, start_bytes: int = start_bytes) -> None:
                self.read_bytes = start_bytes + at
                if self.stopped:
                    raise _Stopped

            self._player = Player(Replay(run.name, first.dovetail, first.started), read)
            self._player.play(run, self._look)
            done_bytes += run.size_bytes
        if not self.start_ms:
            raise BadRecording(self.path, 0, "has no step: the process that wrote it was not the leader")
        cut = [str(segment.file) for run in self._runs for segment in run.segments if segment.cut]
        if cut:
            self.problem = f"{', '.join(cut)} ends in the middle of a line: what came after it is not there"
        elif self._wrong:
            self.problem = f"not shown: {'; '.join(map(str, self._wrong))}"

    def _look(self, segment: Segment, number: int, line: RecordedLine | None, decisions: list[Decision]) -> None:
        """After a call, or where a segment begins."""
        state = self._player.state
        if line is None:
            self._all = True
            self._segment_state = _KeptState(self.end_ms, self._run, replace(segment), state.policy)
            if self._steps_of_run:
                self._kept.append(self._segment_state)
            return
        at_ms = max(self.end_ms, line.now_ms)
        if not line.step and not self._steps_of_run:
            return
        self._steps_of_run += 1
        if self._steps_of_run == 1:
            assert self._segment_state is not None
            self._kept.append(replace(self._segment_state, at_ms=at_ms))
            self._kept_s = time.thread_time()
        self.start_ms = self.start_ms or at_ms
        self._film(state, line, at_ms)
        self._mark(state, decisions, at_ms)
        self.line.add(DayPoint(at_ms, self.film.used, self.film.gpus, sum(state.queue.lengths())))
        self.end_ms = at_ms
        if line.step and time.thread_time() - self._kept_s > self._every_s:
            self._keep(segment, LinePlace(number, segment.offset_bytes, line.step, line.digest), at_ms)

    def _film(self, state: State, line: RecordedLine, at_ms: int) -> None:
        nodes = state.cluster.nodes
        quarantined = frozenset(state.cluster.quarantines.in_force)
        for name in self._changed(state, line):
            health = node_health(state, name, None, quarantined)
            if health is None:
                if name in self.film.shown_names and not self._all:
                    self.line.mark(at_ms, "node", f"node {name} is gone")
                self.film.remove(at_ms, name)
                continue
            cells, _ = cells_of(health, node_holders(state, name))
            if name in quarantined:
                cells = cells.replace(FREE, QUARANTINED)
            place = tuple(health.labels.get(key, "") for key in state.policy.fabric)
            self.film.show(at_ms, FilmNode(name, place, health.model), cells)
        self._all = False
        self._seen = nodes.amounts_journal.end, nodes.records_journal.end

    def _changed(self, state: State, line: RecordedLine) -> Iterable[str]:
        """The nodes whose cells may have changed, by name."""
        nodes = state.cluster.nodes
        amounts, records = nodes.amounts_journal.since(self._seen[0]), nodes.records_journal.since(self._seen[1])
        if self._all or amounts is None or records is None:
            return dict.fromkeys((*sorted(nodes.slots), *self.film.shown_names))
        gone = [one.name for one in line.events if isinstance(one, NodeRemoved)]
        slots = (*amounts.tolist(), *records.tolist())
        return dict.fromkeys((*gone, *filter(None, (nodes.names[slot] for slot in slots))))

    def _mark(self, state: State, decisions: Iterable[Decision], at_ms: int) -> None:
        for one in decisions:
            if isinstance(one, Evict | Drain):
                self.line.mark(at_ms, "evicted" if isinstance(one, Evict) else "drained", described(state, one))

    def _keep(self, segment: Segment, after: LinePlace, at_ms: int) -> None:
        state, began_s = self._player.state, time.thread_time()
        self.film.close_part()
        self.shown_ms = at_ms
        packed = zlib.compress(CHECKPOINT.encode(take(state, marks=True)), 1)
        self._kept.append(_KeptState(at_ms, self._run, replace(segment), state.policy, after, packed))
        extra = [one for one in self._kept if one.after is not None]
        if len(extra) > MOST_KEPT:
            self._every_s *= 2
            dropped = set(map(id, extra[::2]))
            self._kept = [one for one in self._kept if id(one) not in dropped]
        self._kept_s = time.thread_time()
        # Where checkpoints take long there are fewer.
        self._every_s = max(self._every_s, 5 * (self._kept_s - began_s))

    def _followed(self, kept: _KeptState, at_ms: int) -> State | None:
        """From a kept state on. None where another decision than to refuse differs: refusals are reported again by a
        state that was restored."""
        assert kept.after is not None
        state = restore(kept.policy, CHECKPOINT.decode(zlib.decompress(kept.packed)))
        for _, line in _until(replace(kept.segment).read_after(kept.after), at_ms):
            if line.raised:
                return None
            if not line.step:
                apply_events(state, line.applied, line.now_ms)
            elif _without_holds(step(state, line.events, line.now_ms)) != _without_holds(
                DECISIONS.decode(line.decisions)
            ):
                return None
        enter(state, (), at_ms)
        return state

    def _repeated(self, kept: _KeptState, at_ms: int) -> State:
        """From the beginning of a segment on. Raises BadRecording, Differs."""
        segment, brief = replace(kept.segment), kept.segment.brief
        player = Player(Replay(kept.run.name, brief.dovetail, brief.started), lambda _: None)
        header, lines = segment.read(lambda _: None)
        player.begin(segment, header)
        for number, line in _until(lines, at_ms):
            player.call(segment, number, line)
        enter(player.state, (), at_ms)
        return player.state


def _until(lines: Iterable[tuple[int, RecordedLine]], at_ms: int) -> Iterator[tuple[int, RecordedLine]]:
    """The lines up to a time."""
    now_ms = 0
    for number, line in lines:
        now_ms = max(now_ms, line.now_ms)
        if now_ms > at_ms:
            return
        yield number, line


def _without_holds(decisions: Iterable[Decision]) -> list[Decision]:
    return [one for one in decisions if not isinstance(one, Hold)]


def _without(error: BadRecording, path: Path) -> str:
    """The reason without the file, which is named before it."""
    return str(error).removeprefix(f"{path}: ")
