# SPDX-License-Identifier: Apache-2.0
"""The load of a replica of an inference engine, or of a pool of them, and what is found in it.

Rules
- FULL: the KV cache is full, so that further requests wait, and vLLM preempts running ones (its "Optimization and
  Tuning": Preemption).
- GROWING: requests wait, and more of them every minute. From so many on a replica is saturated for the saturation
  detector of the Gateway API's inference extension (queueDepthThreshold).
- ASLEEP: the engine has released the GPU's memory and answers nothing until it is woken (vLLM: Sleep Mode).
- A value that is not reported finds nothing: it is named in `missing`.
"""

from __future__ import annotations

from msgspec import Struct

FULL_PERCENT = 95.0
FEWEST_WAITING = 5.0
GROWTH_PER_MIN = 1.0


class EngineFinding(Struct, frozen=True):
    """What is found: its name, what it means, and what to do."""

    name: str
    meaning: str
    advice: str


FULL = EngineFinding(
    "KV cache full", "requests wait for room in the KV cache, or running ones are preempted",
    "add a replica, store the cache in FP8, or lower the longest context",
)  # fmt: skip
GROWING = EngineFinding(
    "queue growing", "requests arrive faster than they are served", "add a replica, or limit the rate of requests"
)
ASLEEP = EngineFinding(
    "asleep", "the engine sleeps and answers no request until it is woken",
    "wake it before replicas are added; if nothing needs it, scale it down: its GPU stays allocated",
)  # fmt: skip
LOST = EngineFinding(
    "no metrics", "it had metrics in the last 15 minutes and has none now",
    "it has ended, or does not answer its scrapes: see its pod",
)  # fmt: skip


class EngineLoad(Struct, frozen=True, rename="camel"):
    """The replica (`kind` replica) or pool (`kind` pool) "namespace/name". `waiting` of a pool is the mean of its
    `ready` replicas. `growth_per_min` is that of `waiting`. None: not reported, and named in `missing`."""

    name: str
    kind: str
    engine: str
    model: str
    running: float | None
    waiting: float | None
    growth_per_min: float | None
    cache_percent: float | None
    awake: bool | None
    ready: float | None = None
    missing: tuple[str, ...] = ()
    findings: tuple[EngineFinding, ...] = ()


def found(load: EngineLoad) -> tuple[EngineFinding, ...]:
    """The findings, from its values."""
    if load.awake is False:
        return (ASLEEP,)
    full = load.cache_percent is not None and load.cache_percent >= FULL_PERCENT
    growing = (
        load.waiting is not None
        and load.growth_per_min is not None
        and load.waiting >= FEWEST_WAITING
        and load.growth_per_min >= GROWTH_PER_MIN
    )
    return tuple(one for one, holds in ((FULL, full), (GROWING, growing)) if holds)


def sentence(load: EngineLoad) -> str:
    """What is found in it, in words; empty if nothing is."""
    if not load.findings:
        return ""
    values = (
        ("KV cache", load.cache_percent, "%"), ("running", load.running, ""), ("waiting", load.waiting, ""),
        ("growth", load.growth_per_min, "/min"),
    )  # fmt: skip
    shown = ", ".join(f"{name} {value:.0f}{f' {unit}' if unit == '%' else unit}"
                      for name, value, unit in values if value is not None)  # fmt: skip
    names = " and ".join(one.name for one in load.findings)
    of = f" ({shown})" if shown else ""
    return f"{load.name}: {names}{of}: {load.findings[0].meaning}; {load.findings[0].advice}"
