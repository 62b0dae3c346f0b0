# SPDX-License-Identifier: Apache-2.0
"""Advice and idleness on a day of real serving: the GPUs of Alibaba's trace cluster-trace-v2026-GenAI.

    python -m benchmarks.serving_advice DUTY_CYCLE.csv MEMORY.csv [--days 8] [--model NVIDIA-L40S]

The files are `pod_gpu_duty_cycle_anon.csv` and `pod_gpu_memory_used_bytes_anon.csv` of
https://github.com/alibaba/clusterdata. They have 143 pods with a GPU each, a value a minute, for a day. The model of
the GPUs is not in the trace, so it is chosen. The day is repeated, as advice needs a week.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from dovetail.advice.sizing.advise import advise
from dovetail.history.idle import IdleRules, idleness
from dovetail.history.job_use import job_uses
from dovetail.history.records import DAY_MS, HOUR_MS, USE_BINS, GpuHold, GpuSpan, Period, PodRecord, UseHour
from dovetail.monitoring.real_use import default
from tests.history.memory_reader import MemoryReader

START_MS = 20_000 * DAY_MS
STEP_MS = 60_000
_BIN_MILLI = 1000 // USE_BINS
Values = dict[str, dict[int, float]]
"""By pod, the values by the minute of the day."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("duty", type=Path, help="the duty cycle in percent, by pod")
    parser.add_argument("memory", type=Path, help="the memory in use in bytes, by pod")
    parser.add_argument("--days", type=int, default=8, help="how often the day is repeated")
    parser.add_argument("--model", default="NVIDIA-L40S", help="the model that the GPUs are taken for")
    options = parser.parse_args()
    duty, memory = _read(options.duty), _read(options.memory)
    period = Period(START_MS, START_MS + options.days * DAY_MS)
    pods = [PodRecord(name, "serving", f"{name}-0", name, "Deployment", bound_ms=START_MS, started_ms=START_MS,
                      submitted_ms=START_MS) for name in duty]  # fmt: skip
    holds = [GpuHold(name, name, 1000, "whole", START_MS) for name in sorted(duty)]
    spans = [GpuSpan(name, name, 0, 1, options.model, "healthy", START_MS) for name in sorted(duty)]
    use = [hour for name in duty for hour in _hours(name, duty[name], memory.get(name, {}), options.days)]
    reader = MemoryReader(period, spans, holds, pods, use)
    advised = advise(job_uses(reader, period))
    rules = Counter(rule for one in advised for rule in [each.rule for each in one.advice] or [one.verdict])
    print(f"{len(advised)} pods over {options.days} days as {options.model}")
    for rule, count in rules.most_common():
        of = [one for one in advised if rule in ([each.rule for each in one.advice] or [one.verdict])]
        means, p95s = sorted(one.mean_milli for one in of), sorted(one.p95_milli for one in of)
        print(f"  {rule}: {count}; mean of real use {_spread(means)}, p95 {_spread(p95s)}")
    found = idleness(reader, IdleRules())
    print(f"  idle at the end of the day: {len(found.idle)}; not measured: {len(found.not_measured)}")


def _read(path: Path) -> Values:
    found: Values = defaultdict(dict)
    with path.open() as lines:
        for row in csv.DictReader(lines):
            found[row["container_ip"]][int(float(row["timestamp_anon"])) // 60] = float(row["value"])
    first = min(minute for values in found.values() for minute in values)
    return {name: {minute - first: value for minute, value in values.items()} for name, values in found.items()}


def _hours(name: str, duty: dict[int, float], memory: dict[int, float], days: int) -> Iterator[UseHour]:
    """The hours of a GPU: it is named as its pod."""
    idle_milli = default("idle_util")
    for day in range(days):
        by_hour: dict[int, list[int]] = defaultdict(list)
        for minute in duty:
            by_hour[START_MS + day * DAY_MS + minute // 60 * HOUR_MS].append(minute)
        for hour_ms, minutes in by_hour.items():
            milli = {minute: round(duty[minute] * 10) for minute in minutes}
            bins = Counter(min(USE_BINS - 1, value // _BIN_MILLI) for value in milli.values())
            used = [minute for minute, value in milli.items() if value >= idle_milli]
            amount = sum(milli.values()) * STEP_MS
            yield UseHour(
                name, name, hour_ms, len(minutes) * STEP_MS, amount, (len(minutes) - len(used)) * STEP_MS,
                int(max(memory.get(minute, 0.0) for minute in minutes)) >> 20,
                tuple(bins[number] * STEP_MS for number in range(USE_BINS)), {"utilization": amount, "sm": amount},
                hour_ms + (max(used) % 60 + 1) * STEP_MS if used else 0,
            )  # fmt: skip


def _spread(values: list[int]) -> str:
    return f"{values[0] / 10:g} to {values[-1] / 10:g} %"


if __name__ == "__main__":
    main()
