# SPDX-License-Identifier: Apache-2.0
"""How many replicas a load needs."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.monitoring.engine_load import EngineLoad
from dovetail.replicas.need import NeedTarget, need

TARGET = NeedTarget(requests=10, cache_percent=80, least=1, most=8)


def load(running: float | None = 0, waiting: float | None = 0, cache: float | None = 0, **more: Any) -> EngineLoad:
    return EngineLoad("", "replica", "vLLM", "", running, waiting, None, cache, more.get("awake", True))


@pytest.mark.parametrize(
    ("loads", "replicas", "needed"),
    [
        ([load(10)], 1, 1),
        ([load(10, 1)], 1, 2),
        ([load(5), load(5)], 2, 1),
        ([load(0, 0, 81)], 1, 2),
        ([load(3, 0, 100), load(3, 0, 100), load(3, 0, 50)], 3, 4),
        ([load()], 1, 1),
        ([load(500, 500)], 1, 8),
        # One of three starts and has no metrics: what it does is not known.
        ([load(1), load(1)], 3, 3),
        ([load(40), load(40)], 3, 8),
        # Of an engine without a cache gauge requests count, and the other way round.
        ([load(25, 0, None)], 1, 3),
        ([load(None, None, 100)], 1, 2),
        ([load(None, 3, None)], 1, None),
        ([], 1, None),
    ],
)
def test_need(loads: list[EngineLoad], replicas: int, needed: int | None) -> None:
    by_name = {f"s/r-{i}": one for i, one in enumerate(loads)}
    names = [f"s/r-{i}" for i in range(replicas)]
    assert need(replicas, names, by_name, TARGET).replicas == needed


def test_the_load_of_other_pods_does_not_count() -> None:
    assert need(1, ["s/r-0"], {"s/r-0": load(5), "s/other": load(500)}, TARGET).replicas == 1


def test_what_it_is_based_on() -> None:
    found = need(2, ["s/a", "s/b"], {"s/a": load(100), "s/b": load(awake=False)}, TARGET)
    assert found.because == "100 requests, 10 for each replica; 1 asleep; within 1 to 8"
    assert need(1, ["s/a"], {}, TARGET).because == "no metrics of an engine in its 1 running pods"


def test_replicas_that_wait_for_a_node_keep_none_that_is_not_needed() -> None:
    assert need(5, ["s/a", "s/b", "s/c"], {f"s/{name}": load(1) for name in "abc"}, TARGET).replicas == 1
