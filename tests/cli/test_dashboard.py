# SPDX-License-Identifier: Apache-2.0
"""The command `dashboard`, and `demo --dashboard`."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from click.testing import CliRunner

from dovetail.cli import cli
from tests.forked import Forked
from tests.patience import PATIENCE_S

FILE = ("--file", "docs/examples/two-teams.yaml", "--at", "2026-11-22T12:00:00Z")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "0.0.0.0:0"], "--listen 0.0.0.0:0 would show the cluster to all that reach it, with your rights"),
        (["--listen", ":0"], "add --authorize"),
        (["--authorize"], "--authorize asks an API server; --file has none"),
        (["--views-only"], "--views-only asks an API server; --file has none"),
        (["--listen", "127.0.0.1"], "must be HOST:PORT"),
        (["--scheduler-metrics", "http://127.0.0.1:99999/metrics"], "is no address such as"),
        (["--scheduler-metrics", "127.0.0.1:10351"], "is no address such as"),
    ],
)
def test_what_would_show_too_much_is_refused(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(cli, ["dashboard", *FILE, *arguments])
    assert done.exit_code == 2 and message in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--authorize", "--context", "x"], "leave out --context, --authorize"),
        (["--file", "x", "--at", "2026-11-22T12:00:00Z"], "leave out --file, --at"),
        (["--store", "x"], "leave out --store"),
        (["--listen", "0.0.0.0:0"], "would show the recording to all that reach it"),
    ],
)
def test_a_recorded_day_is_shown_alone(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(cli, ["dashboard", "--replay", "docs/examples/two-teams.yaml", *arguments])
    assert done.exit_code == 2 and message in done.output


def test_what_is_no_recording_has_what_to_do() -> None:
    done = CliRunner().invoke(cli, ["dashboard", "--replay", "docs/examples/two-teams.yaml"])
    assert done.exit_code == 1 and "dovetail simulate --recording FILE" in done.output


@pytest.mark.slow
def test_a_simulated_day_is_shown(tmp_path: Path) -> None:
    jobs, day = tmp_path / "jobs.csv", tmp_path / "day.jsonl.gz"
    jobs.write_text("vc,job,submit_s,num_gpu,duration_s\na,one,0,8,600\nb,two,60,8,600\n")
    simulate = ["simulate", "--nodes", "1x8", "--jobs", str(jobs)]
    done = CliRunner().invoke(cli, [*simulate, "--recording", str(day)])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(cli, [*simulate, "--recording", str(day)])
    assert done.exit_code == 2 and "is there already" in done.output
    done = CliRunner().invoke(cli, [*simulate, "--policy", "fgd", "--recording", str(tmp_path / "other.jsonl")])
    assert done.exit_code == 2 and "one --policy of dovetail, tightest" in done.output
    with serving("dashboard", "--replay", str(day), "--listen", "127.0.0.1:0") as url:
        for _ in range(600):
            seen = json.load(urlopen(f"{url}api/replay.json"))
            if seen["whole"]:
                break
            time.sleep(0.1)
        assert (seen["startMs"], seen["endMs"], seen["problem"]) == (1, 1_200_001, "")
        assert b"data-replay" in urlopen(url).read()


@contextmanager
def serving(*arguments: str) -> Iterator[str]:
    """The address that a command prints; it is ended by a signal, and then ends well."""
    with Forked(*arguments) as process:
        until = time.monotonic() + PATIENCE_S
        while (found := re.search(r"http://127\.0\.0\.1:\d+/", process.stdout)) is None:
            assert process.poll() is None and time.monotonic() < until, (process.stdout, process.stderr)
            time.sleep(0.05)
        yield found[0]
        process.send_signal(signal.SIGINT)
        assert process.wait() in (0, 130)


@pytest.mark.slow
def test_a_file_is_shown() -> None:
    with serving("dashboard", *FILE, "--listen", "127.0.0.1:0") as url:
        jobs = json.load(urlopen(f"{url}api/jobs.json"))["page"]["jobs"]
        assert "research/notebook" in {one["job"] for one in jobs}
        assert b"<title>Dovetail</title>" in urlopen(url).read()


def _read(url: str) -> Any:
    """The answer, as soon as the cluster was read."""
    for _ in range(600):
        try:
            return json.load(urlopen(url))
        except HTTPError as error:
            assert error.code == 503
            time.sleep(0.1)
    raise AssertionError("the cluster is not read")


@pytest.mark.slow
def test_the_demo_shows_its_pages() -> None:
    with serving("demo", "--dashboard") as url:
        jobs = {one["job"]: one["state"] for one in _read(f"{url}api/jobs.json")["page"]["jobs"]}
        assert jobs["default/huge"] == "Waiting" and jobs["default/notebook"] == "Running"
        assert jobs["research/pretrain"] == "Waiting" and {"research/finetune", "product/serve"} <= jobs.keys()
        assert {one["queue"] for one in _read(f"{url}api/teams.json")["page"]["queues"]} >= {"research", "product"}
        fleet = {one["node"]: one["cells"] for one in _read(f"{url}api/fleet.json")["page"]["nodes"]}
        assert fleet["gpu-node-4"][5] == "x"
