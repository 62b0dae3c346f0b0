# SPDX-License-Identifier: Apache-2.0
"""The benchmark of `dovetail top`, on few nodes: it reads what it serves."""

from __future__ import annotations

import pytest

from benchmarks.top import medians_ms, of_exporters, of_prometheus

PARTS = {"read", "view", "draw", "key", "redraw"}


@pytest.mark.slow
async def test_answers_of_a_prometheus_are_read_and_drawn() -> None:
    assert set(medians_ms(await of_prometheus(3, 2))) == PARTS


@pytest.mark.slow
def test_texts_of_exporters_are_read_and_drawn() -> None:
    assert set(medians_ms(of_exporters(3, 2))) == PARTS
