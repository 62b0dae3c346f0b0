# SPDX-License-Identifier: Apache-2.0
"""`dovetail memory`, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dovetail.advice import catalog
from dovetail.cli import cli
from tests.advice.models import llama
from tests.terminal import environment


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["memory", *arguments])


def answer(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(llama()))
    return path


def test_the_answer_for_programs() -> None:
    found = answer("llama-3.1-70b", "--context", "8192", "--gpu", "H100-SXM5")
    assert found["need"] == {"gpus": 2, "memory_per_gpu_mib": 78_782, "nvlink": True, "nodes": 1,
                             "host_memory_mib": 15_681}  # fmt: skip
    assert found["layout"] == {"tp": 2, "pp": 1, "dp": 1}
    assert found["total_bytes"] == sum(found["parts"].values())
    assert (found["job"], found["model"]["parameters"]) == ("serve", 70_553_706_496)
    (room,) = found["gpus"]
    assert (room["fits"], room["need"]) == (True, found["need"])


def test_a_file_a_folder_and_a_name_are_models(config: Path) -> None:
    by_file, by_folder = answer(str(config)), answer(str(config.parent))
    assert by_file == by_folder
    assert by_file["model"]["name"] == str(config)
    assert answer("meta-llama/Llama-3.1-8B")["model"]["name"] == "llama-3.1-8b"


def test_a_format_that_only_the_file_of_model_optimizer_states(config: Path) -> None:
    beside = config.with_name("hf_quant_config.json")
    before = answer(str(config))["parts"]["weights"]
    beside.write_text(json.dumps({"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}))
    found = answer(str(config.parent))
    assert (found["plan"]["weights"], found["model"]["name"]) == ("nvfp4", str(config))
    assert found["parts"]["weights"] < before / 1.5
    beside.write_text("{")
    assert f"{beside}: not JSON" in " ".join(run(str(config)).output.split())


def test_the_memory_of_the_host_is_a_table() -> None:
    arguments = ("llama-3.1-8b", "--train", "full", "--zero", "2", "--offload", "--gpus", "8", "--gpu", "H100-SXM5")
    found = answer(*arguments)
    assert found["host"]["optimizer"] == found["model"]["parameters"] * 16 and found["parts"]["gradients"] == 0
    assert found["need"]["host_memory_mib"] << 20 >= sum(found["host"].values()) - found["host"]["loading"]
    text = run(*arguments).output
    assert "optimizer, offloaded" in text and "adamw in host memory" in text and "emptyDir of medium Memory" in text
    assert "/dev/shm" not in run("llama-3.1-8b").output


def test_an_exact_gpu_and_all_of_a_kind() -> None:
    assert [room["gpu"] for room in answer("gpt2", "--gpu", "L4")["gpus"]] == ["L4"]
    assert [room["gpu"] for room in answer("gpt2", "--gpu", "h200")["gpus"]] == ["H200-SXM5", "H200-NVL"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        (["--context", "4096"], ["kv_cache"]),
        (["--concurrency", "2"], ["kv_cache"]),
        (["--weights", "int4"], ["weights"]),
        (["--kv-cache", "fp8"], ["kv_cache"]),
        (["--prefill-tokens", "1024"], ["activations"]),
        (["--runtime-mib", "2048"], ["runtime"]),
        (["--gpus", "2"], ["weights", "kv_cache", "collectives"]),
        (["--tp", "2"], ["weights", "kv_cache", "collectives"]),
        (["--pp", "2"], ["weights", "kv_cache", "collectives"]),
    ],
)
def test_each_option_of_serving_does_something(arguments: list[str], changed: list[str]) -> None:
    before, after = answer("llama-3.1-8b")["parts"], answer("llama-3.1-8b", *arguments)["parts"]
    assert all(before[name] != after[name] for name in changed)


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        (["--batch", "2"], "activations"),
        (["--precision", "fp32"], "weights"),
        (["--optimizer", "sgd"], "optimizer"),
        (["--zero", "1"], "optimizer"),
        (["--fsdp"], "weights"),
        (["--checkpointing", "full"], "activations"),
        (["--attention", "eager"], "activations"),
        (["--sequence-parallel"], "activations"),
    ],
)
@pytest.mark.slow
def test_each_option_of_training_does_something(arguments: list[str], changed: str) -> None:
    base = ["llama-3.2-1b", "--train", "full", "--gpus", "8", "--tp", "2"]
    assert answer(*base)["parts"][changed] != answer(*base, *arguments)["parts"][changed]


@pytest.mark.parametrize("arguments", [["--lora-rank", "8"], ["--lora-targets", "attention"]])
def test_each_option_of_adapters_does_something(arguments: list[str]) -> None:
    base = ["llama-3.2-1b", "--train", "lora"]
    assert answer(*base)["model"]["trained"] > answer(*base, *arguments)["model"]["trained"] > 0


@pytest.mark.slow
def test_what_is_to_stay_free_and_the_size_of_a_node() -> None:
    base = ["llama-3.1-405b", "--gpu", "B200"]
    need = answer(*base)["need"]
    assert need["nodes"] == 1
    assert answer(*base, "--headroom", "0")["need"]["memory_per_gpu_mib"] < need["memory_per_gpu_mib"]
    assert answer(*base, "--gpus-per-node", "4")["need"]["nodes"] > 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["gpt2", "--zero", "1"], "--zero is an option of --train"),
        (["gpt2", "--batch", "1"], "--batch is an option of --train"),
        (["gpt2", "--lora-rank", "8"], "--lora-rank is an option of --train lora and --train qlora"),
        (["gpt2", "--train", "full", "--lora-rank", "8"], "--lora-rank is an option of --train lora"),
        (["gpt2", "--train", "lora", "--weights", "int4"], "--weights is an option of serving: omit --train"),
        (["gpt2", "--train", "full", "--concurrency", "2"], "--concurrency is an option of serving"),
        (["gpt2", "--tp", "5"], "5 tensor-parallel ranks do not divide the 12 attention heads"),
        (["gpt2", "--gpu", "MI300X"], "'MI300X' is not a known GPU; known are K80"),
        (["gpt2", "--train", "full", "--zero", "4"], "4 is not in the range 0<=x<=3"),
        (["gpt2", "--context", "0"], "0 is not in the range"),
        (["llama-3.1-8b", "--train", "qlora", "--tp", "2"], "cannot be divided by --tp"),
        (["llama-3.1-8b", "--train", "full", "--zero", "3", "--fsdp"], "take one of --fsdp and --zero 3"),
        ([], "name a MODEL"),
        (["gpt2", "--list"], "name a MODEL"),
    ],
)
def test_options_that_contradict_are_a_usage_error(arguments: list[str], expected: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert expected in " ".join(result.stderr.split())
    assert not result.stdout


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"model_type": "llama",', "not JSON: Input data was truncated"),
        (b"\x7fELF\x02\x01\x01\x00\xff\xfe", "not JSON"),
        (b'{"model_type": "\xff\xfe"}', "not JSON"),
        (b"", "not JSON"),
        (b"[1, 2]", "not a JSON object"),
        (b"[" * 100_000, "not JSON"),
        (b" " * (1 << 20) + b"{}", "more than 1 MiB: a config.json has a few KiB; are these weights?"),
        (b'{"model_type": "newest"}', "'newest' is not known, and as a decoder like Llama lacks num_hidden_layers"),
        (b"{}", "model_type: missing; is this a config.json?"),
    ],
    ids=["cut off", "binary", "not UTF-8", "empty", "a list", "deep", "huge", "unknown", "nothing said"],
)
def test_a_file_that_cannot_be_used_is_one_line(tmp_path: Path, content: bytes, expected: str) -> None:
    result = run(str(written(tmp_path / "config.json", content)))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {tmp_path / 'config.json'}: ") and expected in result.stderr
    assert result.stderr.count("\n") == 1 and not result.stdout


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    result = run("llama-3-8b")
    assert result.exit_code == 1
    assert "'llama-3-8b' is neither a file nor a built-in model. Similar: llama-3.1-8b" in result.stderr
    assert f"no config.json in '{tmp_path}'" in run(str(tmp_path)).stderr


def test_the_models_that_are_built_in() -> None:
    shown = run("--list").stdout
    expected = json.loads(run("--list", "-o", "json").stdout)
    assert [one["name"] for one in expected] == [entry.name for entry in catalog.entries()]
    assert all(one["name"] in shown and f"{one['parameters'] / 1e9:.2f} B" in shown for one in expected)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["deepseek-v3"], ["llama-3.1-405b", "--train", "full", "--fsdp"]])
def test_the_tables_are_no_wider_than_a_page(arguments: list[str]) -> None:
    shown = CliRunner().invoke(cli, ["memory", *arguments], env=environment(120)).stdout
    assert max(map(len, shown.splitlines())) <= 120
    assert "…" not in shown


def test_what_is_shown_of_a_gpu_that_does_not_hold_it() -> None:
    lines = run("llama-3.1-70b", "--gpus", "1", "--gpu", "L4").stdout.splitlines()
    (row,) = (line for line in lines if line.startswith("L4"))
    assert row.split()[:3] == ["L4", "21.9", "no"] and row.rstrip().endswith("does not fit")
    assert lines[-1] == "note: no possible layout fits L4; the smallest is shown"
