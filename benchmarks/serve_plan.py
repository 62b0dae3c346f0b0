# SPDX-License-Identifier: Apache-2.0
"""The roofline of `dovetail serve plan` against published measurements of throughput and latency.

    python -m benchmarks.serve_plan [--fit] [--rows]

The measurements are in benchmarks/published/serving.csv. Their models are sorted by name; the first, third, fifth ...
are for the fit, the others for the check, so that no model is in both. Without options the constants of
`dovetail.advice.serve.engines` are checked: the median error of throughput, and how many pairs of configurations that
differ by more than 15 % are in the right order; the exit code is 1 below the floors. `--fit` fits the constants to the
first half and prints them; the check takes no part in it. `--rows` prints each measurement.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from collections.abc import Iterable, Iterator
from itertools import combinations
from math import exp, log
from pathlib import Path
from statistics import median

from msgspec import Struct
from msgspec.structs import asdict, replace

from dovetail.advice import catalog, gpus
from dovetail.advice.config import read
from dovetail.advice.gpus import GpuProduct
from dovetail.advice.serve.engines import BY_NAME, Engine
from dovetail.advice.serve.rates import rates
from dovetail.advice.serve.roofline import (
    Efficiency,
    InstanceLayout,
    Lengths,
    StepModel,
    prefill_s,
    steady,
    tokens_per_s,
)
from dovetail.advice.serve.room import cache_room
from dovetail.advice.serve.work import ModelWork, work_of

PUBLISHED = Path(__file__).with_name("published") / "serving.csv"
START = Efficiency(
    compute_16=0.7, compute_8=0.6, compute_4=0.45, unpacked=0.8, experts=0.7, balance=0.8, weights=0.8, cache=0.7,
    link=0.6, exchange_us=8.0, layer_us=5.0, step_us=800.0, sequence_us=5.0,
)  # fmt: skip
"""What kernels reach as a rule; the fit begins here."""
TRUST = 0.05
"""The weight of START, chosen by leaving out each model of the fit in turn."""
APART = 1.15
"""Configurations that differ by less are not compared."""
FLOOR_ERROR, FLOOR_ORDERED = 0.20, 0.90


class Measured(Struct, frozen=True):
    """A published measurement. `requests` of 0: an endless run; `concurrency` of 0: as much as fits."""

    source: str
    engine: Engine
    model: str
    gpu: GpuProduct
    work: ModelWork
    weights: str
    layout: InstanceLayout
    lengths: Lengths
    requests: int
    concurrency: int
    budget: int
    tokens_per_s: float
    ttft_ms: float
    tpot_ms: float

    def step_model(self, efficiency: Efficiency) -> StepModel:
        speed = rates(self.gpu, self.weights, self.layout.tp * self.layout.dp)
        assert speed is not None
        return StepModel(self.work, self.layout, speed, efficiency)

    def running(self) -> float:
        """Sequences at a time in the mean. Requests of one length that begin together also end together, so that the
        last of a finite run leave sequences without work."""
        lengths = self.lengths
        longest = int(lengths.input + lengths.output)
        most = cache_room(self.work, self.layout, self.gpu, self.engine, lengths, longest).sequences
        most = min(most, self.concurrency or most)
        if not self.requests or not most:
            return most
        return self.requests / -(-self.requests // min(most, self.requests))

    def expected(self, efficiency: Efficiency) -> float:
        """Output tokens per second; 0 if the model does not fit."""
        return tokens_per_s(self.step_model(efficiency), self.lengths, self.running(), self.budget)


def measurements() -> list[Measured]:
    with PUBLISHED.open(newline="") as file:
        return [_measured(row) for row in csv.DictReader(file)]


def _measured(row: dict[str, str]) -> Measured:
    entry, gpu = catalog.find(row["model"]), gpus.named(row["gpu"])
    assert entry is not None and gpu is not None, row
    engine = BY_NAME[row["engine"]]
    layout = InstanceLayout(int(row["tp"]), 1, int(row["dp"]), int(row["ep"]))
    work = _work(row["model"], row["weights"], row["cache"])
    lengths = Lengths(int(row["input"]), int(row["input"]), int(row["output"]))
    return Measured(
        row["source"], engine, row["model"], gpu, work, row["weights"], layout, lengths, int(row["requests"] or 0),
        int(row["concurrency"] or 0), int(row["budget"] or engine.budget), float(row["output_tokens_s"]),
        float(row["ttft_ms"] or 0), float(row["tpot_ms"] or 0),
    )  # fmt: skip


_WORKS: dict[tuple[str, str, str], ModelWork] = {}


def _work(name: str, weights: str, cache: str) -> ModelWork:
    key = name, weights, cache
    if key not in _WORKS:
        entry = catalog.find(name)
        assert entry is not None
        _WORKS[key] = work_of(read(entry.config), weights, cache)
    return _WORKS[key]


def halves(rows: Iterable[Measured]) -> tuple[list[Measured], list[Measured]]:
    """The rows for the fit and those for the check."""
    rows = list(rows)
    fitted = set(sorted({row.model for row in rows})[::2])
    return [row for row in rows if row.model in fitted], [row for row in rows if row.model not in fitted]


def error(expected: float, measured: float) -> float:
    return abs(expected / measured - 1)


def fit(rows: list[Measured], start: Efficiency, rounds: int = 60) -> Efficiency:
    """Constants with the least mean of |log(expected / measured)|, plus TRUST times the squares of their own logarithms
    against `start`, so that a constant that the rows do not decide stays there. Found by steps along each of them."""
    names = list(asdict(start))

    def loss(one: Efficiency) -> float:
        away = sum(log(getattr(one, name) / getattr(start, name)) ** 2 for name in names)
        errors = sum(abs(log(max(row.expected(one), 1e-9) / row.tokens_per_s)) for row in rows)
        return errors / len(rows) + TRUST * away

    chance, best, step = random.Random(1), start, 0.3
    least = loss(best)
    for _ in range(rounds):
        before = least
        chance.shuffle(names)
        for name in names:
            for factor in (exp(step), exp(-step)):
                other = replace(best, **{name: _bounded(name, getattr(best, name) * factor)})
                found = loss(other)
                if found < least:
                    best, least = other, found
        if before - least < 1e-4:
            step /= 2
            if step < 0.01:
                break
    return best


def _bounded(name: str, value: float) -> float:
    return value if name.endswith("_us") else min(value, 1.0)


def ordered(rows: list[Measured], expected: dict[int, float], equal: bool) -> tuple[int, int]:
    """Pairs in the right order, and pairs, by tokens per second of a GPU. `equal`: only pairs of the same model and
    lengths, between which a plan chooses."""
    right = pairs = 0
    for (i, one), (j, other) in combinations(enumerate(rows), 2):
        if equal and (one.model, one.lengths) != (other.model, other.lengths):
            continue
        a, b = one.tokens_per_s / one.layout.gpus, other.tokens_per_s / other.layout.gpus
        if max(a, b) > APART * min(a, b):
            pairs += 1
            right += (a > b) == (expected[i] / one.layout.gpus > expected[j] / other.layout.gpus)
    return right, pairs


def report(title: str, rows: list[Measured]) -> Iterator[str]:
    expected = {i: row.expected(row.engine.efficiency) for i, row in enumerate(rows)}
    errors = [error(expected[i], row.tokens_per_s) for i, row in enumerate(rows)]
    yield f"{title}: {len(rows)} measurements, median error {median(errors):.1%}"
    for name in sorted({row.engine.name for row in rows}):
        mine = [one for one, row in zip(errors, rows, strict=True) if row.engine.name == name]
        yield f"  {name}: {len(mine)}, median error {median(mine):.1%}"
    for name in sorted({row.source for row in rows}):
        mine = [one for one, row in zip(errors, rows, strict=True) if row.source == name]
        yield f"  {name}: {len(mine)}, median error {median(mine):.1%}"
    for equal, what in ((False, "all"), (True, "same model and lengths")):
        right, pairs = ordered(rows, expected, equal)
        if pairs:
            yield f"  pairs that differ by > 15 %, {what}: {right} of {pairs} in the right order, {right / pairs:.1%}"
    yield from _latencies(rows)


def _latencies(rows: list[Measured]) -> Iterator[str]:
    first, each = [], []
    for row in rows:
        model, running = row.step_model(row.engine.efficiency), row.running()
        if row.ttft_ms:
            first.append(error(prefill_s(model, row.lengths, running, row.budget) * 1000, row.ttft_ms))
        if row.tpot_ms:
            batch = steady(row.lengths, running, row.budget * row.layout.dp)
            each.append(error(model.seconds(batch) * 1000, row.tpot_ms))
    for what, found in (("time to the first token", first), ("time per output token", each)):
        if found:
            yield f"  {what}: {len(found)} measurements, median error {median(found):.1%}"


def floors(rows: list[Measured]) -> tuple[float, float]:
    """The median error and the part of pairs in the right order, of those of one model and lengths."""
    expected = {i: row.expected(row.engine.efficiency) for i, row in enumerate(rows)}
    right, pairs = ordered(rows, expected, True)
    return median(error(expected[i], row.tokens_per_s) for i, row in enumerate(rows)), right / pairs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--fit", action="store_true", help="fit the constants and print them")
    parser.add_argument("--rows", action="store_true", help="print each measurement")
    options = parser.parse_args()
    fitted, checked = halves(measurements())
    if options.fit:
        by_engine = {name: [row for row in fitted if row.engine.name == name] for name in ("tensorrt-llm", "vllm")}
        # There are few measurements of vLLM: where they decide nothing, it is taken for the other.
        first = fit(by_engine["tensorrt-llm"], START)
        for name, one in (("tensorrt-llm", first), ("vllm", fit(by_engine["vllm"], first))):
            print(name, {key: float(f"{value:.3g}") for key, value in asdict(one).items()})
        return 0
    for title, rows in (("fit", fitted), ("check", checked)):
        print("\n".join(report(title, rows)))
        for row in rows if options.rows else ():
            found = row.expected(row.engine.efficiency)
            what = f"{row.lengths.input}/{row.lengths.output}"
            print(
                f"{found / row.tokens_per_s:6.2f} {row.source} {row.model} {row.gpu.model} {row.weights} {row.layout} "
                f"{what} running {row.running():.0f}: {row.tokens_per_s:.0f} measured, {found:.0f} expected"
            )
    wrong, right = floors(checked)
    print(f"floors: error {wrong:.1%} of {FLOOR_ERROR:.0%}, order {right:.1%} of {FLOOR_ORDERED:.0%}")
    return int(wrong > FLOOR_ERROR or right < FLOOR_ORDERED)


if __name__ == "__main__":
    sys.exit(main())
