# SPDX-License-Identifier: Apache-2.0
"""Replicas of inference engines, of a model of a Prometheus and of a real one that scrapes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from dovetail.kube.reading.engine_metrics import ENGINE_METRICS
from dovetail.kube.reading.engines import EngineSample, read_engines
from dovetail.kube.reading.prometheus_api import PrometheusAccess
from tests.kube.reading.engines_served import engines, series, slope
from tests.kube.reading.test_prometheus import Answer, served
from tests.patience import PATIENCE_S
from tools.prometheus.server import Prometheus as Server


async def read(*now: dict[str, Any], **more: Any) -> tuple[EngineSample, ...]:
    async with served(engines(list(now), **more)) as url:
        return await read_engines(PrometheusAccess(url))


async def test_a_replica_of_vllm() -> None:
    model = {"model_name": "llama"}
    (found,) = await read(
        series("vllm:num_requests_running", 12, **model),
        series("vllm:num_requests_waiting", 30, **model),
        series("vllm:kv_cache_usage_perc", 0.97, **model),
        series("vllm:engine_sleep_state", 1, sleep_state="awake"),
        series("vllm:engine_sleep_state", 0, sleep_state="discard_all"),
        growth=[slope("vllm:num_requests_waiting", 0.5)],
    )
    assert found == EngineSample("serving", "llama-0", "vLLM", "llama", False, 12, 30, 0.5, 0.97, True)


@pytest.mark.parametrize(
    ("engine", "label"), [(one.engine, one.model) for one in ENGINE_METRICS if not one.pool],
)  # fmt: skip
async def test_each_engine_of_the_table_is_read(engine: str, label: str) -> None:
    (metrics,) = (one for one in ENGINE_METRICS if one.engine == engine)
    now = [
        series(one.metric, 0.5, **({one.label: one.equals} if one.label else {}), **{label: "m"})
        for one in metrics.gauges
    ]
    (found,) = await read(*now)
    assert (found.engine, found.model, found.waiting) == (engine, "m", 0.5)
    reported = {one.value for one in metrics.gauges}
    assert (found.running is None, found.cache is None) == ("running" not in reported, "cache" not in reported)


@pytest.mark.parametrize("names", [
    ("inference_pool_ready_pods", "inference_pool_average_queue_size", "inference_pool_average_kv_cache_utilization"),
    ("llm_d_epp_ready_endpoints", "llm_d_epp_average_queue_size", "llm_d_epp_average_kv_cache_utilization"),
])  # fmt: skip
async def test_a_pool_of_llm_d_is_named_by_its_label(names: tuple[str, str, str]) -> None:
    values = zip(names, (4, 7.5, 0.5), strict=True)
    (found,) = await read(*(series(name, value, "epp-x", name="llama") for name, value in values))
    assert (found.name, found.pool, found.ready, found.waiting, found.cache) == ("llama", True, 4, 7.5, 0.5)


async def test_values_of_groups_of_ranks_are_added_and_the_fullest_cache_counts() -> None:
    found = await read(
        *(series("vllm:num_requests_waiting", n, engine=str(n)) for n in (1, 2)),
        *(series("vllm:kv_cache_usage_perc", n / 10, engine=str(n)) for n in (4, 9)),
        # The older name of the same value does not count besides.
        series("vllm:gpu_cache_usage_perc", 1.0),
        *(series("vllm:engine_sleep_state", n, engine=str(n), sleep_state="awake") for n in (0, 1)),
        growth=[slope("vllm:num_requests_waiting", 0.25, engine=str(n)) for n in (1, 2)],
    )
    assert [(one.waiting, one.cache, one.growth, one.awake) for one in found] == [(3, 0.9, 0.5, True)]


async def test_the_engine_that_is_named_first_in_the_table_counts() -> None:
    (found,) = await read(
        series("nv_inference_pending_request_count", 9, model="ensemble"),
        series("nv_trt_llm_request_metrics", 2, request_type="waiting", model="llm"),
        series("nv_trt_llm_request_metrics", 512, request_type="max", model="llm"),
    )
    assert (found.engine, found.model, found.waiting) == ("Triton with TensorRT-LLM", "llm", 2)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-3", "x"])
async def test_what_is_no_amount_is_not_known(value: str) -> None:
    (found,) = await read(series("vllm:num_requests_waiting", value), series("vllm:kv_cache_usage_perc", 7))
    assert (found.waiting, found.cache) == (None, 1.0)


async def test_labels_are_data() -> None:
    evil = 'x"} or vector(1) #\x1b[31m'
    (found,) = await read(series("vllm:num_requests_waiting", 1, evil, model_name=evil))
    assert (found.name, found.model) == (evil, evil)


async def test_values_that_no_engine_has_are_not_known() -> None:
    (found,) = await read(
        series("vllm:num_requests_running", "1e308"), series("vllm:num_requests_waiting", "1e308"),
        growth=[slope("vllm:num_requests_waiting", 1e308)],
    )  # fmt: skip
    assert (found.running, found.waiting, found.growth) == (None, None, None)


async def test_a_series_without_pod_is_named_by_its_target_and_one_without_any_name_is_left_out() -> None:
    found = await read(
        series("vllm:num_requests_waiting", 1, "", namespace=""),
        series("vllm:num_requests_waiting", 1, "", namespace="", instance=""),
    )
    assert [(one.namespace, one.name) for one in found] == [("", "10.0.0.1:8000")]


async def test_a_replica_without_metrics_is_listed_as_lost() -> None:
    found = await read(series("vllm:num_requests_waiting", 1), lost=[series("", 1, "llama-1"), series("", 1)])
    assert [(one.name, one.lost) for one in found] == [("llama-0", False), ("llama-1", True)]


async def test_a_namespace_and_matchers_are_part_of_each_query() -> None:
    asked: list[str] = []
    async with served(engines([], asked=asked)) as url:
        await read_engines(PrometheusAccess(url), 'a"b', 'cluster="eu"')
    assert len(asked) == 3
    assert all('namespace="a\\"b",cluster="eu"}' in one for one in asked)


EXPOSED = """\
vllm:num_requests_running{{model_name="m",engine="0"}} 3
vllm:num_requests_waiting{{model_name="m",engine="0"}} {waiting}
vllm:kv_cache_usage_perc{{model_name="m",engine="0"}} 0.5
vllm:engine_sleep_state{{model_name="m",engine="0",sleep_state="awake"}} 1
vllm:engine_sleep_state{{model_name="m",engine="0",sleep_state="discard_all"}} 0
"""


@pytest.mark.plane
async def test_a_real_prometheus_has_values_and_the_slope_of_the_queue(
    prometheus_factory: Callable[..., Server],
) -> None:
    scrapes = 0

    async def vllm(_: web.Request) -> web.Response:
        nonlocal scrapes
        scrapes += 1
        return web.Response(text=EXPOSED.format(waiting=scrapes * 2))

    async def sglang(_: web.Request) -> web.Response:
        return web.Response(text='sglang:num_queue_reqs{model_name="q"} 4\nsglang:token_usage{model_name="q"} 0.25\n')

    def targets(answers: dict[str, Answer]) -> dict[str, dict[str, str]]:
        return {name: {"namespace": "serving", "pod": f"{name}-0"} for name in answers}

    answers: dict[str, Answer] = {"vllm": vllm, "sglang": sglang}
    async with served(vllm) as one, served(sglang) as two:
        jobs = {name: [url.removeprefix("http://")] for name, url in zip(answers, (one, two), strict=True)}
        server = await asyncio.to_thread(prometheus_factory, jobs, scrape_s=0.5, labels=targets(answers))
        await asyncio.to_thread(
            server.await_,
            lambda found: (
                len(found.query("deriv({__name__=~'vllm:num_requests_waiting|sglang:num_queue_reqs'}[5m])")) == 2
            ),
            PATIENCE_S,
            "both are scraped twice",
        )
        second, first = await read_engines(PrometheusAccess(server.url), "serving")
        assert await read_engines(PrometheusAccess(server.url), "other") == ()
    assert (first.name, first.engine, first.running, first.cache, first.awake) == ("vllm-0", "vLLM", 3, 0.5, True)
    assert first.growth is not None and 2 < first.growth < 8
    assert (second.name, second.waiting, second.growth, second.cache) == ("sglang-0", 4, 0, 0.25)
