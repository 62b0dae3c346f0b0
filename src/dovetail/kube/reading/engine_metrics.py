# SPDX-License-Identifier: Apache-2.0
"""The metrics of inference engines and of their routers, as a table: a new engine is new rows.

Sources
- vLLM: docs.vllm.ai, "Production Metrics"; its cache gauge was `gpu_cache_usage_perc` before version 0.10.
- SGLang: docs.sglang.io, "Production Metrics".
- TensorRT-LLM (`trtllm-serve`) and Triton with TensorRT-LLM: the engines of llm-d's core-metrics extractor, and
  "Triton Metrics" in the README of triton-inference-server/tensorrtllm_backend. Other backends: Triton's "Metrics".
- llm-d, and the endpoint pickers of the Gateway API's inference extension: "Metrics & Observability" of the extension;
  `llm_d_epp_` are the names of the same gauges in later versions of llm-d.
"""

from __future__ import annotations

from msgspec import Struct

RUNNING, WAITING, CACHE, AWAKE = "running", "waiting", "cache", "awake"
READY, MEAN_WAITING = "ready", "mean waiting"
"""What a gauge reports. RUNNING, WAITING: requests. CACHE: the used part of the KV cache, 0 to 1. AWAKE: 1, or 0 while
the engine sleeps. READY: the replicas of a pool, MEAN_WAITING the waiting requests of each."""


class EngineGauge(Struct, frozen=True):
    """A gauge of an engine: what it reports, its name, and the label whose value selects its series ("" for all)."""

    value: str
    metric: str
    label: str = ""
    equals: str = ""


class EngineMetrics(Struct, frozen=True):
    """The gauges of an engine. `pool` is the label with the name of a pool, where they are of a pool of replicas and
    not of a replica. `model` is the label with the name of the model."""

    engine: str
    gauges: tuple[EngineGauge, ...]
    model: str = "model_name"
    pool: str = ""


ENGINE_METRICS = (
    EngineMetrics("vLLM", (
        EngineGauge(RUNNING, "vllm:num_requests_running"),
        EngineGauge(WAITING, "vllm:num_requests_waiting"),
        EngineGauge(CACHE, "vllm:kv_cache_usage_perc"),
        EngineGauge(CACHE, "vllm:gpu_cache_usage_perc"),
        EngineGauge(AWAKE, "vllm:engine_sleep_state", "sleep_state", "awake"),
    )),
    EngineMetrics("SGLang", (
        EngineGauge(RUNNING, "sglang:num_running_reqs"),
        EngineGauge(WAITING, "sglang:num_queue_reqs"),
        EngineGauge(CACHE, "sglang:token_usage"),
    )),
    EngineMetrics("TensorRT-LLM", (
        EngineGauge(RUNNING, "trtllm_num_requests_running"),
        EngineGauge(WAITING, "trtllm_num_requests_waiting"),
        EngineGauge(CACHE, "trtllm_kv_cache_utilization"),
    )),
    EngineMetrics("Triton with TensorRT-LLM", (
        EngineGauge(RUNNING, "nv_trt_llm_request_metrics", "request_type", "scheduled"),
        EngineGauge(WAITING, "nv_trt_llm_request_metrics", "request_type", "waiting"),
        EngineGauge(CACHE, "nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "fraction"),
    ), model="model"),
    EngineMetrics("Triton", (EngineGauge(WAITING, "nv_inference_pending_request_count"),), model="model"),
    EngineMetrics("llm-d", (
        EngineGauge(READY, "inference_pool_ready_pods"),
        EngineGauge(MEAN_WAITING, "inference_pool_average_queue_size"),
        EngineGauge(CACHE, "inference_pool_average_kv_cache_utilization"),
        EngineGauge(READY, "llm_d_epp_ready_endpoints"),
        EngineGauge(MEAN_WAITING, "llm_d_epp_average_queue_size"),
        EngineGauge(CACHE, "llm_d_epp_average_kv_cache_utilization"),
    ), model="", pool="name"),
)  # fmt: skip
"""Where a replica reports a value by several gauges, the first row counts."""
