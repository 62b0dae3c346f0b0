# SPDX-License-Identifier: Apache-2.0
"""Advice against synthetic truth: the floors of precision and recall; generated hours are as those of the agent."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import pytest

from benchmarks import advice, advice_loads
from benchmarks.advice_kinds import KINDS
from dovetail.agent.exporter.reading import DeviceReading, GpuReading, Owner, Owners
from dovetail.agent.exporter.use_hours import ACTIVITIES, UseHours
from dovetail.history.records import HOUR_MS


@pytest.mark.slow
def test_precision_recall_and_no_unsafe_advice() -> None:
    found = advice.score(list(advice.answers(2026)))
    assert found.jobs == len(KINDS) >= 12
    assert found.precision >= 0.95 and found.recall >= 0.9 and not found.unsafe


def test_a_wrong_answer_lowers_precision_and_recall() -> None:
    right = advice.Answer(0, "a", ("mig",), ("mig",), "advice", True, False)
    wrong = advice.Answer(0, "b", ("io-bound",), ("fewer-gpus",), "advice", True, False)
    none = advice.Answer(0, "c", (), (), "right-sized", True, False)
    found = advice.score([right, wrong, none])
    assert (found.precision, found.recall, found.verdicts) == (0.5, 0.5, 1.0)


def test_generated_hours_are_as_those_of_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent counts the same readings. Three minutes are too long for it, so each is read four times."""
    shape = advice_loads.Shape(lambda random, gpu, hour, step: advice_loads.Load(0.5, 0.3, 0.2, 0.8), 1024, missing=0.0)
    made = advice_loads.hour_of(Random(3), shape, 0, 0)
    assert made is not None
    measured_ms, use, _, _, histogram, activity = made
    random = Random(3)
    random.random()
    random.random()  # Both decide what is missing.
    steps = range(measured_ms * advice_loads.STEPS // HOUR_MS)
    readings = [advice_loads.reading_of(random, shape.load(random, 0, 0, step)) for step in steps]

    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    hours = UseHours(tmp_path / "use.json", "n", lambda: round((clock[0] - 1000.0) * 1000))
    hours.owned(Owners({"a": (Owner("ns", "p", "p", "main", 1.0),)}, clock[0]))
    hours.apply(_read({}, clock[0]))
    for reading in readings:
        values = {kind: reading[name] * 1000 / scale for name, (kind, scale) in ACTIVITIES.items() if name in reading}
        for _ in range(4):
            clock[0] += HOUR_MS / advice_loads.STEPS / 4 / 1000
            hours.apply(_read(values, clock[0]))
    (counted,) = hours.since(0)
    assert counted.measured_ms == measured_ms and counted.histogram == histogram
    assert counted.use == pytest.approx(use, rel=0.001)
    for name in ("sm", "tensor", "dram", "engine", "utilization"):
        assert counted.activity[name] == pytest.approx(activity[name], rel=0.002)


def _read(values: dict[str, float], read_s: float) -> GpuReading:
    return GpuReading((DeviceReading("a", 0, "", "", 0, "", None, None, "", values),), (), read_s, {})
