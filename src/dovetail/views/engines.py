# SPDX-License-Identifier: Apache-2.0
"""The load of the replicas of inference engines, with what is found in it, from samples of their metrics."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from dovetail.kube.reading.engines import EngineSample
from dovetail.monitoring.engine_load import LOST, EngineLoad, found, sentence

_MOST_SENTENCES = 8


def loads_of(samples: Iterable[EngineSample]) -> tuple[EngineLoad, ...]:
    """One for each replica and pool."""
    return tuple(map(_load, samples))


def _load(sample: EngineSample) -> EngineLoad:
    kind = "pool" if sample.pool else "replica"
    name = f"{sample.namespace}/{sample.name}" if sample.namespace else sample.name
    # Whether it sleeps is known of vLLM alone; of a pool nobody reports what runs.
    values = [] if sample.pool else [("running", sample.running)]
    values += [("waiting", sample.waiting), ("growth", sample.growth), ("KV cache", sample.cache)]
    load = EngineLoad(
        name, kind, sample.engine, sample.model, sample.running, sample.waiting,
        None if sample.growth is None else round(sample.growth * 60, 2),
        None if sample.cache is None else round(sample.cache * 100, 1), sample.awake, sample.ready,
        () if sample.lost else tuple(name for name, value in values if value is None),
    )  # fmt: skip
    return replace(load, findings=(LOST,) if sample.lost else found(load))


def sentences(loads: Iterable[EngineLoad]) -> tuple[str, ...]:
    """What is found in them, the first few in words and the others counted."""
    every = [text for load in loads if (text := sentence(load))]
    more = len(every) - _MOST_SENTENCES
    return (*every[:_MOST_SENTENCES], *((f"and {more} more replicas with findings",) if more > 0 else ()))
