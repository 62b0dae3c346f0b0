# SPDX-License-Identifier: Apache-2.0
"""What was recorded is decided again in the same way, whatever happened; and what is not the same is found."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dovetail.core import cycle
from dovetail.core import events as ev
from dovetail.core.decisions import Bind, Decision
from dovetail.core.event_handlers import _HANDLERS
from dovetail.core.model import Namespace
from dovetail.core.pipeline.attempt import Attempt
from dovetail.core.placing.expected_fill import ExpectedFill
from dovetail.core.queues.types import GPU, Queue, Usage
from dovetail.core.queues.usage import steady
from dovetail.core.state import State
from dovetail.recording import calls as calls_module
from tests.breadth import seeds
from tests.conftest import Decide
from tests.core.gang_oracle import gpu_node, gpu_pod
from tests.recording.histories import KIB, POLICY, Recorded, live, only_replay, replays

SMALL = 256 * KIB
"""So little that a day takes several segments; mostly more than one is left."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(8))
def test_a_day_replays_equal(tmp_path: Path, seed: int) -> None:
    recorded = Recorded(tmp_path)
    live(recorded, seed)
    recorded.close()
    done = only_replay(tmp_path)
    assert (done.verdict, done.difference, done.problem, done.notes) == ("equal", None, "", ())
    assert done.steps == recorded.state.steps > 0
    assert recorded.stopped == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(3))
def test_a_day_of_many_segments_replays_equal(tmp_path: Path, seed: int) -> None:
    """The state is made anew from a checkpoint again and again, and the oldest segments go."""
    recorded = Recorded(tmp_path, bound_bytes=SMALL)
    live(recorded, seed, steps=350)
    recorded.close()
    done = only_replay(tmp_path)
    assert recorded.stopped == []
    assert (done.verdict, done.difference, done.problem) == ("equal", None, "")
    assert max(file.name for file in tmp_path.iterdir()) >= "000003.jsonl"
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= SMALL
    assert recorded.state.cluster.check() == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(2))
def test_a_day_on_which_it_was_learned_which_pods_come_replays_equal(tmp_path: Path, seed: int) -> None:
    recorded = Recorded(tmp_path, bound_bytes=SMALL, policy=replace(POLICY, scoring=ExpectedFill()))
    live(recorded, seed, steps=350)
    recorded.close()
    done = only_replay(tmp_path)
    assert recorded.stopped == []
    assert (done.verdict, done.difference, done.problem) == ("equal", None, "")
    assert recorded.state.cluster.mix.seen > ExpectedFill().learn_from
    assert recorded.state.cluster.check() == []


@pytest.mark.slow
def test_each_segment_can_be_replayed_on_its_own(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, bound_bytes=2 * SMALL)
    live(recorded, 1, steps=350)
    recorded.close()
    whole = only_replay(tmp_path)
    parts = [only_replay(file) for file in sorted(tmp_path.iterdir())]
    assert len(parts) > 1
    assert {part.verdict for part in parts} == {"equal"}
    assert sum(part.steps for part in parts) == whole.steps
    assert parts[-1].digest == whole.digest


def test_days_of_several_processes_in_one_directory(tmp_path: Path) -> None:
    for number in range(3):
        recorded = Recorded(tmp_path, run=f"run{number}")
        live(recorded, number, steps=10)
        recorded.close()
    done = replays(tmp_path)
    assert [(one.run, one.verdict) for one in done] == [(f"run{number}", "equal") for number in range(3)]
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["000001.jsonl", "000002.jsonl", "000003.jsonl"]


@pytest.mark.slow
def test_what_two_runs_decide_shows_in_their_digests(tmp_path: Path) -> None:
    digests = []
    for number, seed in enumerate((7, 7, 8)):
        recorded = Recorded(tmp_path / str(number))
        live(recorded, seed)
        recorded.close()
        digests.append(only_replay(tmp_path / str(number)).digest)
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.slow
def test_another_process_decides_the_same_whatever_its_hashes_are(tmp_path: Path) -> None:
    for seed in range(6):
        recorded = Recorded(tmp_path, run=f"run{seed}")
        live(recorded, seed)
        recorded.close()
    digests = [done.digest for done in replays(tmp_path)]
    command = [str(Path(sys.executable).with_name("dovetail")), "replay", str(tmp_path), "-o", "json"]
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        answer = subprocess.run(command, env=environment, capture_output=True, check=True)
        assert [run["digest"] for run in json.loads(answer.stdout)["runs"]] == digests


def test_packed_segments(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    live(recorded, 1)
    recorded.close()
    (file,) = tmp_path.iterdir()
    whole = only_replay(tmp_path)
    packed = tmp_path / "000001.jsonl.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    file.unlink()
    assert (only_replay(tmp_path).digest, only_replay(packed).verdict) == (whole.digest, "equal")


def test_a_day_on_which_another_process_led_all_the_time(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    recorded.apply_events([ev.NodeChanged(gpu_node("a", 4)), ev.PodChanged(gpu_pod("p", 1))])
    recorded.apply_events([])
    recorded.apply_events([ev.PodRemoved("p")])
    recorded.close()
    done = only_replay(tmp_path)
    assert (done.verdict, done.segments, done.steps, done.events) == ("equal", 1, 0, 3)


def _two_steps(path: Path) -> None:
    recorded = Recorded(path)
    recorded.step([ev.NodeChanged(gpu_node(name, 4)) for name in "ab"], 1)
    recorded.step([ev.PodChanged(gpu_pod("p", 1))], 2)
    recorded.step([ev.PodChanged(gpu_pod("q", 2))], 3)
    recorded.close()


def test_a_core_that_decides_otherwise_is_found_at_its_step(tmp_path: Path, deciding: Callable[[Decide], None]) -> None:
    def elsewhere(attempt: Attempt) -> list[Decision]:
        decisions = attempt.decide()
        return [replace(d, node="b") if isinstance(d, Bind) and d.uid == "q" else d for d in decisions]

    _two_steps(tmp_path)
    deciding(elsewhere)
    done = only_replay(tmp_path)
    assert done.verdict == "differs"
    assert done.difference is not None
    assert (done.difference.step, done.difference.line, done.difference.now_ms) == (3, 4, 3)
    assert done.difference.recorded == ("bind ns/q to a, GPU 1, 2",)
    assert done.difference.replayed == ("bind ns/q to b, GPU 1, 2",)
    assert done.steps == 2


def test_a_policy_that_was_changed_afterwards_is_found(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, policy=replace(POLICY, attempts_per_step=1))
    recorded.step([ev.NodeChanged(gpu_node("a", 4)), *(ev.PodChanged(gpu_pod(uid, 1)) for uid in "pq")], 1)
    recorded.step([], 2)
    recorded.close()
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes().replace(b'"attempts_per_step":1,', b'"attempts_per_step":2,'))
    done = only_replay(tmp_path)
    assert done.difference is not None
    assert (done.difference.step, done.difference.recorded) == (1, ())
    assert done.difference.replayed == ("bind ns/q to a, GPU 1",)


def test_the_same_decisions_in_another_order_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(tmp_path)
    recorded.step([ev.NodeChanged(gpu_node("a", 4)), *(ev.PodChanged(gpu_pod(uid, 1)) for uid in "pq")], 1)
    recorded.close()
    step = cycle.step
    monkeypatch.setattr("dovetail.recording.replay.step", lambda *arguments: step(*arguments)[::-1])
    done = only_replay(tmp_path)
    assert done.difference is not None
    assert done.difference.recorded == done.difference.replayed[::-1]


def test_a_refusal_is_shown_with_its_reason(tmp_path: Path, deciding: Callable[[Decide], None]) -> None:
    recorded = Recorded(tmp_path)
    recorded.step([ev.NodeChanged(gpu_node("a", 1)), ev.PodChanged(gpu_pod("p", 2))], 1)
    recorded.close()
    deciding(lambda _: [])
    done = only_replay(tmp_path)
    assert done.difference is not None
    (stated,) = done.difference.recorded
    assert stated.startswith("hold ns/p: NoNodeFits (Never): 0/1 nodes are available")


def test_a_state_that_differs_although_the_decisions_are_equal_is_found_at_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a namespace that no pod looks at."""
    recorded = Recorded(tmp_path, bound_bytes=16 * KIB)
    for number in range(60):
        recorded.step([ev.NamespaceChanged(Namespace(f"n{number}"))], number)
        recorded.settle()
    recorded.close()
    assert only_replay(tmp_path).segments > 1
    monkeypatch.setitem(_HANDLERS, ev.NamespaceChanged, lambda state, event: None)
    done = only_replay(tmp_path)
    assert done.difference is not None
    assert done.difference.recorded == ("the state in the checkpoint",)


@pytest.mark.parametrize("mark", [{"placed": ["nobody"]}, {"on_slot": [[77, ["nobody"]]]}, {"barred": [10**6]}])
def test_a_checkpoint_of_which_no_state_can_be_made_is_reported(tmp_path: Path, mark: dict[str, Any]) -> None:
    recorded = Recorded(tmp_path, bound_bytes=16 * KIB)
    for number in range(60):
        recorded.step([ev.NamespaceChanged(Namespace(f"n{number}"))], number)
        recorded.settle()
    recorded.close()
    last = max(tmp_path.iterdir())
    head, _, lines = last.read_text().partition("\n")
    header = json.loads(head)
    header["checkpoint"]["marks"] |= mark
    last.write_text(f"{json.dumps(header)}\n{lines}")
    done = only_replay(tmp_path)
    assert f"{last.name}: line 1: no state can be made from its checkpoint" in done.problem


class _Bug(Exception):
    pass


def _fails_on(uid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    remove = _HANDLERS[ev.PodRemoved]

    def broken(state: State, event: ev.PodRemoved) -> None:
        if event.uid == uid:
            raise _Bug("an invariant is broken")
        remove(state, event)

    monkeypatch.setitem(_HANDLERS, ev.PodRemoved, broken)


@pytest.mark.parametrize("leads", [True, False])
def test_an_error_of_the_core_is_recorded_and_met_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leads: bool
) -> None:
    recorded = Recorded(tmp_path)
    take: Any = recorded.step if leads else recorded.apply_events
    take([ev.PodChanged(gpu_pod("p", 2))], 1)
    with monkeypatch.context() as patched:
        _fails_on("p", patched)
        with pytest.raises(_Bug):
            take([ev.PodRemoved("p")], 2)
        recorded.close()
        done = only_replay(tmp_path)
        assert (done.verdict, len(done.notes)) == ("equal", 1)
        assert "_Bug: an invariant is broken" in done.notes[0]
    mended = only_replay(tmp_path)
    assert mended.difference is not None
    assert mended.difference.recorded == ("error: _Bug: an invariant is broken",)
    assert mended.difference.replayed == ()


def test_an_error_that_the_recorded_core_did_not_have_is_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded(tmp_path)
    recorded.apply_events([ev.PodRemoved("p")])
    recorded.close()
    _fails_on("p", monkeypatch)
    done = only_replay(tmp_path)
    assert done.difference is not None
    assert (done.difference.step, done.difference.recorded) == (0, ())
    assert done.difference.replayed == ("error: _Bug: an invariant is broken",)


def test_a_checkpoint_that_cannot_be_made_ends_the_recording_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: State, *, marks: bool) -> None:
        raise _Bug("no checkpoint")

    monkeypatch.setattr(calls_module, "take", fails)
    recorded = Recorded(tmp_path, bound_bytes=16 * KIB)
    live(recorded, 3, steps=60)
    recorded.close()
    assert recorded.stopped == ["no checkpoint could be made: _Bug: no checkpoint"]
    assert recorded.state.steps > 0
    assert only_replay(tmp_path).verdict == "equal"


def test_to_look_at_a_state_moves_nothing(tmp_path: Path) -> None:
    """Whose turn it is follows from usage, which changes with time. Whoever asks for the line or for how the queues
    stand, between two steps, must not thereby have them compared at another time than the replay does."""
    start_ms, minutes_ms = 10**12, 600_000
    used = 10**12
    # What counts is the usage five minutes ahead; that of the first is more now, and less in half a second.
    equal = used * steady(1, 10**10) // steady(1, minutes_ms) * 7071 // 10_000
    queues = [
        Queue("fades", half_life_ms=minutes_ms, usage=Usage(start_ms, used)),
        Queue("stays", half_life_ms=10**10, usage=Usage(start_ms, equal * 9_995 // 10_000)),
        Queue("first", guarantee=((GPU, 99_000),)),
    ]
    recorded = Recorded(tmp_path, policy=replace(POLICY, attempts_per_step=1))
    nowhere = replace(gpu_pod("never", queue="first").request, node_selector=(("no", "where"),))
    pods = [replace(gpu_pod(f"never{i}", queue="first"), request=nowhere) for i in range(9)]
    pods += [gpu_pod(name, queue=name) for name in ("fades", "stays")]
    recorded.step(
        [ev.NodeChanged(gpu_node("a", 1)), *map(ev.QueueChanged, queues), *map(ev.PodChanged, pods)], start_ms
    )
    for after_ms in range(100, 1_100, 100):
        recorded.state.queue.ordered()
        recorded.state.queue_snapshots(start_ms + after_ms - 50)
        recorded.step([], start_ms + after_ms)
    recorded.close()
    assert len(recorded.state.cluster.placements) == 1
    done = only_replay(tmp_path)
    assert (done.verdict, done.difference) == ("equal", None)


def test_to_look_at_what_is_due_moves_nothing(tmp_path: Path) -> None:
    """The odd GPU of three is due to whoever used less, which is another queue half a second later."""
    start_ms, minutes_ms = 10**12, 600_000
    used = steady(1, minutes_ms) * 900
    queues = [
        Queue("fades", half_life_ms=minutes_ms, usage=Usage(start_ms, used)),
        Queue("stays", half_life_ms=10**10, usage=Usage(start_ms, steady(1, 10**10) * 900 * 9_995 // 10_000)),
    ]
    pods = [gpu_pod(f"{queue.name}-{i}", 2, queue=queue.name) for i in range(2) for queue in queues]
    recorded = Recorded(tmp_path)
    recorded.step([ev.NodeChanged(gpu_node("a", 3)), *map(ev.QueueChanged, queues)], start_ms - 1)
    recorded.step([], start_ms)
    recorded.apply_events(map(ev.PodChanged, pods), start_ms)
    recorded.state.queue_snapshots(start_ms)
    recorded.step([], start_ms + 900)
    recorded.close()
    done = only_replay(tmp_path)
    assert (done.verdict, done.difference) == ("equal", None)
