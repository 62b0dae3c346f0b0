# SPDX-License-Identifier: Apache-2.0
"""The roofline of serving holds its floors against published measurements that took no part in the fit."""

from __future__ import annotations

from statistics import median

import pytest

from benchmarks.serve_plan import FLOOR_ERROR, FLOOR_ORDERED, Measured, error, floors, halves, measurements, ordered
from dovetail.advice.serve.engines import BY_NAME


@pytest.fixture(scope="module")
def rows() -> list[Measured]:
    return measurements()


def test_fit_and_check_share_no_model(rows: list[Measured]) -> None:
    fitted, checked = halves(rows)
    assert len(fitted) + len(checked) == len(rows)
    assert not {row.model for row in fitted} & {row.model for row in checked}
    for half in (fitted, checked):
        assert {row.gpu.model for row in half} >= {"A100-SXM4-80GB", "H100-SXM5", "H200-SXM5", "B200"}
        assert {row.work.has_experts for row in half} == {True, False}
        assert {row.engine.name for row in half} == {"vllm", "tensorrt-llm"}
        assert len({(row.model, row.gpu, row.layout, row.weights) for row in half}) >= 20


def test_floors_of_the_check(rows: list[Measured]) -> None:
    wrong, right = floors(halves(rows)[1])
    assert wrong <= FLOOR_ERROR
    assert right >= FLOOR_ORDERED


def test_engines_state_the_error_of_the_check(rows: list[Measured]) -> None:
    checked = halves(rows)[1]
    for name in ("vllm", "tensorrt-llm"):
        engine = BY_NAME[name]
        mine = [row for row in checked if row.engine.name == name]
        found = median(error(row.expected(engine.efficiency), row.tokens_per_s) for row in mine)
        assert round(found * 100) == engine.error_percent
    assert BY_NAME["llm-d"].error_percent == BY_NAME["vllm"].error_percent


def test_pairs_are_of_those_that_differ(rows: list[Measured]) -> None:
    some = rows[:30]
    exact = {i: row.tokens_per_s for i, row in enumerate(some)}
    right, pairs = ordered(some, exact, False)
    assert right == pairs > 0
    wrong, same = ordered(some, {i: 1 / value for i, value in exact.items()}, False)
    assert same == pairs and wrong < pairs / 2
