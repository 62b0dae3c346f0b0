# SPDX-License-Identifier: Apache-2.0
"""Which engine serves which model in which format on which GPU, and when to choose which.

Sources: the lists of supported models and formats in the documentation of TensorRT-LLM 1.2 (PyTorch backend) and vLLM
0.11, as of November 2026.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.advice.architecture import Architecture
from dovetail.advice.gpus import GpuProduct
from dovetail.advice.serve.engines import Engine
from dovetail.advice.serve.types import DISAGGREGATED, ServingOption

_TENSORRT_LLM_FAMILIES = frozenset({
    "deepseek_v3", "gemma3", "gemma3_text", "glm4_moe", "gpt_oss", "kimi_k2", "llama", "llama4", "llama4_text",
    "mistral", "mixtral", "phi3", "qwen2", "qwen2_5_vl", "qwen2_moe", "qwen3", "qwen3_moe",
})  # fmt: skip
_SINCE: Mapping[str, Mapping[str, int]] = {
    "vllm": {"bf16": 80, "fp16": 70, "fp8": 75, "int8": 75, "int4": 75, "nf4": 75, "mxfp4": 80, "nvfp4": 80},
    "tensorrt-llm": {"bf16": 80, "fp16": 80, "fp8": 89, "int4": 80, "mxfp4": 90, "nvfp4": 100},
}
"""By engine and format of the weights: the compute capability (times ten) from which on the engine has kernels."""
_BLACKWELL_ULTRA = 103
"""Its tensor cores multiply INT8 at a fifteenth of the 16-bit rate (data sheet of HGX B300)."""
_CLOSE = 1.15
"""Plans within this of each other are not distinguished: the error of a plan is as large."""


def unsupported(engine: Engine, mode: str, model: Architecture, weights: str, gpu: GpuProduct) -> str:
    """Why the engine cannot serve the model in this mode and format on this GPU; empty if it can."""
    if engine.name == "vllm" and mode == DISAGGREGATED:
        return "vLLM has no router between prefill and decode: llm-d is vLLM with one"
    table = _SINCE["tensorrt-llm" if engine.name == "tensorrt-llm" else "vllm"]
    since = table.get(weights)
    if since is None:
        return f"{engine.title} has no kernels for weights in {weights}; it has them for {', '.join(sorted(table))}"
    if gpu.product.sm < since:
        return (
            f"{engine.title} has kernels for {weights} from compute capability {since / 10:.1f} on, and {gpu.model} "
            f"has {gpu.product.sm / 10:.1f}"
        )
    if weights == "int8" and gpu.product.sm == _BLACKWELL_ULTRA:
        return f"{gpu.model} multiplies INT8 at a fifteenth of its 16-bit rate: use fp8"
    if engine.name == "tensorrt-llm" and model.family not in _TENSORRT_LLM_FAMILIES:
        return f"TensorRT-LLM does not list the model family {model.family} among those that it supports"
    return ""


def chosen(options: Sequence[ServingOption]) -> str:
    """The first plan against the best of another engine, in words; empty without a plan."""
    if not options:
        return ""
    first = options[0]
    other = next((one for one in options if one.engine != first.engine), None)
    if other is None:
        return f"{first.engine}: no other engine has a plan"
    mine, theirs = _cost(first), _cost(other)
    if theirs <= mine * _CLOSE:
        return (
            f"{first.engine} and {other.engine} are within the error of each other: choose by what you run already; "
            f"{first.engine} is for {first.because}; {other.engine} is for {other.because}"
        )
    return f"{first.engine}: {first.because}; {other.engine} needs {theirs / mine:.1f} times as much"


def _cost(option: ServingOption) -> float:
    return float(option.micro_usd_per_hour or option.gpus)
