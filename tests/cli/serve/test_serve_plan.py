# SPDX-License-Identifier: Apache-2.0
"""`dovetail serve plan`, as a user runs it: the answers, the objects, and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from dovetail.cli import cli
from tests.cli.answers import answer

REQUESTS = ("--rate", "2", "--input-tokens", "2000", "--output-tokens", "300", "--ttft-ms", "3000", "--tpot-ms", "100")
HOPPER = ("--gpus", "H100-SXM5=4x8")
NODES = [
    {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "model-weights", "namespace": "default",
                     "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"accessModes": ["ReadOnlyMany"], "storageClassName": "shared", "volumeName": "weights",
                 "resources": {"requests": {"storage": "1Ti"}}},
        "status": {"phase": "Bound"},
    },
    {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "weights"},
        "spec": {"accessModes": ["ReadOnlyMany"], "storageClassName": "shared", "capacity": {"storage": "1Ti"},
                 "nfs": {"server": "nfs.example.com", "path": "/"},
                 "claimRef": {"namespace": "default", "name": "model-weights"}},
        "status": {"phase": "Bound"},
    },
    {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "serving"}, "value": 1000},
    *(
        {
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": f"gpu-{n}", "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
            "status": {"allocatable": {"cpu": "192", "memory": "2Ti", "pods": "110", "nvidia.com/gpu": "8",
                                       "rdma/ib": "8", "ephemeral-storage": "4Ti"},
                       "conditions": [{"type": "Ready", "status": "True"}]},
        }
        for n in range(4)
    ),
]  # fmt: skip
WRITTEN = [
    ("llama-3.1-70b --engine vllm --mode aggregated", "Deployment Service", 1),
    ("llama-3.1-70b --engine vllm --mode aggregated --weights fp8 --kv-cache fp8", "Deployment Service", 1),
    ("llama-3.1-405b --engine vllm --mode aggregated --weights bf16", "LeaderWorkerSet Service", 4),
    ("llama-3.1-8b --engine vllm --mode aggregated --lora-adapters 4", "Deployment Service", 1),
    ("llama-3.1-8b --engine tensorrt-llm --mode aggregated --lora-adapters 4", "ConfigMap Deployment Service", 1),
    ("qwen3-30b-a3b --engine vllm --mode aggregated", "Deployment Service", 1),
    ("llama-3.1-70b --engine tensorrt-llm --mode aggregated", "Deployment Service", 1),
    ("qwen3-30b-a3b --engine tensorrt-llm --mode aggregated --weights fp8 --kv-cache fp8 --checkpoint x/fp8",
     "ConfigMap Deployment Service", 1),
    ("llama-3.1-70b --engine tensorrt-llm --mode disaggregated",
     "ConfigMap Service StatefulSet ConfigMap Service StatefulSet ConfigMap Deployment Service", 3),
    ("llama-3.1-70b --engine llm-d --mode aggregated", "Deployment InferencePool", 1),
    ("llama-3.1-70b --engine llm-d --mode disaggregated", "Deployment Deployment InferencePool", 2),
]  # fmt: skip


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["serve", "plan", *arguments])


def planned(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = answer(result.stdout, "ServePlan")
    return found


def test_the_answer_for_programs_follows_its_schema() -> None:
    found = planned("llama-3.1-70b", *REQUESTS, *HOPPER)
    assert (found["model"], found["wanted"]["rate"], found["nearest"]) == ("llama-3.1-70b", 2.0, "")
    assert {one["engine"] for one in found["options"]} == {"vllm", "tensorrt-llm", "llm-d"}
    assert all(one["micro_usd_per_hour"] > 0 for one in found["options"])
    planned("llama-3.1-70b", *REQUESTS, "--gpus", "L4=1x1")


def test_the_table() -> None:
    result = run("llama-3.1-70b", *REQUESTS, *HOPPER)
    assert result.exit_code == 0, result.output
    for part in ("llama-3.1-70b: 2 requests/s of 2000 + 300 tokens", "$/million tokens", "choice: ", "Rejected:",
                 "does not fit: weights leave nothing of each GPU"):  # fmt: skip
        assert part in result.stdout
    result = run("llama-3.1-70b", *REQUESTS, "--gpus", "L4=1x4")
    assert "The model does not fit. Nearest that holds it: 8 x L4 (TP8)." in result.stdout
    result = run("llama-3.1-8b", *REQUESTS, "--price-limit", "1000")
    assert "more: -o json has them all" in result.stdout


def test_a_trace_has_the_lengths(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("ContextTokens,GeneratedTokens\n1000,100\n3000,300\n")
    lengths = planned("llama-3.1-8b", "--rate", "1", "--lengths", str(trace), *HOPPER)["wanted"]["lengths"]
    assert lengths == {"input": 2000.0, "output": 200.0, "input_p95": 3000, "longest": 3300, "requests": 2}
    assert "(means of 2 requests)" in run("llama-3.1-8b", "--rate", "1", "--lengths", str(trace), *HOPPER).stdout


@pytest.mark.parametrize(("line", "kinds", "pods"), WRITTEN)
@pytest.mark.slow
def test_objects_pass_the_linter_and_are_placed(line: str, kinds: str, pods: int, tmp_path: Path) -> None:
    result = run(*line.split(), *REQUESTS, *HOPPER, "-o", "yaml")
    assert result.exit_code == 0, result.output
    objects = list(yaml.safe_load_all(result.stdout))
    assert " ".join(one["kind"] for one in objects) == kinds
    assert "&" not in result.stdout.replace("&&", "")
    file, nodes = tmp_path / "serve.yaml", tmp_path / "nodes.yaml"
    file.write_text(result.stdout)
    nodes.write_text(yaml.safe_dump_all(NODES))
    linted = CliRunner().invoke(cli, ["lint", str(file), str(nodes)])
    assert (linted.exit_code, "no finding" in linted.stdout) == (0, True), linted.output
    simulated = CliRunner().invoke(cli, ["simulate", str(nodes), str(file), "-o", "json"])
    report = answer(simulated.stdout, "SnapshotReport")
    assert (len(report["placed"]), report["waiting"]) == (pods, [])


def test_fields_of_the_objects() -> None:
    text = run("llama-3.1-70b", "--engine", "llm-d", "--mode", "disaggregated", *REQUESTS, *HOPPER, "-o", "yaml").stdout
    prefill, decode, pool = yaml.safe_load_all(text)
    roles = [one["spec"]["template"]["metadata"]["labels"]["llm-d.ai/role"] for one in (prefill, decode)]
    assert roles == ["prefill", "decode"]
    # An update ends an instance before it starts another, so that it needs no more GPUs.
    assert prefill["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    proxy = decode["spec"]["template"]["spec"]["initContainers"][0]
    assert (proxy["restartPolicy"], proxy["ports"][0]["containerPort"]) == ("Always", 8000)
    assert pool["spec"]["targetPorts"] == [{"number": 8000}]
    command = prefill["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[:3] == ["vllm", "serve", "meta-llama/Llama-3.1-70B"]
    assert "NixlConnector" in command[-1]
    owned = run("llama-3.1-8b", *REQUESTS, *HOPPER, "-o", "yaml", "--team", "ada", "--priority-class", "high").stdout
    first = next(yaml.safe_load_all(owned))["spec"]["template"]
    assert (first["metadata"]["labels"]["team"], first["spec"]["priorityClassName"]) == ("ada", "high")


def test_the_orchestrator_has_the_names_of_its_servers() -> None:
    line = ("--engine", "tensorrt-llm", "--mode", "disaggregated", "--rate", "12", *REQUESTS[2:], *HOPPER)
    found = planned("llama-3.1-70b", *line, "--weights", "fp8")["options"][0]["roles"]
    objects = list(
        yaml.safe_load_all(
            run("llama-3.1-70b", *line, "--weights", "fp8", "--checkpoint", "x/fp8", "-o", "yaml").stdout
        )
    )
    (text,) = (one["data"]["servers.yaml"] for one in objects if "servers.yaml" in one.get("data", {}))
    servers = yaml.safe_load(text)
    for role, field in zip(found, ("context_servers", "generation_servers"), strict=True):
        name = f"llama-3-1-70b-{role['role']}"
        assert servers[field] == {
            "num_instances": role["replicas"],
            "urls": [f"{name}-{n}.{name}:8000" for n in range(role["replicas"])],
        }
        (pods,) = (one for one in objects if one["kind"] == "StatefulSet" and one["metadata"]["name"] == name)
        assert (pods["spec"]["replicas"], pods["spec"]["serviceName"]) == (role["replicas"], name)
    assert objects[-1]["spec"]["selector"] == {"app.kubernetes.io/name": "llama-3-1-70b-orchestrator"}


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("--rate 0 --input-tokens 1 --output-tokens 1", 2, "'0' is no rate: requests per second, above 0"),
        ("--rate -1 --input-tokens 1 --output-tokens 1", 2, "'-1' is no rate"),
        ("--rate nan --input-tokens 1 --output-tokens 1", 2, "'nan' is no rate"),
        ("--rate 1 --input-tokens 1 --output-tokens 1 --price-limit inf", 2, "'inf' is no number"),
        ("--rate 1 --input-tokens 1 --output-tokens 1 --price-limit nan", 2, "'nan' is no number"),
        ("--rate 1 --input-tokens 1 --output-tokens 1 --tpot-ms nan", 2, "'nan' is no number"),
        ("--rate 1", 2, "name the lengths of requests"),
        ("--rate 1 --input-tokens 5", 2, "name the lengths of requests"),
        ("--rate 1 --input-tokens 0 --output-tokens 1", 2, "0 is not in the range"),
        ("--rate 1 --input-tokens 1 --output-tokens 1 --engine sglang", 2, "'sglang' is not one of 'vllm'"),
        ("--rate 1 --input-tokens 1 --output-tokens 1 --gpus H100", 2, "is not MODEL=NODESxGPUS, such as"),
        ("--rate 1 --input-tokens 1 --output-tokens 1 --gpus H100=1x8", 2, "'H100' is several; known are"),
        ("--rate 1 --input-tokens 1 --output-tokens 1 --gpus X1=1x8", 2, "'X1' is not a GPU model with known speed"),
        ("--rate 1 --input-tokens 1 --output-tokens 1 --gpus H100-SXM5=0x8", 2, "is not MODEL=NODESxGPUS"),
        ("--rate 1 --input-tokens 1 --output-tokens 1 --tp 5", 2, "--tp 5 does not divide the 32 attention heads"),
        ("--rate 1 --input-tokens 100 --output-tokens 1 --context 50", 2, "shorter than the longest request of 101"),
        ("--rate 1 --input-tokens 9 --output-tokens 9 --kv-cache int8", 2, "'int8' is not one of 'bf16'"),
        ("--rate 1 --input-tokens 9 --output-tokens 9 --team Ada!", 2, "'Ada!' is no name"),
        ("--rate 1 --input-tokens 9 --output-tokens 9 --weights int4 --engine tensorrt-llm -o yaml", 1,
         "meta-llama/Llama-3.1-8B is in bf16, and TensorRT-LLM needs a checkpoint in int4: name it by --checkpoint"),
        ("--rate 1 --lengths holes.csv", 1, "holes.csv:3: GeneratedTokens is missing"),
        ("--rate 1 --lengths holes.csv --input-tokens 5", 2, "remove --input-tokens and --output-tokens"),
        ("--rate 1 --lengths none.csv", 1, "cannot read none.csv"),
        ("--rate 1 --input-tokens 1 --output-tokens 1 --prices holes.csv", 1, "holes.csv:1"),
        ("--rate 1 --input-tokens 1000 --output-tokens 1 --ttft-ms 1 -o yaml", 1, "no plan holds the wanted times"),
        ("--rate 1 --input-tokens 9 --output-tokens 9 --engine tensorrt-llm --pp 2 --tp 8 --gpus B200=2x8 -o yaml", 1,
         "objects for TensorRT-LLM on several nodes are not written"),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_bad_input(line: str, code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "holes.csv").write_text("ContextTokens,GeneratedTokens\n5,5\n5,\n")
    monkeypatch.chdir(tmp_path)
    result = run("llama-3.1-8b", *line.split())
    assert (result.exit_code, message in result.output) == (code, True), result.output


@pytest.mark.parametrize("engine", ["llm-d", "vllm"])
def test_requests_go_to_the_pods_that_answer(engine: str) -> None:
    """The workers of an instance on several nodes do not."""
    line = ("--engine", engine, "--mode", "aggregated", "--pp", "2", "--tp", "8", "--gpus", "H100-SXM5=4x8")
    instances, router = yaml.safe_load_all(run("llama-3.1-70b", *REQUESTS, *line, "-o", "yaml").stdout)
    chosen = router["spec"]["selector"]
    chosen = chosen.get("matchLabels", chosen)
    templates = instances["spec"]["leaderWorkerTemplate"]
    labels = [templates[name]["metadata"]["labels"] for name in ("leaderTemplate", "workerTemplate")]
    assert [chosen.items() <= own.items() for own in labels] == [True, False]


def test_the_names_begin_with_a_letter_whatever_the_file_is_called(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "torch_dtype": "bfloat16",
    }  # fmt: skip
    file = tmp_path / "7B_chat.json"
    file.write_text(json.dumps(config))
    result = run(str(file), *REQUESTS, *HOPPER, "--engine", "vllm", "-o", "yaml")
    assert {one["metadata"]["name"] for one in yaml.safe_load_all(result.stdout)} == {"model-7b-chat"}, result.output


TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2026-01-31 12:{second // 60:02}:{second % 60:02},{500 + second},{20 + second % 7}\n"
    for second in range(900)
    if not 200 < second < 520
)
TRACED = ("serve", "plan", "llama-3.1-8b", "--engine", "vllm", "--gpus", "H100-SXM5=2x8")


def traced(tmp_path: Path, *more: str, text: str = TRACE) -> Result:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    return CliRunner().invoke(cli, [*TRACED, "--trace", str(file), *more], env={"COLUMNS": "200"})


def test_a_trace_is_planned_for_its_busiest_minutes_and_simulated(tmp_path: Path) -> None:
    found = answer(traced(tmp_path, "-o", "json").stdout, "ServePlan")
    assert (found["wanted"]["rate"], found["wanted"]["lengths"]["requests"]) == (301 / 300, 581)
    assert found["simulation"]["gaps"] == [[200, 520]]
    assert [run["scaling"] for run in found["simulation"]["runs"]] == ["fixed", "by need"]
    assert answer(traced(tmp_path, "--rate", "9", "-o", "json").stdout, "ServePlan")["wanted"]["rate"] == 9
    text = traced(tmp_path).stdout
    assert "Plan 1 with 581 requests of 15 min" in text
    assert "note: no request from 200 s to 520 s: is the trace whole?" in text


def test_a_trace_gives_rate_and_lengths_of_the_objects(tmp_path: Path) -> None:
    done = traced(tmp_path, "-o", "yaml")
    assert done.exit_code == 0, done.output
    deployment, _ = yaml.safe_load_all(done.stdout)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    words = [*container.get("command", ()), *container.get("args", ())]
    assert words[words.index("--max-model-len") + 1] == "1422"


@pytest.mark.parametrize(
    ("more", "text", "error"),
    [
        ((), TRACE + "2026-01-31 11:00:00,5,5\n", "trace.csv:583: the request is 4499 s before that of the line above"),
        ((), TRACE + "2026-01-31 12:2", "trace.csv:583: ContextTokens is missing"),
        (("--lengths", "x"), TRACE, "--trace has the lengths of requests: remove --lengths"),
        (("--input-tokens", "5"), TRACE, "--trace has the lengths of requests: remove --input-tokens"),
        (("--rate", "0"), TRACE, "'0' is no rate"),
    ],
)
def test_traces_that_cannot_be_used(tmp_path: Path, more: tuple[str, ...], text: str, error: str) -> None:
    done = traced(tmp_path, *more, text=text)
    assert done.exit_code in (1, 2) and error in " ".join(done.output.split())


def test_a_rate_or_a_trace_is_needed() -> None:
    done = CliRunner().invoke(cli, [*TRACED, "--input-tokens", "5", "--output-tokens", "5"])
    assert (done.exit_code, "--rate, or a trace: --trace FILE" in done.output) == (2, True)
