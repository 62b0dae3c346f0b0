# SPDX-License-Identifier: Apache-2.0
"""`dovetail instances` and `dovetail spot`, as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dovetail.advice.prices import COLUMNS
from dovetail.cli import cli

NEED = {"need": {"gpus": 2, "memory_per_gpu_mib": 78_782, "nvlink": True, "nodes": 1}}
ROW = "acme,big.8x,H100-SXM5,8,80,96,1024,3200,EFA,1000,north,40,9,16,2026-01-31,a bill"
INTERRUPTED = ["--save", "2m", "--restart", "10m", "--mtbi", "8h"]
SPOT = ["spot", *INTERRUPTED, "--discount", "60%"]
JOB = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\nspec:\n  template: {spec: {containers: [{name: b}]}}\n"


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, arguments, input=stdin)


def answer(*arguments: str, stdin: str | None = None) -> dict[str, Any]:
    result = run(*arguments, "-o", "json", stdin=stdin)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_need_is_what_memory_printed() -> None:
    memory = run("memory", "llama-3.1-70b", "-o", "json").stdout
    found = answer("instances", "--need", "-", stdin=memory)
    need = json.loads(memory)["need"]
    assert found["wanted"]["memory_mib_per_gpu"] == -(-need.pop("host_memory_mib") // 2)
    assert {name: found["wanted"][name] for name in NEED["need"]} == need
    assert (
        answer("instances", "--need", "-", "--memory", "1Ti", stdin=memory)["wanted"]["memory_mib_per_gpu"] == 1 << 20
    )
    same = ["--gpus", "2", "--gpu-memory-mib", "78782", "--nvlink"]
    assert answer("instances", *same) == answer("instances", "--need", "-", stdin=json.dumps(NEED))


def test_a_plan_for_gpus_without_nvlink_finds_them() -> None:
    memory = run("memory", "llama-3.1-70b", "--gpu", "L40S", "-o", "json").stdout
    options = answer("instances", "--need", "-", stdin=memory)["options"]
    assert "g6e.12xlarge" in [option["instance_type"] for option in options]


def test_own_prices_and_every_price_with_its_date(tmp_path: Path) -> None:
    prices = tmp_path / "own.csv"
    prices.write_text(f"{','.join(COLUMNS)}\n{ROW}\n")
    (option,) = answer("instances", "--prices", str(prices))["options"]
    assert (option["instance_type"], option["price_date"]) == ("big.8x", "2026-01-31")
    lines = run("instances", "--gpus", "8", "--nvlink").stdout.splitlines()
    options = [line for line in lines if " x " in line]
    assert len(options) > 10 and all("2026-0" in line for line in options)


def test_the_built_in_table_takes_newer_prices(tmp_path: Path) -> None:
    newer, table = tmp_path / "newer.csv", tmp_path / "table.csv"
    newer.write_text(
        "cloud,instance_type,region,price_usd_h,price_date,source\ngcp,a4-highgpu-8g,moon,9,2026-11-20,b\n"
    )
    result = run("instances", "--refresh", str(newer))
    assert (
        result.exit_code == 0
        and result.stderr == "0 lines replaced, 1 added, 120 lines kept, the oldest of 2026-06-18.\n"
    )
    table.write_text(result.stdout)
    (option,) = answer("instances", "--gpus", "8", "--region", "moon", "--prices", str(table))["options"]
    assert (option["instance_type"], option["micro_usd_per_hour"]) == ("a4-highgpu-8g", 9_000_000)


def test_the_built_in_table_takes_an_answer_of_a_cloud(tmp_path: Path) -> None:
    spot = {
        "AvailabilityZone": "us-east-1a", "InstanceType": "p5.48xlarge", "ProductDescription": "Linux/UNIX",
        "SpotPrice": "21.5", "Timestamp": "2026-11-28T10:00:00+00:00",
    }  # fmt: skip
    newer = tmp_path / "answer.json"
    newer.write_text(json.dumps({"SpotPriceHistory": [spot, spot | {"InstanceType": "m5.large"}]}))
    result = run("instances", "--refresh", str(newer))
    assert result.stderr == (
        "1 line replaced, 0 added, 119 lines kept, the oldest of 2026-06-18. Left out: 1 type that the table lacks.\n"
    )
    (tmp_path / "table.csv").write_text(result.stdout)
    options = answer(
        "instances", "--gpus", "8", "--cloud", "aws", "--interruptible", *INTERRUPTED, "--prices",
        str(tmp_path / "table.csv"),
    )["options"]  # fmt: skip
    (found,) = (one for one in options if one["spot"])
    assert (found["instance_type"], found["micro_usd_per_hour"]) == ("p5.48xlarge", 21_500_000)


@pytest.mark.parametrize("option", [["--rdma"], ["--cpu", "30"], ["--memory", "200Gi"], ["--cloud", "gcp"],
                                    ["--region", "eastus"], ["--nvlink"], ["--nodes", "1"]])  # fmt: skip
def test_each_option_leaves_fewer(option: list[str]) -> None:
    few, all_ = (answer("instances", "--gpus", "2", *more)["options"] for more in (option, []))
    assert 0 < len(few) < len(all_)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("GPUs: 2", "not an answer of `dovetail memory -o json`"),
        ("{}", "missing required field `need`"),
        ('{"need": null}', "`$.need`"),
        (json.dumps({"need": NEED["need"] | {"gpus": "2"}}), "`$.need.gpus`"),
        (json.dumps({"need": NEED["need"] | {"gpus": 0}}), "need.gpus is 0; it must be at least 1"),
        (json.dumps({"need": NEED["need"] | {"host_memory_mib": -1}}), "need.host_memory_mib is -1"),
        (json.dumps({"need": NEED["need"] | {"rack": 1}}), "unknown field `rack`"),
    ],
)
def test_a_need_that_is_none(text: str, message: str) -> None:
    result = run("instances", "--need", "-", stdin=text)
    assert result.exit_code == 1 and message in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--need", "-", "--gpus", "2"], "--need and --gpus set the same value"),
        (["--need", "-", "--prices", "-"], "cannot both be standard input"),
        (["--gpus", "0"], "0 is not in the range"),
        (["--nodes", "2"], "1 GPU cannot be divided among 2 instances"),
        (["--save", "2m"], "--save is for spot instances: add --interruptible"),
        (["--interruptible", "--save", "2m", "--mtbi", "8h"], "--interruptible needs --restart"),
        (["--region", "moon"], "there is no price of 'moon'; known are eastus, "),
        (["--interruptible", "--save", "0s", "--restart", "1m", "--mtbi", "8h"], "'0s' must be at least 1 s"),
        (["--memory", "8 apples"], "8 apples"),
        (["--refresh", "-", "--prices", "-"], "cannot both be standard input"),
        (["--refresh", "-", "--gpus", "8"], "--refresh ranks nothing: remove --gpus"),
        (["--refresh", "-", "--memory", "1Gi"], "--refresh ranks nothing: remove --memory"),
        (["--refresh", "-", "-o", "json"], "--refresh ranks nothing: remove --output"),
    ],
)
def test_options_of_instances_that_are_refused(arguments: list[str], message: str) -> None:
    result = run("instances", *arguments, stdin=json.dumps(NEED))
    assert result.exit_code == 2 and message in " ".join(result.output.split())


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    bad = tmp_path / "own.csv"
    bad.write_text(f"{','.join(COLUMNS)}\n{ROW.replace(',40,', ',free,')}\n")
    result = run("instances", "--prices", str(bad))
    expected = "column price_usd_h: 'free' is not dollars for an hour above 0"
    assert result.exit_code == 1 and f"own.csv:2, {expected}" in result.output
    bad.write_bytes(b"\xff\xfe")
    for arguments in (["--prices", str(bad)], ["--need", str(tmp_path / "none.json")]):
        result = run("instances", *arguments)
        assert result.exit_code == 1 and str(tmp_path) in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "1"], "use either --mtbi or --rate"),
        (["--mtbi", "0s"], "'0s' must be at least 1 s"),
        (["--mtbi", "8"], "'8' is not a duration with units"),
        (["--mtbi", "-8h"], "'-8h' is not a duration with units"),
        (["--discount", "60"], "'60' is not a percentage"),
        (["--discount", "100%"], "must be less than 100%"),
        (["--nodes", "0"], "0 is not in the range"),
    ],
)
def test_options_of_spot_that_are_refused(arguments: list[str], message: str) -> None:
    result = run(*SPOT, *arguments)
    assert result.exit_code == 2 and message in " ".join(result.output.split())


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "inf"])
def test_a_rate_is_above_zero(rate: str) -> None:
    result = run("spot", "--save", "2m", "--restart", "0s", "--discount", "60%", "--rate", rate)
    assert result.exit_code == 2 and "more than 0 interruptions" in result.output


def test_what_spot_costs() -> None:
    found = answer(*SPOT, "--nodes", "4", "--interval", "4h", "--work", "10h")
    assert found["mtbi_s"] == 7200 and found["missing"] is None
    young, daly, yours = found["intervals"]
    assert young["interval_s"] == pytest.approx((2 * 120 * 7200) ** 0.5)
    assert daly["cost_factor"] == pytest.approx(0.4 * daly["time_factor"])
    assert yours["expected_s"] == pytest.approx(36_000 * yours["time_factor"])
    assert found["pays"] and 1 - found["break_even_discount"] == pytest.approx(1 / daly["time_factor"])
    rate = ["spot", "--save", "2m", "--restart", "10m", "--rate", "0.125", "--discount", "60%"]
    assert answer(*rate) == answer(*SPOT)
    assert not answer(*SPOT[:-1], "5%")["pays"]


def test_where_nothing_is_ever_finished() -> None:
    found = answer(*SPOT, "--nodes", "60000")
    assert found["break_even_discount"] is None and not found["pays"]
    assert "never ends" in run(*SPOT, "--nodes", "60000").stdout


@pytest.mark.slow
def test_the_picture(tmp_path: Path) -> None:
    assert run(*SPOT, "--plot", str(tmp_path / "a.png")).exit_code == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert run(*SPOT, "--plot", str(tmp_path / "none" / "a.png")).exit_code == 1
    assert run(*SPOT, "--nodes", "60000", "--plot", str(tmp_path / "b.png")).exit_code == 1


NIGHT = """\
apiVersion: batch/v1
kind: Job
metadata: {name: night}  # by cron
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: train
        # pinned
        image: train:1.4
        resources: {limits: {nvidia.com/gpu: 8}}
"""


def test_what_a_manifest_lacks() -> None:
    missing = answer(*SPOT, "-f", "-", stdin=JOB)["missing"]
    assert {(one["object"], one["file"]) for one in missing} == {("Job a", "-")}
    assert [one["line"] for one in missing] == [4, 5, 5, 5]
    assert [one["fixable"] for one in missing] == [False, False, False, True]


def test_what_a_manifest_lacks_is_added(tmp_path: Path) -> None:
    path = tmp_path / "night.yaml"
    path.write_text(NIGHT)
    reported = ("-f", str(path), "--checkpoint-claim", "runs", "--save-command", "kill -USR1 1; sleep 90")
    before = answer(*SPOT, *reported)["missing"]
    assert [one["fixable"] for one in before] == [True] * 4
    assert path.read_text() == NIGHT
    assert answer(*SPOT, *reported, "--fix")["missing"] == []
    lines = path.read_text().splitlines()
    assert [line for line in lines if line in NIGHT.splitlines()] == NIGHT.splitlines()
    assert "      terminationGracePeriodSeconds: 150" in lines
    mended = path.read_text()
    run(*SPOT, *reported, "--fix")
    assert path.read_text() == mended


def test_the_manifest_of_standard_input_is_printed_mended() -> None:
    result = run(*SPOT, "-f", "-", "--fix", stdin=NIGHT)
    assert "terminationGracePeriodSeconds: 150" in result.stdout and "podFailurePolicy:" in result.stdout
    assert "Spot pays" in result.stderr and "The manifests lack, to survive an interruption:" in result.stderr


@pytest.mark.parametrize("more", [["--fix"], ["--checkpoint-claim", "a"], ["-f", "-", "--fix", "-o", "json"]])
def test_contradictions_about_manifests(more: list[str]) -> None:
    assert run(*SPOT, *more, stdin=NIGHT).exit_code == 2


@pytest.mark.parametrize("text", ["kind: Service\napiVersion: v1\n", "[1]", "a: ["])
def test_what_is_no_manifest_of_a_job(text: str) -> None:
    result = run(*SPOT, "-f", "-", stdin=text)
    assert result.exit_code == 1 and result.output.startswith("Error: -")


@pytest.mark.slow
def test_matplotlib_is_loaded_for_a_picture_alone() -> None:
    code = "import sys, dovetail.cli.spot, dovetail.cli.instances; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
