# SPDX-License-Identifier: Apache-2.0
"""What cannot be used is named with its file and line; what is whole is replayed all the same."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from dovetail import __version__
from dovetail.core import events as ev
from dovetail.recording.format import chained
from dovetail.recording.reader import find
from dovetail.recording.replay import Replay, replay
from tests.core.gang_oracle import gpu_node, gpu_pod
from tests.recording.histories import KIB, Recorded, live, only_replay

VERSION = f'"dovetail":"{__version__}"'.encode()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A recording: header, step 1 with two nodes, step 2 with a bind, events without a step, step 3 without
    anything."""
    recorded = Recorded(tmp_path / "r")
    recorded.step([ev.NodeChanged(gpu_node(name, 4)) for name in "ab"], 1)
    recorded.step([ev.PodChanged(gpu_pod("p", 1))], 2)
    recorded.apply_events([ev.PodChanged(gpu_pod("q", 1, node="b"))], 3)
    recorded.step([], 4)
    recorded.close()
    return tmp_path / "r" / "000001.jsonl"


def change(file: Path, old: bytes, new: bytes) -> None:
    data = file.read_bytes()
    assert data.count(old) == 1
    file.write_bytes(data.replace(old, new))


def unusable(file: Path) -> str:
    """Why the only run of the file cannot be replayed, without the name of the file."""
    done = only_replay(file)
    assert done.verdict == "unusable"
    assert done.problem.startswith(f"{file}: ")
    return done.problem.removeprefix(f"{file}: ")


def nothing_in(path: Path) -> str:
    """Why no run is found there."""
    runs, (error,) = find([path])
    assert runs == []
    return str(error).removeprefix(f"{path}: ")


def test_another_format(file: Path) -> None:
    change(file, b'"format":4', b'"format":7,"crew":[]')
    change(file, VERSION, b'"dovetail":"9.0"')
    assert nothing_in(file) == (
        f"line 1: has format 7 (written by dovetail 9.0); dovetail {__version__} reads format 4: "
        "replay it with the version that wrote it"
    )


@pytest.mark.parametrize(
    "data", [b'{"kind":"Pod"}\n', b"apiVersion: v1\n", b"\x00\xff\n", b'{"dovetail":"\xff"}\n', b"[]\n{}\n"]
)
def test_no_recording(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "pod.json"
    file.write_bytes(data)
    assert nothing_in(file).startswith("line 1: is no recording: its first line is no header: ")


def test_an_empty_file(tmp_path: Path) -> None:
    file = tmp_path / "000001.jsonl"
    file.touch()
    assert nothing_in(file) == "is empty: no header, nothing to replay"
    packed = tmp_path / "000001.jsonl.gz"
    packed.write_bytes(gzip.compress(b""))
    assert nothing_in(packed) == "is empty: no header, nothing to replay"


def test_a_directory_without_recordings(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert nothing_in(tmp_path) == "holds no recording: no file is named like 000001.jsonl"


def test_a_header_that_is_cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:50])
    assert nothing_in(file).startswith("line 1: the header is cut short")


def test_broken_json_in_the_middle(file: Path) -> None:
    change(file, b'"step":2,"events"', b'"step":2,,"events"')
    assert unusable(file).startswith("line 3: JSON is malformed")


def test_an_empty_line_in_the_middle(file: Path) -> None:
    change(file, b'{"now_ms":3', b'\n{"now_ms":3')
    assert unusable(file).startswith("line 4: ")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (
            b'"PodChanged","pod":{"uid":"p"',
            b'"PodBorn","pod":{"uid":"p"',
            "Invalid value 'PodBorn' - at `$.events[0].kind`",
        ),
        (
            b'"uid":"p","namespace":"ns","name":"p","request":{"resources":[["nvidia.com/gpu",1]]}',
            b'"uid":"p","namespace":"ns","name":"p","request":{"resources":[["nvidia.com/gpu","one"]]}',
            "Expected `int`, got `str` - at `$.events[0].pod.request.resources[0][1]`",
        ),
        (b'"now_ms":2', b'"now_ms":"2"', "Expected `int`, got `str` - at `$.now_ms`"),
        (b'"now_ms":2', b'"now":2', "Object contains unknown field `now`"),
    ],
)  # fmt: skip
def test_a_line_with_impossible_values(file: Path, old: bytes, new: bytes, why: str) -> None:
    change(file, old, new)
    assert unusable(file) == f"line 3: {why}"


def test_an_unknown_field_of_another_version_names_the_version(file: Path) -> None:
    change(file, VERSION, b'"dovetail":"0.0.9"')
    change(file, b'"now_ms":2', b'"now_ms":2,"mood":"fine"')
    assert unusable(file) == (
        f"line 3: Object contains unknown field `mood` (written by dovetail 0.0.9; this is {__version__})"
    )


def test_decisions_that_were_altered(file: Path) -> None:
    change(file, b'"kind":"Bind","uid":"p","node":"a"', b'"kind":"Bind","uid":"p","node":"b"')
    assert re.fullmatch(r"line 3: does not follow: step 2 with digest \w+ is due, .* was changed.*", unusable(file))


def test_a_step_that_was_taken_out(file: Path) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:2] + lines[3:]))
    assert unusable(file).startswith("line 4: does not follow: step 2 ")


def test_a_line_that_is_neither_a_step_nor_events(file: Path) -> None:
    change(file, b'{"now_ms":3,"told":', b'{"now_ms":3,"events":')
    assert unusable(file) == "line 4: is neither a step nor events without one"


def test_decisions_that_are_none_are_named_where_they_matter(file: Path) -> None:
    """The digest fits: somebody took care."""
    lines = file.read_bytes().splitlines(keepends=True)
    first = re.findall(rb'"digest":"(\w+)"', lines[1])[0].decode()
    third = re.sub(rb'"decisions":.*,"digest":"\w+"', b'"decisions":[{"kind":"Bend"}],"digest":"%s"' % chained(
        first, b'[{"kind":"Bend"}]'
    ).encode(), lines[2])  # fmt: skip
    file.write_bytes(b"".join([*lines[:2], third]))
    assert unusable(file) == "line 3: in the decisions: Invalid value 'Bend' - at `$[0].kind`"


def cut_note(done: Replay) -> bool:
    return any("ends in the middle of a line" in note for note in done.notes)


def test_a_last_line_that_is_cut_short_is_left_out_and_reported(file: Path) -> None:
    whole = only_replay(file)
    assert not cut_note(whole)
    file.write_bytes(file.read_bytes()[:-20])
    done = only_replay(file)
    assert (done.verdict, done.steps, cut_note(done)) == ("equal", whole.steps - 1, True)
    file.write_bytes(file.read_bytes() + b"\n")
    assert unusable(file).startswith("line 5: ")


@pytest.mark.slow
def test_a_packed_file_that_is_cut_short(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path / "r")
    live(recorded, 1, steps=200)
    recorded.close()
    packed = tmp_path / "000001.jsonl.gz"
    packed.write_bytes(gzip.compress((tmp_path / "r" / "000001.jsonl").read_bytes())[:-2000])
    done = only_replay(packed)
    assert (done.verdict, cut_note(done)) == ("equal", True)
    assert 0 < done.steps < recorded.state.steps


def test_a_packed_file_that_is_damaged(tmp_path: Path, file: Path) -> None:
    packed = tmp_path / "000001.jsonl.gz"
    data = bytearray(gzip.compress(file.read_bytes()))
    data[-6] ^= 1
    packed.write_bytes(data)
    assert "cannot be read: CRC check failed" in nothing_in_or_unusable(packed)
    packed.write_bytes(b"no gzip at all")
    assert "Not a gzipped file" in nothing_in(packed)


def nothing_in_or_unusable(path: Path) -> str:
    runs, wrong = find([path])
    return str(wrong[0]) if wrong else replay(runs[0]).problem


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Consecutive segments of one run."""
    path = tmp_path_factory.mktemp("long")
    recorded = Recorded(path, bound_bytes=32 * KIB)
    number = 0
    while len(list(path.iterdir())) < 4:
        number += 1
        recorded.step([ev.PodChanged(gpu_pod(f"p{number}", node="a")), ev.PodRemoved(f"p{number}")], number)
        recorded.settle()
    recorded.close()
    assert recorded.stopped == []
    return [file.read_bytes() for file in sorted(path.iterdir())]


def lay(path: Path, segments: dict[int, bytes]) -> list[Path]:
    files = [path / f"{number:06}.jsonl" for number in segments]
    for file, data in zip(files, segments.values(), strict=True):
        file.write_bytes(data)
    return files


def test_a_missing_segment_in_the_middle(tmp_path: Path, segments: list[bytes]) -> None:
    _, last = lay(tmp_path, {1: segments[0], 4: segments[3]})
    done = only_replay(tmp_path)
    assert done.verdict == "unusable"
    assert (
        done.problem
        == f"{last}: line 1: segment 2 and more of run run is missing before it: replay the parts on their own"
    )
    lay(tmp_path, {3: segments[2]})
    assert "segment 2 of run run is missing" in only_replay(tmp_path).problem
    lay(tmp_path, {2: segments[1]})
    assert only_replay(tmp_path).verdict == "equal"


def test_missing_segments_at_the_beginning_are_reported(tmp_path: Path, segments: list[bytes]) -> None:
    lay(tmp_path, {3: segments[2], 4: segments[3]})
    done = only_replay(tmp_path)
    assert (done.verdict, done.notes) == ("equal", ("begins with segment 3: older ones are not there",))


def test_the_end_of_a_segment_is_missing_in_the_middle(tmp_path: Path, segments: list[bytes]) -> None:
    first, second = lay(tmp_path, {1: segments[0][: -len(segments[0].splitlines()[-1]) - 1], 2: segments[1]})
    assert only_replay(tmp_path).problem == (
        f"{second}: line 1: does not follow {first}, whose end is missing or was changed"
    )


def test_a_segment_that_is_there_twice(tmp_path: Path, segments: list[bytes]) -> None:
    first, second = lay(tmp_path, {1: segments[0], 2: segments[0]})
    assert only_replay(tmp_path).problem == f"{second}: line 1: is segment 1 of run run, as {first} is"


def test_a_later_segment_without_a_checkpoint(tmp_path: Path, segments: list[bytes]) -> None:
    (file,) = lay(tmp_path, {1: segments[0].replace(b'"segment":1', b'"segment":2')})
    assert unusable(file) == "line 1: is segment 2 of a run and has no checkpoint"


def test_what_is_wrong_with_one_run_does_not_hide_the_others(tmp_path: Path, segments: list[bytes]) -> None:
    other = segments[1].replace(b'"run":"run"', b'"run":"other"')
    lay(tmp_path, {1: segments[0], 2: segments[2], 3: b"", 4: other})
    runs, wrong = find([tmp_path])
    assert [(run.name, replay(run).verdict) for run in runs] == [("run", "unusable"), ("other", "equal")]
    assert len(wrong) == 1
