# SPDX-License-Identifier: Apache-2.0
"""The rules of Prometheus and `dovetail top` decide equally about the same GPUs: their real use, which are idle, and
which are stragglers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from msgspec import Struct

from dovetail.kube.reading import gpu_samples as names
from dovetail.kube.reading.gpu_exporters import NodeSamples
from dovetail.kube.reading.gpu_samples import DeviceKey, DeviceSample, SampleHolder
from dovetail.monitoring import rules, thresholds
from dovetail.views.top_rows import GpuRow, TopWindow
from tests.monitoring.scenarios import GPU, Series, check, sample
from tools.prometheus.promtool import Promtool

pytestmark = pytest.mark.plane

REPORTED = (names.SM, names.TENSOR, names.DRAM, names.ENGINE, names.UTILIZATION)
MINUTES = 16
"""The longest mean of a rule that counts here, and the start of a pod in which nothing is idle."""


class Held(Struct, frozen=True):
    """A GPU or MIG instance of a job, the part of it that its pod holds, and what it reports."""

    gpu: GPU
    share: float
    values: Mapping[str, float]


def world(chance: random.Random) -> Iterator[Held]:
    """Jobs of one to eight GPUs. Most GPUs report everything; their uses are all different, as ties at a threshold are
    for rounding to decide."""
    number = 0
    for job in range(60):
        level = chance.choice((0.0, 0.02, 0.3, 0.9))
        for member in range(chance.randint(1, 8)):
            number += 1
            lags = chance.random() < 0.2
            values = {
                name: round(min(1.0, level * (chance.uniform(0, 0.7) if lags else chance.uniform(0.9, 1.1))), 6)
                for name in REPORTED
            }
            values[names.UTILIZATION] = round(100 * values[names.UTILIZATION], 4)
            for name in REPORTED:
                if chance.random() < 0.05:
                    del values[name]
            instance = "3" if chance.random() < 0.05 else ""
            if instance:
                values.pop(names.UTILIZATION, None)
            gpu = GPU(f"g{number:03}", pod=f"j{job}-{member}", job=f"j{job}", mig=instance)
            yield Held(gpu, 0.5 if chance.random() < 0.1 else 1.0, values)


def series(held: list[Held]) -> Iterator[Series]:
    for one in held:
        yield one.gpu.held(f"{one.share}x{MINUTES}")
        yield from (one.gpu.series(name, f"{value}x{MINUTES}") for name, value in one.values.items())


def rows(held: list[Held]) -> dict[str, GpuRow]:
    """What `top` has, by uuid."""
    devices = tuple(
        DeviceSample(
            DeviceKey("n1", f"GPU-{one.gpu.name}", one.gpu.mig), 0, "H100", "", dict(one.values),
            (SampleHolder("red", one.gpu.pod, "main", share=one.share, job=one.gpu.job),), "",
        )
        for one in held
    )  # fmt: skip
    window = TopWindow()
    window.add([NodeSamples("n1", devices, 100.0, "")])
    return {row.uuid: row for row in window.rows(100.0)}


@pytest.mark.parametrize("seed", range(3))
def test_use_idle_gpus_and_stragglers_are_the_same(promtool: Promtool, tmp_path: Path, seed: int) -> None:
    held = list(world(random.Random(seed)))
    found = rows(held)
    known = [(one.gpu.labels, row) for one in held if (row := found[f"GPU-{one.gpu.name}"]).used is not None]
    used = [(labels, round((row.used or 0.0) / 100, 4)) for labels, row in known]
    idle = [labels for labels, row in known if row.idle]
    lagging = [labels for labels, row in known if row.bottleneck == "straggler"]
    assert len(idle) > 20
    assert len(lagging) > 5
    alert = next(alert for alert in rules.ALERTS if alert.name == "JobStraggler")
    straggler = thresholds.filled(alert.expr, thresholds.resolved())
    at = f"{MINUTES}m"
    check(
        promtool,
        tmp_path,
        list(series(held)),
        [
            sample("round(gpu:real_util, 0.0001)", at, *used),
            sample("sgn(gpu:idle_allocated > 0)", at, *((labels, 1) for labels in idle)),
            sample(f"sgn({straggler})", at, *((labels, 1) for labels in lagging)),
        ],
    )
