# SPDX-License-Identifier: Apache-2.0
"""The calls that put each inference engine to sleep and wake it: one table.

Sources
- vLLM, "Sleep Mode", and `vllm/entrypoints/serve/sleep/api_router.py`: the endpoints exist with `--enable-sleep-mode`
  and `VLLM_SERVER_DEV_MODE=1`; they answer 200 with an empty body, `is_sleeping` with JSON. Level 1 keeps the weights
  in the memory of the host, level 2 drops them, so they are loaded again. It sleeps until every tag is awake. With
  `mode=wait` running requests are answered first; earlier releases ignore it.
- SGLang, `http_server.py` and its scheduler: the endpoints exist always, and release memory only with
  `--enable-memory-saver`. Weights are lost without `--enable-weights-cpu-backup`. They answer 200 with `null`; no
  endpoint reports whether it sleeps. Its scheduler ends with an assertion when memory is released while a request
  runs: so generation is paused before, with the mode that aborts what runs and holds what comes.
- TensorRT-LLM, "Runtime Memory Checkpointing": a prototype of its Python API; `trtllm-serve` has no endpoint for it.
  llama.cpp and Triton have none. So these engines are not in the table.
"""

from __future__ import annotations

from msgspec import Struct


class EngineCall(Struct, frozen=True):
    """A POST to the engine."""

    path: str
    params: tuple[tuple[str, str], ...] = ()
    body: object = None


class SleepEngine(Struct, frozen=True):
    """An engine on `port`, where the pod states no other. `state_path` answers whether it sleeps, "" if nothing does;
    then `health_path` answers whether it is there."""

    port: int
    state_path: str
    health_path: str
    sleep: tuple[EngineCall, ...]
    wake: tuple[EngineCall, ...]


def _vllm(level: str, wake: tuple[EngineCall, ...]) -> SleepEngine:
    sleep = EngineCall("sleep", (("level", level), ("mode", "wait")))
    return SleepEngine(8000, "is_sleeping", "health", (sleep,), wake)


ENGINES: dict[str, SleepEngine] = {
    "vllm": _vllm("1", (EngineCall("wake_up"),)),
    "vllm-level-2": _vllm("2", (
        EngineCall("wake_up", (("tags", "weights"),)),
        EngineCall("collective_rpc", (), {"method": "reload_weights"}),
        EngineCall("wake_up", (("tags", "kv_cache"),)),
    )),
    "sglang": SleepEngine(
        30000, "", "health",
        (EngineCall("pause_generation", (), {"mode": "abort"}), EngineCall("release_memory_occupation", (), {})),
        (EngineCall("resume_memory_occupation", (), {}), EngineCall("continue_generation", (), {})),
    ),
}  # fmt: skip
"""By the value of the annotation dovetail.dev/sleep-engine."""
