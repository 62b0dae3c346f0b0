# SPDX-License-Identifier: Apache-2.0
"""Advice on sizes against synthetic truth: precision and recall over jobs whose right size is known.

    python -m benchmarks.advice [--seeds 10] [--noise 1] [-o json]

Each seed makes jobs of every kind of `KINDS`, with random sizes, hours and loads. Their use is noisy and has gaps, as
readings have: hours without data, hours of which a part was measured, readings that are far off. The right answer
for each kind is beside it. Precision: of all pieces of advice, the part that is right for its job.
Recall: of the jobs for which there is right advice, those that got it. Unsafe is advice that would take GPUs from a job
that needs all that it has: to which no such advice is right, or a service with a high p95.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from random import Random

from msgspec import Struct
from msgspec.structs import asdict, replace

from benchmarks.advice_kinds import A100, KINDS, L4, L40S, Kind
from benchmarks.advice_loads import DAYS, H100, START_MS, made_of
from dovetail.advice.sizing.advise import advise
from dovetail.advice.sizing.market import HourPrice, InstanceOffer, Market
from dovetail.advice.sizing.rule import JobAdvice
from dovetail.history.job_use import job_uses
from dovetail.history.records import HOUR_MS, GpuSpan, Period
from tests.history.memory_reader import MemoryReader

CENTS = {A100: (400, 170), L40S: (200, 195), L4: (100, None)}
"""What an hour of a GPU costs, and on spot."""
L4_MACHINES = {4: 71, 16: 115, 64: 340}
"""By the number of CPUs the cents for an hour of a machine with one L4."""
SHRINKS = frozenset(
    (
        "unused-gpus",
        "mig",
        "fewer-gpus",
        "smaller-gpu",
        "share",
        "idle",
        "communication-bound",
        "smaller-instance",
        "smaller-share",
    )
)


def _cents(cents: int | None) -> HourPrice | None:
    return HourPrice(cents * 10_000, "USD", "2026-11-01") if cents is not None else None


def _price_of(span: GpuSpan) -> HourPrice | None:
    return _cents(CENTS.get(span.model, (None, None))[span.spot])


def _machines(span: GpuSpan) -> list[InstanceOffer]:
    """Those of the table, for a GPU that is in one of them."""
    table = L4_MACHINES if span.instance_type else {}
    prices = {cpus: HourPrice(cents * 10_000, "USD", "2026-11-01") for cpus, cents in table.items()}
    return [InstanceOffer(f"l4-{cpus}", 1, cpus * 1000, cpus * 4096, price) for cpus, price in prices.items()]


MARKET = Market(lambda model: None, _price_of, _machines)


class Answer(Struct, frozen=True):
    """What was advised for a job of a kind, and what is right."""

    seed: int
    kind: str
    right: tuple[str, ...]
    advised: tuple[str, ...]
    verdict: str
    verdict_right: bool
    unsafe: bool


def answers(seed: int, each: int = 1, noise: float = 1.0) -> Iterator[Answer]:
    """Of `each` jobs of every kind."""
    random = Random(seed)
    all_kinds = [kind for kind in KINDS for _ in range(each)]
    jobs = [made_of(random, replace(kind.make(random), noise=noise), number) for number, kind in enumerate(all_kinds)]
    spare = [
        GpuSpan(f"GPU-spare-{i}", "spare", i, 5, model, "healthy", START_MS, spot=spot)
        for i, (model, spot) in enumerate(((H100, False), (A100, True), (L40S, False), (L4, False)))
    ]
    end_ms = START_MS + DAYS * 24 * HOUR_MS
    for kind, made in zip(all_kinds, jobs, strict=True):
        reader = MemoryReader(Period(START_MS, end_ms), [*made.spans, *spare], made.holds, made.pods, made.use)
        (found,) = advise(job_uses(reader, Period(START_MS, end_ms)), MARKET)
        yield _answer(seed, kind, found)


def _answer(seed: int, kind: Kind, found: JobAdvice) -> Answer:
    advised = tuple(one.rule for one in found.advice)
    shrinks = SHRINKS.intersection(advised)
    loaded = found.workload == "serving" and found.p95_milli >= 700
    unsafe = bool(shrinks - kind.right or (shrinks and loaded))
    return Answer(
        seed, kind.name, tuple(sorted(kind.right)), advised, found.verdict, found.verdict == kind.verdict, unsafe
    )


class Score(Struct, frozen=True):
    jobs: int
    advised: int
    precision: float
    recall: float
    verdicts: float
    unsafe: int


def score(found: list[Answer]) -> Score:
    advised = [rule in one.right for one in found for rule in one.advised]
    wanted = [any(rule in one.advised for rule in one.right) for one in found if one.right]
    verdicts = [one.verdict_right for one in found]
    unsafe = sum(one.unsafe for one in found)
    return Score(len(found), len(advised), _part(advised), _part(wanted), _part(verdicts), unsafe)


def _part(true: list[bool]) -> float:
    return round(sum(true) / max(1, len(true)), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--noise", type=float, default=1.0, help="a factor of the noise in readings")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    options = parser.parse_args()
    found = [one for seed in range(options.seeds) for one in answers(seed, noise=options.noise)]
    total = score(found)
    if options.output == "json":
        print(json.dumps({"score": asdict(total), "answers": [asdict(one) for one in found]}))
        return
    print(f"{'kind':<30} {'right':<20} {'advised, by number of jobs'}")
    for kind in KINDS:
        advised = Counter(", ".join(one.advised) or one.verdict for one in found if one.kind == kind.name)
        print(f"{kind.name:<30} {', '.join(kind.right) or kind.verdict:<20} {dict(advised)}")
    print(f"precision {total.precision}, recall {total.recall}, verdicts {total.verdicts}, unsafe {total.unsafe}; "
          f"{total.jobs} jobs, {total.advised} pieces of advice")  # fmt: skip


if __name__ == "__main__":
    main()
