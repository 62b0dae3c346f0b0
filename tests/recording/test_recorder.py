# SPDX-License-Identifier: Apache-2.0
"""Where recordings are written, how much they take, and that no failure there touches the decisions."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from dovetail.core import events as ev
from dovetail.recording import folder, recorder
from dovetail.recording.reader import find
from tests.core.gang_oracle import gpu_node, gpu_pod
from tests.recording.histories import KIB, Recorded, live, only_replay, replays


def a_step(recorded: Recorded, number: int = 1) -> None:
    recorded.step([ev.NodeChanged(gpu_node(f"n{number}", 4)), ev.PodChanged(gpu_pod(f"p{number}", 1))], number)


def sizes(path: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in sorted(path.iterdir())}


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "state" / "recording"
    recorded = Recorded(path)
    a_step(recorded)
    recorded.close()
    assert path.stat().st_mode & 0o777 == 0o700
    assert [file.stat().st_mode & 0o777 for file in path.iterdir()] == [0o600]


def test_what_was_written_is_counted(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, bound_bytes=32 * KIB)
    for number in range(40):
        a_step(recorded, number)
        recorded.settle()
    recorded.close()
    assert recorded.stopped == []
    assert len(sizes(tmp_path)) > 1
    assert recorded.written_bytes == sum(sizes(tmp_path).values())


def test_everything_is_in_the_file_while_it_goes_on(tmp_path: Path) -> None:
    """A process may be killed: what it wrote can be read."""
    recorded = Recorded(tmp_path)
    a_step(recorded)
    recorded.settle()
    assert only_replay(tmp_path).steps == 1
    a_step(recorded, 2)
    recorded.settle()
    assert only_replay(tmp_path).steps == 2
    recorded.close()


@pytest.mark.slow
def test_the_bound_holds_over_all_runs_and_the_oldest_go_first(tmp_path: Path) -> None:
    bound_bytes = 48 * KIB
    for run in range(12):
        recorded = Recorded(tmp_path, bound_bytes=bound_bytes, run=f"run{run}")
        for number in range(20):
            a_step(recorded, number)
            recorded.settle()
            assert sum(sizes(tmp_path).values()) <= bound_bytes
        recorded.close()
        assert recorded.stopped == []
    left = [done.run for done in replays(tmp_path)]
    assert left == [f"run{run}" for run in range(12 - len(left), 12)]
    assert 1 < len(left) < 12
    assert min(sizes(tmp_path)) > "000001.jsonl"


def test_a_packed_segment_counts_and_goes_like_the_others(tmp_path: Path) -> None:
    tmp_path.joinpath("000007.jsonl.gz").write_bytes(bytes(20 * KIB))
    tmp_path.joinpath("notes.txt").write_bytes(bytes(200 * KIB))
    recorded = Recorded(tmp_path, bound_bytes=24 * KIB)
    a_step(recorded)
    recorded.settle()
    assert list(sizes(tmp_path)) == ["000007.jsonl.gz", "000008.jsonl", "notes.txt"]
    for number in range(2, 20):
        a_step(recorded, number)
        recorded.settle()
    recorded.close()
    assert "000007.jsonl.gz" not in sizes(tmp_path)
    assert sizes(tmp_path)["notes.txt"] == 200 * KIB


def test_a_segment_that_is_packed_meanwhile_counts_as_what_it_takes_then(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, bound_bytes=64 * KIB)
    for number in range(60):
        a_step(recorded, number)
        recorded.settle()
        (oldest, *newer) = sorted(tmp_path.iterdir())
        if newer and oldest.suffix == ".jsonl":
            oldest.with_suffix(".jsonl.gz").write_bytes(bytes(20 * KIB))
            oldest.unlink()
        assert sum(sizes(tmp_path).values()) <= 64 * KIB + 20 * KIB
    recorded.close()
    assert recorded.stopped == []


def test_a_cluster_that_is_too_large_for_the_bound_gets_advice(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, bound_bytes=6 * KIB)
    for number in range(60):
        a_step(recorded, number)
        recorded.settle()
    recorded.close()
    assert len(recorded.stopped) == 1
    assert "raise --recording-mib" in recorded.stopped[0]
    assert recorded.state.steps == 60
    assert sum(sizes(tmp_path).values()) <= 6 * KIB


def test_a_single_line_that_is_too_large_is_not_begun(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, bound_bytes=4 * KIB)
    recorded.step([ev.PodChanged(gpu_pod(f"p{number}")) for number in range(100)], 1)
    recorded.close()
    assert "raise --recording-mib" in recorded.stopped[0]
    done = only_replay(tmp_path)
    assert (done.verdict, done.steps, done.notes) == ("equal", 0, ())


def test_a_second_writer_is_kept_out_and_goes_on_without(tmp_path: Path) -> None:
    first = Recorded(tmp_path, run="first")
    a_step(first)
    first.settle()
    second = Recorded(tmp_path, run="second")
    for number in range(3):
        a_step(second, number)
    second.close()
    assert second.stopped == [f"another process records into {tmp_path}: give each its own directory"]
    assert second.state.steps == 3
    a_step(first, 2)
    first.close()
    assert first.stopped == []
    assert [(done.run, done.steps) for done in replays(tmp_path)] == [("first", 2)]
    third = Recorded(tmp_path, run="third")
    third.close()
    assert third.stopped == []


@pytest.mark.parametrize("where", ["/proc/dovetail/recording", "/dev/null/recording", "{tmp_path}/file"])
def test_a_directory_that_cannot_be_made_is_reported_once(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()
    recorded = Recorded(Path(where.format(tmp_path=tmp_path)))
    for number in range(5):
        a_step(recorded, number)
        time.sleep(0.002)
    recorded.close()
    assert len(recorded.stopped) == 1
    assert recorded.state.steps == 5


def test_a_full_disk_ends_the_recording_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(tmp_path)
    a_step(recorded)
    recorded.settle()
    left = [50]
    write = os.write

    def almost_full(descriptor: int, data: memoryview) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken, left[0] = data[: left[0]], 0
        return write(descriptor, taken)

    monkeypatch.setattr(folder.os, "write", almost_full)
    for number in range(2, 20):
        a_step(recorded, number)
        recorded.settle()
    monkeypatch.undo()
    recorded.close()
    assert recorded.stopped == [
        "[Errno 28] No space left on device: give it room, or another directory with --recording"
    ]
    assert recorded.state.steps == 19
    done = only_replay(tmp_path)
    assert (done.verdict, done.steps, len(done.notes)) == ("equal", 1, 1)


def test_a_disk_that_takes_little_at_a_time_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(folder.os, "write", lambda descriptor, data: write(descriptor, data[:7]))
    recorded = Recorded(tmp_path)
    live(recorded, 5, steps=10)
    recorded.close()
    assert only_replay(tmp_path).steps == recorded.state.steps


def test_a_disk_that_hangs_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, write = threading.Event(), os.write

    def hangs(descriptor: int, data: memoryview) -> int:
        go_on.wait(10)
        return write(descriptor, data)

    monkeypatch.setattr(folder.os, "write", hangs)
    monkeypatch.setattr(recorder, "_MOST_WAITING", 10)
    monkeypatch.setattr(recorder, "_LAST_WRITE_S", 0.01)
    recorded = Recorded(tmp_path)
    for number in range(20):
        a_step(recorded, number)
    assert recorded.stopped == ["the disk does not keep up: 11 steps wait to be written"]
    recorded.close()
    go_on.set()
    assert recorded.state.steps == 20


def test_what_cannot_be_written_down_ends_the_recording_alone(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    recorded.apply_events([ev.PodRemoved("no text: \ud800")])
    recorded.settle()
    a_step(recorded)
    recorded.close()
    assert len(recorded.stopped) == 1
    assert recorded.state.steps == 1


def test_a_header_that_finds_no_room_leaves_no_empty_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(folder.os, "write", full)
    recorded = Recorded(tmp_path)
    recorded.close()
    assert len(recorded.stopped) == 1
    assert sizes(tmp_path) == {}
    assert find([tmp_path])[0] == []
