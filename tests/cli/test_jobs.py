# SPDX-License-Identifier: Apache-2.0
"""`dovetail jobs` on files that stand for a cluster, and on a playground."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from dovetail.cli import cli, main
from dovetail.cli.cluster import ClusterSource
from dovetail.cli.output import printable
from dovetail.playground import Playground
from tests.cli.listed_jobs import AT, EVIL, GPU, JOBS, cluster, ended, node, pod
from tests.piped import piped
from tests.terminal import environment

UNFINISHED = [job for job, state in JOBS.items() if state in ("Running", "Waiting")]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = tmp_path_factory.mktemp("jobs") / "cluster.json"
    found.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": cluster()}))
    return str(found)


def run(*arguments: str, columns: int = 0) -> Result:
    return CliRunner().invoke(cli, ["jobs", *arguments], env=environment(columns) if columns else {"COLUMNS": "80"})


def shown(file: str, *arguments: str, columns: int = 0) -> str:
    result = run(*arguments, "-f", file, "--at", AT, columns=columns)
    assert result.exit_code == 0, result.output
    return result.stdout


def ask(file: str, *arguments: str) -> Any:
    return json.loads(shown(file, *arguments, "-o", "json"))


def names(file: str, *arguments: str) -> list[str]:
    return shown(file, *arguments, "-o", "name").splitlines()


def rows(file: str, *arguments: str) -> dict[str, dict[str, str]]:
    return {row["job"]: row for row in csv.DictReader(io.StringIO(shown(file, *arguments, "-o", "csv")))}


def test_what_runs_comes_first_then_what_waits_then_what_is_done(file: str) -> None:
    assert names(file) == UNFINISHED
    assert names(file, "--all") == list(JOBS)
    assert {printable(one["job"]): one["state"] for one in ask(file, "--all")["jobs"]} == JOBS


def test_the_table(file: str) -> None:
    lines = [" ".join(line.split()) for line in shown(file, "--all").splitlines()]
    assert lines[0] == "job user queue GPUs state nodes reason starts ends submitted"
    assert "ml/train ada default 32 Running g1,g2,g3,g4 - 2 h ago in 3 h 3 h ago" in lines
    assert "ml/next ada default 32 NVIDIA-H100-80GB-HBM3 Waiting - GangDoesNotFit in 3 h - 3 h ago" in lines
    assert "ml/big - default 16 Waiting - NoNodeFits never - 3 h ago" in lines
    assert "ml/half - default 0.5 Waiting - Placed now - 3 h ago" in lines
    assert "ml/slice - default 2x1g.10gb Running m1 - 2 h ago in 1 h 3 h ago" in lines
    # Its run time of 90 minutes is over.
    assert "ml/cpu bob default 0 Running g5 - 2 h ago not known 3 h ago" in lines
    assert "ml/finished ada default 8 Completed g5 - 2 h ago 30 min ago 3 h ago" in lines
    assert "ml/evicted - default 1 Failed g5 Evicted 2 h ago 30 min ago 3 h ago" in lines


def test_wide_explains(file: str) -> None:
    wide = {line.split()[0]: line for line in shown(file, "--all", "-o", "wide").splitlines()}
    assert "needs 4 pods, 1 fit now" in wide["ml/next"]
    assert wide["ml/broken"].endswith("pod broken-1-abcde: container main exited with 1")
    assert wide["ml/oom"].endswith("container main exited with 137")


def test_csv_has_all_columns_and_absolute_times(file: str) -> None:
    found = rows(file, "--all")
    train, following = found["ml/train"], found["ml/next"]
    assert (train["starts"], train["ends"]) == ("2026-11-22T10:00:00Z", "2026-11-22T15:00:00Z")
    assert (train["submitted"], train["pods"], train["placed"]) == ("2026-11-22T09:00:00Z", "4", "4")
    assert (following["starts"], following["ends"], following["counted"]) == ("2026-11-22T15:00:00Z", "", "32")
    assert (found["ml/big"]["starts"], found["ml/oom"]["ends"]) == ("", "2026-11-22T11:30:00Z")


def test_json_has_a_version_and_absolute_times(file: str) -> None:
    found = ask(file, "--all")
    assert (found["apiVersion"], found["kind"]) == ("dovetail.dev/cli.v1", "JobList")
    assert (found["now"], found["looked_ahead"], found["whole"]) == (AT, True, True)
    train = next(one for one in found["jobs"] if one["job"] == "ml/train")
    assert train["start"] == {"at": "2026-11-22T10:00:00Z", "sure": "Known", "basis": ""}
    assert train["end"]["basis"] == "run time limit: 5 h"
    assert train["labels"] == {
        "app": "train", "batch.kubernetes.io/job-name": "train", "dovetail.dev/user": "ada",
    }  # fmt: skip


def test_yaml_is_json_in_another_form(file: str) -> None:
    assert yaml.safe_load(shown(file, "--all", "-o", "yaml")) == ask(file, "--all")


def test_jsonpath(file: str) -> None:
    path = '{range .jobs[?(@.state=="Failed")]}{.job}{"\\t"}{.reason}{"\\n"}{end}'
    assert shown(file, "-s", "done", "-o", f"jsonpath={path}").splitlines() == [
        "ml/broken\tError", "ml/evicted\tEvicted", "ml/oom\tError",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ("-u ada", ["ml/train", "ml/next"]),
        ("-u bob,x", ["ml/cpu", "ml/evil [31m [red]x"]),
        ("-s running", ["ml/cpu", "ml/evil [31m [red]x", "ml/slice", "ml/train"]),
        ("-s Waiting", ["ml/next", "ml/half", "ml/big"]),
        ("-s pending -u ada", ["ml/next"]),
        ("-s done", ["ml/broken", "ml/evicted", "ml/finished", "ml/oom"]),
        ("-s completed,waiting -u ada", ["ml/next", "ml/finished"]),
        ("--node g5", ["ml/cpu", "ml/evil [31m [red]x"]),
        ("--node g[1-4]", ["ml/train"]),
        ("-l app=train", ["ml/train"]),
        ("-l app", ["ml/train", "ml/next"]),
        ("-l app,app!=train", ["ml/next"]),
        ("-l app_in_(next,nothing)", ["ml/next"]),
        ("-n ml -u ada", ["ml/train", "ml/next"]),
        ("-n other", []),
        ("-n other -A -u ada", ["ml/train", "ml/next"]),
        ("-q default -u ada", ["ml/train", "ml/next"]),
        ("train", ["ml/train"]),
        ("ml/train next", ["ml/train", "ml/next"]),
        ("finished", ["ml/finished"]),
        ("finished -s running", []),
        ("broken-1-abcde", ["ml/broken"]),
        ("ml/b*", ["ml/big", "ml/broken"]),
        ("b*", ["ml/big", "ml/broken"]),
    ],
)
@pytest.mark.slow
def test_filters(file: str, arguments: str, found: list[str]) -> None:
    assert names(file, *(one.replace("_", " ") for one in arguments.split())) == found


def test_an_empty_list_is_a_sentence_for_people_and_nothing_for_scripts(file: str) -> None:
    assert shown(file, "-n", "other") == "No job that runs or waits matches; --all also lists what is done.\n"
    assert shown(file, "-n", "other", "--all") == "No job matches.\n"
    for form in (["--no-headers"], ["-o", "name"], ["-o", "csv", "--no-headers"]):
        assert shown(file, "-n", "other", *form) == ""
    assert ask(file, "-n", "other")["jobs"] == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("trian",), 1, "there is no job trian; did you mean train"),
        (("ml/trian",), 1, "there is no job ml/trian; did you mean ml/train"),
        (("train", "x*"), 1, "there is no job x*"),
        (("-q", "defualt"), 1, "did you mean default"),
        (("--node", "g9"), 1, "node g9 does not exist"),
        (("--node", "gg1"), 1, "node gg1 does not exist; did you mean g1"),
        (("-s", "waitin"), 2, "'waitin' is no state; did you mean waiting? There are running, "),
        (("-l", "a b"), 2, "'a b' is not a label requirement such as key=value"),
        (("--columns", "jbo"), 2, "there is no column 'jbo'; did you mean job? There are job, user, "),
        (("--sort-by", "-stat"), 2, "there is no column 'stat'; did you mean state? There are job, "),
        (("-o", "jsn"), 2, "-o 'jsn' is none of table, wide, json, yaml, name, csv, jsonpath=EXPR"),
        (("-o", "jsonpath"), 2, "needs an expression"),
        (("-o", "jsonpath={.jobs[*}"), 2, "'[*' is not .name"),
        (("-o", "jsonpath={.jbos}"), 1, "an answer has no 'jbos', it has apiVersion, kind, now, "),
        (("-o", "json", "--columns", "job"), 2, "--columns goes with -o table, wide, name or csv"),
        (("-o", "yaml", "--sort-by", "job"), 2, "--sort-by goes with -o table, wide, name or csv"),
        (("-o", "json", "-w"), 2, "--watch prints rows: -o table, wide, name or csv, not json"),
    ],
)
def test_errors_are_one_clear_line(file: str, arguments: tuple[str, ...], code: int, message: str) -> None:
    result = run(*arguments, "-f", file, "--at", AT)
    assert (result.exit_code, message in result.output) == (code, True), result.output
    assert "Traceback" not in result.output


def test_columns_and_sorting(file: str) -> None:
    found = shown(file, "--columns", "gpus,job", "--sort-by", "-gpus", "--no-headers").splitlines()
    assert [line.split()[0] for line in found] == ["32", "32", "16", "1", "0.5", "2x1g.10gb", "0"]
    assert names(file, "--all", "--sort-by", "ends")[:2] == ["ml/broken", "ml/evicted"]
    # What has no end comes last in both directions.
    assert names(file, "--sort-by", "-ends")[:2] == ["ml/train", "ml/slice"]
    assert names(file, "--sort-by", "ends")[:2] == ["ml/slice", "ml/train"]


def test_starts_are_left_out_on_request_and_where_many_wait(file: str, tmp_path: Path) -> None:
    assert {row["starts"] for row in rows(file, "--no-start", "-s", "waiting").values()} == {""}
    assert "3 jobs wait: --start shows when they start." in shown(file, "--no-start", "-s", "waiting")
    found = ask(file, "--no-start", "-s", "waiting")
    assert not found["looked_ahead"] and {one["start"] for one in found["jobs"]} == {None}
    # The reasons are the same, as they are those of the next step.
    both = [{row["job"]: row["reason"] for row in rows(file, one).values()} for one in ("--start", "--no-start")]
    assert both[0] == both[1]
    many = tmp_path / "many.json"
    waiting = [pod(f"wait-{i}", {GPU: "8"}) for i in range(501)]
    many.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node("g1"), *waiting]}))
    assert not ask(str(many), "wait-1")["looked_ahead"]
    assert ask(str(many), "wait-1", "--start")["looked_ahead"]


def test_jobs_and_queue_agree(file: str) -> None:
    result = CliRunner().invoke(cli, ["queue", "-f", file, "--at", AT, "-o", "csv"])
    queue = {row["job"]: (row["reason"], row["starts"]) for row in csv.DictReader(io.StringIO(result.stdout))}
    assert queue == {job: (row["reason"], row["starts"]) for job, row in rows(file, "-s", "waiting").items()}


@pytest.mark.parametrize("width", [20, 60, 80, 200])
@pytest.mark.parametrize("form", ["table", "wide"])
def test_names_stay_whole_on_a_terminal(file: str, width: int, form: str) -> None:
    words = set(shown(file, "--all", "-o", form, columns=width).split())
    assert {"ml/train", "ml/finished", "NVIDIA-H100-80GB-HBM3", "g1,g2,g3", "GangDoesNotFit"} <= words | {
        word.removesuffix(",g4") for word in words
    }


def test_a_terminal_shows_the_first_nodes_and_a_pipe_all_of_them(file: str) -> None:
    assert "g1,g2,g3 and 1 more" in shown(file, columns=200)
    assert "g1,g2,g3,g4" in shown(file, "-o", "wide", columns=200)
    assert "g1,g2,g3,g4" in shown(file)


def test_control_characters_and_markup_of_names(file: str) -> None:
    for form in ("table", "wide", "csv", "name", "jsonpath={.jobs[*].job}"):
        found = shown(file, "-u", "x", "-o", form)
        assert "ml/evil [31m [red]x" in found and "\x1b" not in found
    assert len(shown(file, "-u", "x", "-o", "csv").splitlines()) == 2
    assert ask(file, "-u", "x")["jobs"][0]["job"] == f"ml/{EVIL}"
    assert "\x1b" not in shown(file, "-u", "x", "-o", "json") + shown(file, "-u", "x", "-o", "yaml")


def test_colours_are_for_states_alone(file: str) -> None:
    def printed(**more: str) -> str:
        env = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "200", **more}
        return CliRunner().invoke(cli, ["jobs", "-f", file, "--at", AT, "--all"], env=env).stdout

    for line in printed().splitlines()[1:]:
        begins, _, rest = line.partition("\x1b[")
        assert rest.count("\x1b[") == 1 and rest.partition("m")[2].partition("\x1b")[0] in set(JOBS.values()), line
        assert begins.startswith("ml/")
    assert "\x1b[3" not in printed(NO_COLOR="1")


def test_pods_of_a_job_that_goes_on_are_not_done(tmp_path: Path) -> None:
    """A gang of which one pod failed and was made again runs; each pod on its own is a job."""
    items = cluster()
    again = json.loads(json.dumps(next(one for one in items if one["metadata"]["name"] == "train-0-abcde")))
    again["metadata"] |= {"name": "train-0-first", "uid": "first"}
    file = tmp_path / "again.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*items, ended(again, 1)]}))
    assert names(str(file), "train") == ["ml/train"]
    assert rows(str(file), "--all")["ml/train"]["state"] == "Running"


def test_the_pod_that_ended_last_decides(tmp_path: Path) -> None:
    items = cluster()
    first = json.loads(json.dumps(next(one for one in items if one["metadata"]["name"] == "finished-0-abcde")))
    first["metadata"] |= {"name": "finished-0-first", "uid": "first"}
    file = tmp_path / "again.json"
    file.write_text(
        json.dumps({"apiVersion": "v1", "kind": "List", "items": [*items, ended(first, 1, at="2026-11-22T10:30:00Z")]})
    )
    assert rows(str(file), "finished")["ml/finished"]["state"] == "Completed"


@pytest.mark.slow
def test_ten_thousand_jobs(tmp_path: Path) -> None:
    file = tmp_path / "many.json"
    items = [node(f"g{i}") for i in range(100)]
    items += [pod(f"run-{i}", {"cpu": "0"}, f"g{i % 100}", "2h", dovetail_user=f"u{i % 7}") for i in range(5000)]
    items += [pod(f"wait-{i}", {GPU: "16"}) for i in range(2500)]
    items += [ended(pod(f"done-{i}", {GPU: "1"}, "g1")) for i in range(2500)]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    begun_s = time.process_time()
    assert len(shown(str(file), "--all").splitlines()) == 10_002
    assert time.process_time() - begun_s < 20
    assert len(names(str(file), "-u", "u3")) == 714


@pytest.mark.slow
def test_a_closed_pipe_ends_it_quietly(file: str) -> None:
    items = [node("g1"), *(pod(f"a-rather-long-name-of-a-job-{i}", {GPU: "16"}) for i in range(1500))]
    many = Path(file).with_name("pipe.json")
    many.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    for form in ("table", "csv", "name", "json"):
        call = piped(main, "jobs", "--no-start", "-f", str(many), "-o", form)
        process = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        # Unbuffered output may end before it finds out.
        assert process.wait() in (141, 0)


def test_a_connection_that_breaks_is_no_closed_pipe(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError("of a socket")

    monkeypatch.setattr(ClusterSource, "read", broken)
    with (Path(file).with_name("out")).open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        with pytest.raises(BrokenPipeError, match="of a socket"):
            cli.main(["jobs", "-f", file], standalone_mode=False)


async def test_a_live_cluster(tmp_path: Path) -> None:
    playground = Playground()
    await playground.start()
    try:
        kubeconfig = str(playground.kubeconfig(tmp_path / "kubeconfig"))
        playground.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}})
        for document in cluster():
            if document["metadata"]["name"] != EVIL and document["kind"] != "Job":
                playground.put(document)
        result = await asyncio.to_thread(run, "--all", "--kubeconfig", kubeconfig, "-o", "json")
        assert result.exit_code == 0, result.output
        found = {one["job"]: one for one in json.loads(result.stdout)["jobs"]}
        assert {job: one["state"] for job, one in found.items()} == {
            job: state for job, state in JOBS.items() if "evil" not in job
        }
        assert found["ml/oom"]["message"] == "pod oom: container main exited with 137"
    finally:
        await playground.stop()
