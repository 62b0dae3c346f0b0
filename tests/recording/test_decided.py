# SPDX-License-Identifier: Apache-2.0
"""A step is found by its id, decided again and shown as it was: its events, the waiting jobs, and its decisions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from dovetail.cli.replay import replay as replay_command
from dovetail.core import events as ev
from dovetail.core.event_handlers import _HANDLERS
from dovetail.core.model import Gang, Work
from dovetail.core.queues.types import GPU, Queue
from dovetail.recording.decided import DecidedRun, NotRecorded, decided
from dovetail.recording.reader import find
from dovetail.recording.replay import Differs
from tests.cli.answers import answer as checked
from tests.conftest import Decide
from tests.core.gang_oracle import gpu_node, gpu_pod
from tests.recording.histories import KIB, Recorded, live

HOUR_MS = 3_600_000


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Two teams on a node of 4 GPUs. Step 1 gives 2 to both, step 2 finds three more that want some, step 3 none."""
    recorded = Recorded(tmp_path / "r", run="run1")
    work = Work(max_runtime_ms=HOUR_MS)
    teams = [Queue("physics", guarantee=((GPU, 2_000),)), Queue("biology", guarantee=((GPU, 2_000),))]
    first = [gpu_pod(f"{team.name}-{i}", queue=team.name, work=work) for team in teams for i in range(2)]
    recorded.step([ev.NodeChanged(gpu_node("a", 4)), *map(ev.QueueChanged, teams), *map(ev.PodChanged, first)], HOUR_MS)
    bound = [ev.PodChanged(replace(pod, node="a", bound_ms=HOUR_MS)) for pod in first]
    gang = ev.GangChanged(Gang("g", "ns", "swarm", min_count=2))
    late = [gpu_pod("late", 1, queue="biology"), *(gpu_pod(f"swarm-{i}", 1, "g", queue="physics") for i in range(2))]
    recorded.step([*bound, ev.PodRemoved("biology-1"), gang, *map(ev.PodChanged, late)], 2 * HOUR_MS)
    recorded.apply_events([ev.NodeChanged(gpu_node("b", 0))], 2 * HOUR_MS)
    recorded.step([], 2 * HOUR_MS + 1)
    recorded.close()
    return tmp_path / "r"


def look(path: Path, decision: str) -> DecidedRun:
    runs, wrong = find([path])
    assert wrong == []
    return decided(runs, decision)


def test_its_events_and_its_decisions(recording: Path) -> None:
    one = look(recording, "run1-2")
    assert (one.run, one.step, one.now_ms, one.line) == ("run1", 2, 2 * HOUR_MS, 3)
    assert one.file == str(recording / "000001.jsonl")
    assert one.events == (
        *(f"PodChanged ns/{pod}" for pod in ("physics-0", "physics-1", "biology-0", "biology-1")),
        "PodRemoved ns/biology-1", "GangChanged ns/swarm",
        *(f"PodChanged ns/{pod}" for pod in ("late", "swarm-0", "swarm-1")),
    )  # fmt: skip
    assert "bind ns/late to a, GPU 3" in one.decided
    assert (one.raised, json.loads(bytes(one.record))["step"]) == ("", 2)
    assert b"PodRemoved" in bytes(one.record)


def test_the_queues_and_the_order_are_as_the_step_found_them(recording: Path) -> None:
    one = look(recording, "run1-2")
    queue_snapshots = {snapshot.name: snapshot for snapshot in one.queue_snapshots}
    assert dict(queue_snapshots["physics"].allocated)[GPU] == 2_000
    assert dict(queue_snapshots["biology"].allocated)[GPU] == 1_000
    assert dict(queue_snapshots["biology"].pending)[GPU] == 1_000
    assert queue_snapshots["physics"].share_ppm > queue_snapshots["default"].share_ppm == 0
    # The queue within its guarantee is first.
    assert [(waiting.job, waiting.queue, waiting.pods) for waiting in one.waiting] == [
        ("ns/late", "biology", 1),
        ("ns/swarm", "physics", 2),
    ]
    assert [waiting.before for waiting in one.waiting] == ["", ""]
    assert one.waiting[0].decided == ("bind ns/late to a, GPU 3",)
    (refused,) = one.waiting[1].decided
    assert refused.startswith("hold ns/swarm-0, ns/swarm-1: GangDoesNotFit (NotYet): ")


def test_reported_refusals_are_restored(recording: Path) -> None:
    reported = look(recording, "run1-2").waiting[1].decided[0].removeprefix("hold ns/swarm-0, ns/swarm-1: ")
    one = look(recording, "run1-3")
    assert [(waiting.job, waiting.before, waiting.decided) for waiting in one.waiting] == [("ns/swarm", reported, ())]
    assert (one.events, one.decided) == ((), ())


def test_room_that_is_held_is_shown_with_its_start(recording: Path) -> None:
    (room,) = look(recording, "run1-2").rooms
    assert (room.job, room.queue, room.nodes, room.sure) == ("ns/swarm", "physics", ("a",), "Known")
    assert room.start_ms > 0
    assert room.evicting == ()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_every_step_of_a_day_can_be_shown(tmp_path: Path, seed: int) -> None:
    """To look around between the events and the decisions changes nothing."""
    recorded = Recorded(tmp_path, bound_bytes=256 * KIB)
    live(recorded, seed, steps=60)
    recorded.close()
    runs, _ = find([tmp_path])
    first = runs[0].segments[0].brief.first_step
    for step in range(first, recorded.state.steps + 1):
        one = decided(runs, f"run-{step}")
        assert one.step == step
        assert len(one.decided) == len(json.loads(bytes(one.record)).get("decisions", ()))


@pytest.fixture
def segments(tmp_path: Path) -> Path:
    recorded = Recorded(tmp_path / "s", bound_bytes=48 * KIB)
    for number in range(1, 400):
        recorded.step([ev.PodChanged(gpu_pod(f"p{number}", node="a")), ev.PodRemoved(f"p{number}")], number)
        recorded.settle()
        if len(list((tmp_path / "s").iterdir())) == 4:
            break
    recorded.close()
    return tmp_path / "s"


def test_a_step_is_found_in_its_segment_and_no_other_is_read(segments: Path) -> None:
    runs, _ = find([segments])
    second = runs[0].segments[1].brief.first_step
    for file in sorted(segments.iterdir()):
        if file != runs[0].segments[1].file:
            lines = file.read_bytes().splitlines(keepends=True)
            file.write_bytes(b"".join([lines[0], b"{}\n", *lines[2:]]))
    assert decided(runs, f"run-{second}").line == 2


@pytest.mark.parametrize(
    ("decision", "why"),
    [
        ("", "'' is no id: it must be RUN-STEP, like run1-12, as in dovetail.dev/decision"),
        ("run1", "'run1' is no id: it must be RUN-STEP, like run1-12, as in dovetail.dev/decision"),
        ("run1-x", "'run1-x' is no id: it must be RUN-STEP, like run1-12, as in dovetail.dev/decision"),
        ("rum1-2", "run rum1 is not here: the nearest is run1"),
        ("zzz-2", "run zzz is not here: there are run1"),
        ("run1-4", "step 4 of run run1 is not here: the last one before it is 3"),
        ("run1-0", "step 0 of run run1 is not here: its oldest segment begins with step 1"),
    ],
)
def test_an_unknown_id_gets_the_nearest_one(recording: Path, decision: str, why: str) -> None:
    with pytest.raises(NotRecorded) as raised:
        look(recording, decision)
    assert str(raised.value) == why


def test_steps_whose_segments_are_gone_are_named(segments: Path) -> None:
    files = sorted(segments.iterdir())
    runs, _ = find([segments])
    starts = [segment.brief.first_step for segment in runs[0].segments]
    files[0].unlink()
    files[2].unlink()
    with pytest.raises(
        NotRecorded, match=f"step 1 of run run is not here: its oldest segment begins with step {starts[1]}$"
    ):
        look(segments, "run-1")
    found = f"the last one before it is {starts[2] - 1}, the next one here is {starts[3]}$"
    with pytest.raises(NotRecorded, match=found):
        look(segments, f"run-{starts[2]}")


def test_a_process_that_did_not_lead_took_no_steps(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    recorded.apply_events([ev.NodeChanged(gpu_node("a", 4))])
    recorded.close()
    with pytest.raises(NotRecorded, match="step 1 of run run is not here: the process took none"):
        look(tmp_path, "run-1")


def test_a_step_that_ended_with_an_error_shows_its_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(tmp_path)
    recorded.step([ev.PodChanged(gpu_pod("p"))], 1)

    def broken(*_: object) -> None:
        raise ValueError("an invariant is broken")

    monkeypatch.setitem(_HANDLERS, ev.PodRemoved, broken)
    with pytest.raises(ValueError, match="invariant"):
        recorded.step([ev.PodRemoved("p")], 2)
    recorded.close()
    one = look(tmp_path, "run-2")
    assert (one.raised, one.events) == ("ValueError: an invariant is broken", ("PodRemoved ns/p",))
    assert (one.waiting, one.queue_snapshots, one.decided) == ((), (), ())


def test_a_step_that_is_decided_otherwise_is_a_difference(recording: Path, deciding: Callable[[Decide], None]) -> None:
    deciding(lambda _: [])
    with pytest.raises(Differs) as raised:
        look(recording, "run1-2")
    assert raised.value.difference.step == 1


def command(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(replay_command.command, [str(argument) for argument in arguments])


def test_the_command_shows_it_to_people(recording: Path) -> None:
    answer = command(recording, "--decision", "run1-2")
    assert answer.exit_code == 0
    lines = [" ".join(line.split()) for line in answer.stdout.splitlines()]
    assert lines[0] == (
        f"Step 2 of run run1, 1970-01-01 02:00:00.000 UTC, decided again: the same ({recording}/000001.jsonl, line 3)."
    )
    assert "PodRemoved ns/biology-1" in lines
    assert "1 ns/late biology 1 bind ns/late to a, GPU 3" in lines
    assert any(line.startswith("2 ns/swarm physics 2 hold ns/swarm-0") for line in lines)
    assert any(line.startswith("physics 2 ") for line in lines)
    assert any(
        line.startswith("Room is reserved for ns/swarm of queue physics on a, to start at 1970-01-01") for line in lines
    )


def test_the_command_gives_all_of_it_to_programs(recording: Path) -> None:
    answer: dict[str, Any] = checked(
        command(recording, "--decision", "run1-2", "-o", "json").stdout, "ReplayedDecision"
    )
    assert (answer["run"], answer["step"], answer["record"]["step"]) == ("run1", 2, 2)
    assert [waiting["job"] for waiting in answer["waiting"]] == ["ns/late", "ns/swarm"]
    assert {snapshot["name"] for snapshot in answer["standings"]} == {"default", "physics", "biology"}
    assert answer["record"]["events"][-1]["pod"]["queue"] == "physics"


def test_the_command_names_the_nearest_id_and_ends_with_2(recording: Path) -> None:
    answer = command(recording, "--decision", "run1-9")
    assert answer.exit_code == 2
    assert "Error: step 9 of run run1 is not here: the last one before it is 3" in answer.stderr
    answer = command(recording / "nothing", "--decision", "run1-9")
    assert answer.exit_code == 2


def test_the_command_states_which_files_it_could_not_read(recording: Path) -> None:
    recording.joinpath("000002.jsonl").write_bytes(b"{}\n")
    assert command(recording, "--decision", "run1-2").exit_code == 0
    answer = command(recording, "--decision", "run2-2")
    assert answer.exit_code == 2
    assert "run run2 is not here: the nearest is run1; " in answer.stderr
    assert "000002.jsonl: line 1: is no recording" in answer.stderr
    broken = recording / "000001.jsonl"
    broken.write_bytes(broken.read_bytes().replace(b'"step":1', b'"step":7', 1))
    answer = command(recording, "--decision", "run1-2")
    assert (answer.exit_code, "line 2: does not follow" in answer.stdout) == (2, True)


def test_the_command_shows_a_difference_and_ends_with_1(recording: Path, deciding: Callable[[Decide], None]) -> None:
    deciding(lambda _: [])
    answer = command(recording, "--decision", "run1-2")
    assert answer.exit_code == 1
    assert answer.stdout.startswith("step 1 at 3600000 ms differs")
    reported = checked(command(recording, "--decision", "run1-2", "-o", "json").stdout, "ReplayDifference")
    assert reported["difference"]["step"] == 1
