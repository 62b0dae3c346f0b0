# SPDX-License-Identifier: Apache-2.0
"""The command lines of engines for a role of a plan.

Sources: the options of `vllm serve` (vLLM 0.11) and of `trtllm-serve` (TensorRT-LLM 1.2); llm-d's guide to prefill and
decode apart; vLLM's guide to LeaderWorkerSet.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from dovetail.advice.serve.engines import Engine
from dovetail.advice.serve.types import ALL, PREFILL, RolePlan, WantedServing

PORT, BEHIND_PORT, TRANSFER_PORT = 8000, 8200, 5600
_RAY_SCRIPT = "/vllm-workspace/examples/online_serving/multi-node-serving.sh"
_NIXL = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"}, separators=(",", ":"))
_CONVERTED = {"fp8": "fp8", "nf4": "bitsandbytes"}
"""Formats that vLLM makes of a checkpoint in 16 bits while it loads it, by their option."""
_PLAIN = ("bf16", "fp16", "fp32")


def needs_checkpoint(engine: Engine, stored: str, weights: str) -> bool:
    """Whether the engine needs another checkpoint for this format than one in `stored`."""
    if weights == stored or (weights in _PLAIN and stored in _PLAIN):
        return False
    return engine.name == "tensorrt-llm" or weights not in _CONVERTED or stored not in _PLAIN


def served(engine: Engine, model: str, stored: str, wanted: WantedServing, role: RolePlan, port: int) -> list[str]:
    """The command of an instance on one node. `model` is the name on Hugging Face or a path, `stored` the format of
    its checkpoint."""
    if engine.name == "tensorrt-llm":
        return list(_trtllm(engine, model, wanted, role, port))
    return list(_vllm(engine, model, stored, wanted, role, port))


def _vllm(engine: Engine, model: str, stored: str, wanted: WantedServing, role: RolePlan, port: int) -> Iterator[str]:
    layout = role.layout
    yield from ("vllm", "serve", model, "--port", str(port), "--tensor-parallel-size", str(layout.tp))
    for option, number in (("--pipeline-parallel-size", layout.pp), ("--data-parallel-size", layout.dp)):
        if number > 1:
            yield from (option, str(number))
    if layout.ep > 1:
        yield "--enable-expert-parallel"
    if wanted.weights != stored and wanted.weights in _CONVERTED:
        yield from ("--quantization", _CONVERTED[wanted.weights])
    if wanted.cache == "fp8":
        yield from ("--kv-cache-dtype", "fp8")
    if layout.gpus > layout.tp * layout.dp:
        yield from ("--distributed-executor-backend", "ray")
    yield from ("--max-model-len", str(wanted.lengths.longest), "--max-num-seqs", str(sequences(engine, role)))
    yield from ("--max-num-batched-tokens", str(engine.budget))
    yield from ("--gpu-memory-utilization", f"{engine.memory_percent / 100:.2f}")
    if wanted.adapters:
        yield from ("--enable-lora", "--max-loras", str(wanted.adapters), "--max-lora-rank", str(wanted.adapter_rank))
    if role.role != ALL:
        yield from ("--kv-transfer-config", _NIXL)


def _trtllm(engine: Engine, model: str, wanted: WantedServing, role: RolePlan, port: int) -> Iterator[str]:
    layout = role.layout
    yield from ("trtllm-serve", model, "--host", "0.0.0.0", "--port", str(port))
    yield from ("--tp_size", str(layout.tp * layout.dp))
    if layout.pp > 1:
        yield from ("--pp_size", str(layout.pp))
    if layout.ep > 1:
        yield from ("--ep_size", str(layout.ep))
    yield from ("--max_seq_len", str(wanted.lengths.longest), "--max_batch_size", str(sequences(engine, role)))
    yield from ("--max_num_tokens", str(engine.budget))
    yield from ("--kv_cache_free_gpu_memory_fraction", f"{engine.memory_percent / 100:.2f}")
    if trtllm_options(wanted, role):
        yield from ("--extra_llm_api_options", "/etc/engine/options.yaml")


def trtllm_options(wanted: WantedServing, role: RolePlan) -> dict[str, object]:
    """The file of options that have no flag; empty if there are none."""
    found: dict[str, object] = {}
    if role.layout.dp > 1:
        found["enable_attention_dp"] = True
    if wanted.cache == "fp8":
        found["kv_cache_config"] = {"dtype": "fp8"}
    if wanted.adapters:
        found["lora_config"] = {"max_loras": wanted.adapters, "max_lora_rank": wanted.adapter_rank}
    if role.role != ALL:
        found["cache_transceiver_config"] = {"backend": "DEFAULT"}
        if role.role == PREFILL:
            found["disable_overlap_scheduler"] = True
    return found


def sequences(engine: Engine, role: RolePlan) -> int:
    """The most sequences of a group of ranks: those at which the wanted times hold."""
    groups = role.layout.dp
    return min(engine.sequences, max(1, -(-role.concurrency // groups))) if role.concurrency else 64


def leader(command: list[str]) -> list[str]:
    """The command of the first pod of an instance on several nodes."""
    start = f"bash {_RAY_SCRIPT} leader --ray_cluster_size=$LWS_GROUP_SIZE"
    return ["sh", "-c", f"{start} && exec {shlex.join(command)}"]


def worker() -> list[str]:
    """The command of the other pods."""
    return ["sh", "-c", f"exec bash {_RAY_SCRIPT} worker --ray_address=$LWS_LEADER_ADDRESS"]
