# SPDX-License-Identifier: Apache-2.0
"""Replicas of inference engines in `dovetail top --prometheus`, in `why` and in its screen."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from aiohttp import web
from click.testing import CliRunner, Result

from dovetail.cli import cli
from dovetail.cli.top.replicas import NO_ENGINES
from dovetail.cli.top.screen import Screen
from dovetail.kube.reading.engines import EngineSample
from dovetail.views.engines import loads_of
from dovetail.views.top_rows import TopReading, TopWindow
from tests.kube.reading.engines_served import engines, series, slope
from tests.kube.reading.test_prometheus import Answer, served
from tests.views.test_top import device, node

EVIL = "evil\x1b[31m"
FULL = (
    series("vllm:num_requests_running", 12, model_name="llama"),
    series("vllm:num_requests_waiting", 30),
    series("vllm:kv_cache_usage_perc", 0.97),
    series("vllm:engine_sleep_state", 0, "llama-1", sleep_state="awake", model_name=EVIL),
)


def with_gpus(answer: Answer) -> Answer:
    """The engines, and no GPUs."""

    async def both(request: web.Request) -> web.StreamResponse:
        query = str((await request.post())["query"])
        if "dovetail" in query or "DCGM" in query:
            return web.json_response({"status": "success", "data": {"result": []}})
        return await answer(request)

    return both


async def asked(answer: Answer, *arguments: str) -> Result:
    async with served(answer) as url:
        call = [*arguments, "--prometheus", url]
        return await asyncio.to_thread(CliRunner().invoke, cli, call)


GROWING = with_gpus(engines(list(FULL), [slope("vllm:num_requests_waiting", 0.1)]))


async def test_each_replica_is_a_line_and_what_is_found_is_a_note() -> None:
    done = await asked(GROWING, "top", "--once", "--by", "replica")
    assert done.exit_code == 0, done.output
    heading, first, second, _, *notes = done.stdout.splitlines()
    assert heading.split()[0] == "REPLICA"
    assert first.split() == [
        *("serving/llama-0", "vLLM", "llama", "-", "-", "12", "30", "+6.0", "97"),
        *("KV", "cache", "full,", "queue", "growing"),
    ]
    assert second.split()[0] == "serving/llama-1" and second.split()[-1] == "asleep"
    assert "\x1b" not in done.stdout
    assert notes[0].startswith("attention: serving/llama-0: KV cache full and queue growing (KV cache 97 %, running 12")


async def test_json_has_the_replicas_and_a_filter_selects_them() -> None:
    done = await asked(GROWING, "top", "--once", "--by", "replica", "--filter", "llama-1", "-o", "json")
    (load,) = json.loads(done.stdout)["engines"]
    assert (load["name"], load["awake"], load["findings"][0]["name"]) == ("serving/llama-1", False, "asleep")
    assert load["missing"] == ["running", "waiting", "growth", "KV cache"]


async def test_gpus_are_shown_where_the_metrics_of_engines_cannot_be_read() -> None:
    async def refused(_: web.Request) -> web.StreamResponse:
        return web.json_response({"status": "error", "error": "too many series"}, status=422)

    done = await asked(with_gpus(refused), "top", "--once", "-o", "json")
    answer = json.loads(done.stdout)
    assert answer["engines"] is None
    assert answer["notes"] == ["the metrics of inference engines: refuses a query (422): too many series"]


def test_replicas_need_a_prometheus() -> None:
    done = CliRunner().invoke(cli, ["top", "--once", "--by", "replica"])
    assert (done.exit_code, "are read with --prometheus" in done.output) == (2, True)


def screen_text(screen: Screen, reading: TopReading) -> str:
    return "\n".join("".join(text for text, _ in line) for line in screen.frame(reading, 160, 20))


def reading(samples: tuple[EngineSample, ...] | None) -> TopReading:
    window = TopWindow()
    window.add([node(device("n1", 0, "llama-0"), device("n1", 1))])
    found = window.reading(100.0, "test")
    return TopReading(
        found.source, found.at_s, found.window_s, found.rows, found.nodes,
        engines=None if samples is None else loads_of(samples),
    )  # fmt: skip


def test_a_replica_on_the_screen_opens_its_gpus() -> None:
    screen = Screen()
    screen.press("r")
    at = reading((EngineSample("default", "llama-0", "vLLM", waiting=3), EngineSample("default", "pool", pool=True)))
    shown = screen_text(screen, at)
    assert "default/llama-0" in shown and "default/pool (pool)" in shown
    line = next(line for line in shown.splitlines() if "default/llama-0" in line)
    assert line.split()[2] == "1", "its GPUs"
    screen.press("enter")
    opened = screen_text(screen, at)
    assert [line.split()[:3] for line in opened.splitlines() if line.startswith("n1 ")] == [
        ["n1", "0", "default/llama-0"]
    ]


def test_a_screen_without_engines_has_what_is_missing() -> None:
    screen = Screen()
    screen.press("r")
    assert NO_ENGINES[:60] in screen_text(screen, reading(None))


def replica(number: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": f"llama-{number}", "namespace": "serving", "uid": f"u{number}",
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "llama", "uid": "s", "controller": True}
            ],
        },
        "spec": {
            "schedulerName": "dovetail", "nodeName": "n1",
            "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        },
        "status": {"phase": "Running"},
    }  # fmt: skip


async def test_why_shows_the_load_of_the_engines_of_a_job_and_of_no_other(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    node_object = {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
        "status": {"allocatable": {"nvidia.com/gpu": "8", "cpu": "8", "memory": "8Gi", "pods": "110"}},
    }  # fmt: skip
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node_object, replica(0), replica(1)]}))
    more = [*FULL, series("vllm:num_requests_waiting", 1, "other-0")]
    questions: list[str] = []
    call = ("why", "serving/llama", "-f", str(file))
    done = await asked(engines(more, [slope("vllm:num_requests_waiting", 0.1)], asked=questions), *call)
    assert done.exit_code == 0, done.output
    assert "serving/llama-0" in done.stdout and "serving/llama-1" in done.stdout and "other-0" not in done.stdout
    assert "attention: serving/llama-0: KV cache full and queue growing" in done.stdout
    assert "serving/llama-1: asleep" in done.stdout and "\x1b" not in done.stdout
    assert all('namespace="serving"' in one for one in questions)
    answer = json.loads((await asked(engines(more), *call, "-o", "json")).stdout)
    assert [one["name"] for one in answer["engines"]] == ["serving/llama-0", "serving/llama-1"]
    one_pod = json.loads((await asked(engines(more), "why", "serving/llama-1", *call[2:], "-o", "json")).stdout)
    assert [one["name"] for one in one_pod["engines"]] == ["serving/llama-1"]


async def test_why_is_answered_where_the_prometheus_does_not(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [replica(0)]}))
    done = await asyncio.to_thread(
        CliRunner().invoke, cli, ["why", "serving/llama-0", "-f", str(file), "--prometheus", "http://127.0.0.1:1"]
    )
    assert done.exit_code == 0
    assert "is on node n1" in done.stdout and "engines are not known" in done.stderr
