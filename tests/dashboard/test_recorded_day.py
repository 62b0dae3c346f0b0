# SPDX-License-Identifier: Apache-2.0
"""A recorded day: the grid at each of its times, the state at each, and where it ends early."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.decisions import Decision
from dovetail.core.queues.types import GPU, Queue
from dovetail.core.state import State
from dovetail.dashboard import grid_film, recorded_day
from dovetail.dashboard.gpu_cells import cells_of
from dovetail.dashboard.recorded_day import NoSuchTime, RecordedDay
from dovetail.recording import recorder
from dovetail.recording.format import RecordedLine
from dovetail.recording.reader import BadRecording, Segment, find
from dovetail.recording.recording_file import RecordingFile
from dovetail.recording.replay import Player, replay
from dovetail.sim.engine import Simulation
from dovetail.sim.workload import Outage
from dovetail.views.node_holders import node_holders
from dovetail.views.nodes import node_healths
from tests.core.gang_oracle import gpu_node, gpu_pod
from tests.dashboard.test_grid_film import shown_at
from tests.recording.histories import POLICY, Recorded, live
from tests.sim.streams import stream

MINUTE_MS, START_MS = 60_000, 1_800_000_000_000


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Two jobs of a team that borrows run, another one takes what is its own, then a node is gone."""
    made = Recorded(tmp_path / "r", run="run1", policy=replace(POLICY, eviction_deadline_ms=60 * MINUTE_MS))
    queues = [
        ev.QueueChanged(Queue("physics", guarantee=((GPU, 4_000),))),
        ev.QueueChanged(Queue("biology", guarantee=((GPU, 4_000),))),
    ]
    pods = [gpu_pod(f"first-{number}", 4, queue="physics") for number in range(2)]
    made.apply_events([ev.NodeChanged(gpu_node(name, 4)) for name in ("a", "b")], START_MS - 1)
    made.step([*queues, *map(ev.PodChanged, pods)], START_MS)
    bound = [replace(pod, node=node, bound_ms=START_MS) for pod, node in zip(pods, ("a", "b"), strict=True)]
    made.step([*map(ev.PodChanged, bound), ev.PodChanged(gpu_pod("own", 4, queue="biology"))], START_MS + MINUTE_MS)
    for number in range(2, 5):
        made.step((), START_MS + number * MINUTE_MS)
    made.step([ev.NodeRemoved("b"), ev.PodRemoved(bound[1].uid)], START_MS + 10 * MINUTE_MS)
    made.close()
    return tmp_path / "r"


def names_at(day: RecordedDay, minute: int) -> dict[str, str]:
    return {one.node: cells for one, cells in shown_at(day.film, START_MS + minute * MINUTE_MS).items()}


def test_the_grid_the_line_and_the_marks_are_those_of_the_day(recorded: Path) -> None:
    day = RecordedDay(recorded)
    assert not day.whole and day.size_bytes > 0
    day.read()
    assert (day.problem, day.whole, day.start_ms) == ("", True, START_MS)
    assert day.end_ms == day.shown_ms == START_MS + 10 * MINUTE_MS
    assert names_at(day, 0) == {"a": "####", "b": "####"}
    assert names_at(day, 10).keys() == {"a"}
    kinds = [(one.at_ms, one.kind) for one in day.line.marks]
    assert (START_MS + MINUTE_MS, "evicted") in kinds and kinds[-1] == (START_MS + 10 * MINUTE_MS, "node")
    assert "ns/own" in day.line.marks[0].text
    first, second = day.line.points[:2]
    assert (first.used, first.gpus, first.waiting, second.waiting) == (8, 8, 0, 1)


def test_the_state_at_a_time_is_that_of_the_day(recorded: Path) -> None:
    day = RecordedDay(recorded)
    day.read()
    assert day.state_at(START_MS).steps == 1 and day.state_at(START_MS + MINUTE_MS - 1).steps == 1
    state = day.state_at(START_MS + 4 * MINUTE_MS)
    assert state.steps == 5 and state.now_ms == START_MS + 4 * MINUTE_MS
    assert sum(state.queue.lengths()) == 1
    for at_ms in (START_MS - 1, day.end_ms + 1):
        with pytest.raises(NoSuchTime, match="has not this time"):
            day.state_at(at_ms)


def simulated(path: Path, seed: int = 1) -> Path:
    """A day of jobs that come and end, with a node that fails."""
    made = replace(stream(seed, (4, 4, 8), 24, 8, queues=2), outages=(Outage("n1", 20_000, 40_000),))
    with RecordingFile(path, "simulated") as file:
        Simulation(made, POLICY, take_step=file.step).run()
    return path


def grid_of(state: State) -> dict[str, str]:
    """The cells as the fleet page has them."""
    quarantined = state.cluster.quarantines.in_force
    found = {one.node: cells_of(one, node_holders(state, one.node))[0] for one in node_healths(state, lambda _: None)}
    return {name: cells.replace(".", "x") if name in quarantined else cells for name, cells in found.items() if cells}


@pytest.mark.parametrize(("seed", "every_s"), [(0, 0.0), (1, 60.0)])
@pytest.mark.slow
def test_a_random_day_is_at_each_time_what_the_state_was(
    seed: int, every_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_day, "EVERY_S", every_s)
    monkeypatch.setattr(grid_film, "LEAST_CHANGES", 10)
    monkeypatch.setattr(recorder, "_PAUSE_S", 0.001)
    made = Recorded(tmp_path / "r")
    live(made, seed, 60)
    made.close()
    day = RecordedDay(tmp_path / "r")
    day.read()
    assert day.problem == ""
    for part in range(9):
        at_ms = day.start_ms + part * (day.end_ms - day.start_ms) // 8
        shown = {one.node: cells for one, cells in shown_at(day.film, at_ms).items()}
        assert shown == grid_of(day.state_at(at_ms)), at_ms


@pytest.mark.parametrize("name", ["day.jsonl", "day.jsonl.gz"])
@pytest.mark.slow
def test_a_simulated_day_is_repeated_equally_and_is_there_at_each_time(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_day, "EVERY_S", 0.001)
    path = simulated(tmp_path / name)
    runs, wrong = find((path,))
    assert not wrong and replay(runs[0]).verdict == "equal"
    day = RecordedDay(path)
    day.read()
    assert day.problem == "" and day.start_ms > 0 and len(day.line.points) > 10
    assert any(one.kind == "node" for one in day.line.marks)
    for part in range(5):
        at_ms = day.start_ms + part * (day.end_ms - day.start_ms) // 4
        shown = {one.node: cells for one, cells in shown_at(day.film, at_ms).items()}
        assert shown == grid_of(day.state_at(at_ms))


def test_states_that_are_kept_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_day, "EVERY_S", 0.0)
    monkeypatch.setattr(recorded_day, "MOST_KEPT", 4)
    day = RecordedDay(simulated(tmp_path / "day.jsonl"))
    day.read()
    assert 1 < len(day._kept) <= 6 and day._every_s > 0


def test_a_state_that_decides_otherwise_is_repeated_from_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_day, "EVERY_S", 0.0)
    day = RecordedDay(simulated(tmp_path / "day.jsonl"))
    day.read()
    known = grid_of(day.state_at(day.end_ms // 2))
    monkeypatch.setattr(RecordedDay, "_followed", lambda *_: None)
    assert grid_of(day.state_at(day.end_ms // 2)) == known


def test_a_day_that_is_cut_off_is_shown_up_to_there(recorded: Path) -> None:
    file = recorded / "000001.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    day = RecordedDay(recorded)
    day.read()
    assert day.whole and "000001.jsonl ends in the middle of a line" in day.problem
    assert day.end_ms == START_MS + 4 * MINUTE_MS and names_at(day, 4)
    assert day.state_at(day.end_ms).steps == 5


def test_a_line_that_was_changed_ends_the_day(recorded: Path) -> None:
    file = recorded / "000001.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    lines[-1] = lines[-1].replace(b'"digest":"', b'"digest":"0')
    file.write_bytes(b"".join(lines))
    day = RecordedDay(recorded)
    day.read()
    assert "line 8" in day.problem and day.end_ms == START_MS + 4 * MINUTE_MS


def test_another_version_that_decides_otherwise_ends_the_day(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    day, call, calls = RecordedDay(recorded), Player.call, list[int]()

    def otherwise(player: Player, segment: Segment, number: int, line: RecordedLine) -> list[Decision]:
        calls.append(number)
        if number == 4:
            line = replace(line, decisions=msgspec.Raw(b"[]"))
        return call(player, segment, number, line)

    monkeypatch.setattr(Player, "call", otherwise)
    day.read()
    assert re.search(r"decides otherwise than version .*line 4, step 2", day.problem)
    assert day.start_ms == day.end_ms == START_MS and names_at(day, 0)


def test_what_is_no_recording_is_refused_with_what_to_do(tmp_path: Path) -> None:
    other = tmp_path / "history.db"
    other.write_bytes(b"SQLite format 3\0" + bytes(100))
    with pytest.raises(BadRecording, match=r"history\.db: .*dovetail simulate --recording FILE"):
        RecordedDay(other)
    with pytest.raises(BadRecording, match=r"no file is named like 000001\.jsonl"):
        RecordedDay(tmp_path)


def test_a_process_that_never_led_has_no_day(tmp_path: Path) -> None:
    made = Recorded(tmp_path / "r")
    made.apply_events([ev.NodeChanged(gpu_node("a", 4))], START_MS)
    made.close()
    day = RecordedDay(tmp_path / "r")
    day.read()
    assert day.whole and "was not the leader" in day.problem


def test_two_processes_one_after_the_other_are_one_day(recorded: Path, tmp_path: Path) -> None:
    later = Recorded(tmp_path / "later", run="run2")
    later.apply_events([ev.NodeChanged(gpu_node("a", 4))], START_MS + 20 * MINUTE_MS)
    later.step([ev.NodeChanged(gpu_node("c", 2))], START_MS + 21 * MINUTE_MS)
    later.close()
    (tmp_path / "later" / "000001.jsonl").rename(recorded / "000002.jsonl")
    day = RecordedDay(recorded)
    day.read()
    assert day.problem == "" and day.end_ms == START_MS + 21 * MINUTE_MS
    # Until the second one has read the cluster, what the first one knew stays.
    assert names_at(day, 20).keys() == {"a"} and names_at(day, 21) == {"a": "....", "c": ".."}
    assert day.state_at(START_MS + 20 * MINUTE_MS).steps == 6 and day.state_at(day.end_ms).steps == 1
