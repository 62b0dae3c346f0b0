# SPDX-License-Identifier: Apache-2.0
"""`dovetail replay` as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dovetail import __version__
from dovetail.cli.replay import replay as replay_command
from dovetail.cli.replay import report
from dovetail.core import events as ev
from tests.cli.answers import answer as checked
from tests.conftest import Decide
from tests.core.gang_oracle import gpu_node, gpu_pod
from tests.recording.histories import Recorded, only_replay


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        recorded = Recorded(tmp_path / "r", run=name)
        recorded.step([ev.NodeChanged(gpu_node("a", 8)), *(ev.PodChanged(gpu_pod(f"{name}{i}")) for i in range(2))], 1)
        recorded.step([ev.PodChanged(gpu_pod(f"more{i}", priority=-i)) for i in range(14)], 2)
        recorded.step([], 3)
        recorded.close()
    return tmp_path / "r"


def replay(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "160"}).invoke(replay_command.command, [str(argument) for argument in arguments])


def test_equal(recording: Path) -> None:
    answer = replay(recording)
    assert answer.exit_code == 0
    head, *rows = answer.stdout.splitlines()
    assert head.split() == ["run", "started", "segments", "steps", "events", "decisions", "seconds", "verdict"]
    assert [(row.split()[0], row.split()[-1]) for row in rows] == [("one", "equal"), ("two", "equal")]
    assert rows[0].split()[3:6] == ["1", "3", "17"]


def test_json(recording: Path) -> None:
    answer = checked(replay(recording, "-o", "json").stdout, "ReplayReport")
    assert (answer["dovetail"], answer["problems"]) == (__version__, [])
    assert [run["verdict"] for run in answer["runs"]] == ["equal", "equal"]
    assert answer["runs"][0]["digest"] == only_replay(recording / "000001.jsonl").digest != ""


def refuse_all(deciding: Callable[[Decide], None]) -> None:
    deciding(lambda attempt: attempt.decide() if attempt._state.steps == 1 else [])


def test_a_difference_is_shown_with_names_and_ends_with_1(recording: Path, deciding: Callable[[Decide], None]) -> None:
    refuse_all(deciding)
    answer = replay(recording / "000001.jsonl")
    assert answer.exit_code == 1
    why = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu (needs 1, a has free 0)."
    assert answer.stdout.splitlines()[2:] == [
        f"run one: step 2 at 2 ms differs ({recording}/000001.jsonl, line 3)",
        "  only recorded:",
        *(f"    bind ns/more{number} to a, GPU {number + 2}" for number in range(6)),
        *(f"    hold ns/more{number}: NoNodeFits (NotYet): {why}" for number in (6, 7)),
        "  only replayed:",
        "    nothing",
    ]


def test_a_long_difference_is_cut_for_people_and_whole_for_programs(
    recording: Path, monkeypatch: pytest.MonkeyPatch, deciding: Callable[[Decide], None]
) -> None:
    monkeypatch.setattr(report, "_SHOWN", 2)
    refuse_all(deciding)
    assert "    and 6 more" in replay(recording / "000001.jsonl").stdout.splitlines()
    (run,) = json.loads(replay(recording / "000001.jsonl", "-o", "json").stdout)["runs"]
    assert (len(run["difference"]["recorded"]), run["difference"]["replayed"]) == (8, [])
    assert (run["difference"]["step"], run["difference"]["line"], run["verdict"]) == (2, 3, "differs")


def test_a_difference_to_another_version_may_be_intended(recording: Path, deciding: Callable[[Decide], None]) -> None:
    for file in recording.iterdir():
        file.write_bytes(file.read_bytes().replace(f'"dovetail":"{__version__}"'.encode(), b'"dovetail":"0.0.9"'))
    message = f"recorded by dovetail 0.0.9, replayed by {__version__}: the change may be intended"
    equal = replay(recording)
    assert (equal.exit_code, message in equal.stdout) == (0, False)
    refuse_all(deciding)
    assert message in replay(recording).stdout


def test_what_cannot_be_used_ends_with_2_and_the_rest_is_replayed(recording: Path) -> None:
    recording.joinpath("000003.jsonl").write_bytes(b"{}\n")
    broken = recording / "000001.jsonl"
    broken.write_bytes(broken.read_bytes().replace(b'"step":2', b'"step":7', 1))
    answer = replay(recording)
    assert answer.exit_code == 2
    assert [row.split()[-1] for row in answer.stdout.splitlines()[1:3]] == ["unusable", "equal"]
    assert f"run one: {broken}: line 3: does not follow: step 2" in answer.stdout
    assert f"{recording}/000003.jsonl: line 1: is no recording" in answer.stdout
    reported: dict[str, Any] = checked(replay(recording, "-o", "json").stdout, "ReplayReport")
    assert [bool(run["problem"]) for run in reported["runs"]] == [True, False]
    assert len(reported["problems"]) == 1


def test_no_recording_at_all(tmp_path: Path) -> None:
    answer = replay(tmp_path)
    assert (answer.exit_code, answer.stdout) == (
        2,
        f"{tmp_path}: holds no recording: no file is named like 000001.jsonl\n",
    )
    assert replay(tmp_path / "nowhere").exit_code == 2
    assert replay().exit_code == 2
