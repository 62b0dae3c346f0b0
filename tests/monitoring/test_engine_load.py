# SPDX-License-Identifier: Apache-2.0
"""What is found in the load of a replica of an inference engine."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dovetail.monitoring.engine_load import ASLEEP, FULL, GROWING, EngineFinding, EngineLoad, found, sentence

QUIET = EngineLoad("serving/llama-0", "replica", "vLLM", "llama", 3.0, 0.0, 0.0, 40.0, True)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, ()),
        ({"cache_percent": 94.9}, ()),
        ({"cache_percent": 95.0}, (FULL,)),
        ({"waiting": 5.0, "growth_per_min": 1.0}, (GROWING,)),
        ({"waiting": 4.0, "growth_per_min": 9.0}, ()),
        ({"waiting": 50.0, "growth_per_min": 0.9}, ()),
        ({"cache_percent": 99.0, "waiting": 9.0, "growth_per_min": 2.0}, (FULL, GROWING)),
        # One that sleeps holds no cache.
        ({"awake": False, "cache_percent": 99.0}, (ASLEEP,)),
        # What is not reported finds nothing.
        ({"cache_percent": None, "waiting": None, "growth_per_min": 9.0, "awake": None}, ()),
    ],
)
def test_findings(values: dict[str, float | None], expected: tuple[EngineFinding, ...]) -> None:
    assert found(replace(QUIET, **values)) == expected


def test_a_sentence_has_the_values_that_are_known() -> None:
    load = replace(QUIET, cache_percent=99.0, waiting=None, growth_per_min=None)
    assert sentence(replace(load, findings=found(load))) == (
        "serving/llama-0: KV cache full (KV cache 99 %, running 3): requests wait for room in the KV cache, or running "
        "ones are preempted; add a replica, store the cache in FP8, or lower the longest context"
    )
    assert sentence(QUIET) == ""
