# SPDX-License-Identifier: Apache-2.0
"""The engines and stacks of plans: what they reach of a GPU, their defaults, and what distinguishes them.

Rules
- `efficiency` is fitted by `python -m benchmarks.serve_plan --fit` to one half of the published measurements in
  benchmarks/published/serving.csv; the other half is the check. llm-d runs vLLM.
- The budget of a step and the memory that is used are set by the manifests that a plan writes.
- `init_s` is an assumption: what an engine does besides reading weights (imports, compilation, CUDA graphs).
"""

from __future__ import annotations

from msgspec import Struct

from dovetail.advice.serve.roofline import Efficiency


class Engine(Struct, frozen=True):
    """An engine. `budget` is the most tokens of a step, `sequences` the most running sequences, both for each group of
    ranks; `memory_percent` the part of the GPU's memory that it uses. `reserves`: a request starts only if there is
    room for all of its output. `routes_prefixes`: requests go where their prefix is cached. `advice` is when to choose
    it, `error_percent` the median error of its throughput in the check."""

    name: str
    title: str
    efficiency: Efficiency
    budget: int
    sequences: int
    memory_percent: int
    init_s: int
    image: str
    advice: str
    error_percent: int
    reserves: bool = False
    routes_prefixes: bool = False


_VLLM = Efficiency(
    compute_16=0.472, compute_8=0.47, compute_4=0.417, unpacked=1.0, experts=0.829, balance=0.676, weights=0.549,
    cache=0.295, link=0.323, exchange_us=8.46, layer_us=5.09, step_us=846.0, sequence_us=5.49,
)  # fmt: skip
_TENSORRT_LLM = Efficiency(
    compute_16=0.637, compute_8=0.589, compute_4=0.417, unpacked=0.785, experts=0.713, balance=0.676, weights=0.963,
    cache=0.472, link=0.635, exchange_us=8.15, layer_us=5.0, step_us=815.0, sequence_us=5.49,
)  # fmt: skip

ENGINES = (
    Engine(
        "vllm", "vLLM", _VLLM, 8192, 1024, 90, 60, "vllm/vllm-openai:v0.11.2",
        "any model of Transformers on any of these GPUs, LoRA and new formats first, ready without a build",
        error_percent=24,
    ),
    Engine(
        "tensorrt-llm", "TensorRT-LLM", _TENSORRT_LLM, 8192, 2048, 90, 90,
        "nvcr.io/nvidia/tensorrt-llm/release:1.2.0",
        "the most tokens of a GPU where its kernels have the model and format (FP8 from Hopper, NVFP4 on Blackwell)",
        error_percent=14,
        reserves=True,
    ),
    Engine(
        "llm-d", "llm-d", _VLLM, 8192, 1024, 90, 60, "ghcr.io/llm-d/llm-d-cuda:v0.4.0",
        "vLLM with a router: several replicas with common prefixes, or prefill apart from decode",
        error_percent=24,
        routes_prefixes=True,
    ),
)  # fmt: skip
BY_NAME = {engine.name: engine for engine in ENGINES}
