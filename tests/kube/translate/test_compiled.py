# SPDX-License-Identifier: Apache-2.0
"""The compiled translation makes of random objects what the modules make as they are written, in a process that may not
use what was compiled."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

import dovetail
from dovetail.core.events import Event
from dovetail.kube.translate.translator import Translator
from dovetail.recording.coding import Coder
from tests.bound import bound
from tests.referee.manifests import SCHEDULER, Dice
from tests.referee.ours import reported

CASES = 150
EVENTS = Coder[tuple[Event, ...]](tuple[Event, ...])
OPTIONS = (
    ("queue", ("research", "")),
    ("gpu-fraction", ("0.25", "1.5", "x")),
    ("gpu-memory", ("10Gi", "-1")),
    ("gpu-isolation", ("strong", "none", "perfect")),
    ("nvlink", ("required", "maybe")),
    ("max-runtime", ("2h", "soon")),
    ("preemptible", ("false", "no")),
    ("movable", ("true", "no")),
    ("hold", ("true", "false", "maybe")),
    ("devices", ("0,1", "0,0")),
)


def translated() -> str:
    """All that is reported of all cases, a line for each record, and what is found wrong."""
    lines: list[str] = []
    for seed in range(CASES):
        dice, case = random.Random(seed), Dice(seed).case(str(seed))
        for pod in (*case["pods"], case["pod"]):
            options = {f"dovetail.dev/{key}": dice.choice(values) for key, values in OPTIONS if dice.random() < 0.2}
            if dice.random() < 0.5:
                devices = dice.choice(["", "0", "0,1", "1/1g.5gb@0"])
                options |= bound(
                    pod["metadata"]["uid"], devices, gpu_milli=dice.choice([0, 500]), max_runtime_ms=60_000
                )
            pod["metadata"]["annotations"] = pod["metadata"].get("annotations", {}) | options
        feed = Translator(dice.choice([SCHEDULER, "another"]))
        # Not repr: the order of a set differs from process to process.
        lines += [EVENTS.encode((event,)).decode() for event in reported(feed, case)]
        lines += map(repr, sorted(feed.findings.items()))
    return "\n".join(lines)


@pytest.mark.slow
def test_pods_and_nodes_are_translated_equally_with_and_without_the_native_parts() -> None:
    if not dovetail.__runs__().startswith("compiled core"):
        pytest.skip(dovetail.__runs__())
    program = "from tests.kube.translate.test_compiled import translated; print(translated())"
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, env=os.environ | {"DOVETAIL_NATIVE": "0"}, check=True, capture_output=True, text=True)
    as_written, compiled = run.stdout.splitlines(), translated().splitlines()
    # Of pods that are bound nothing is asked that could be wrong.
    assert sum('"problem":{' in line for line in compiled) > CASES // 3
    assert sum('"recorded":true' in line for line in compiled) > CASES // 3
    assert compiled == as_written
