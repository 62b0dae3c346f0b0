# SPDX-License-Identifier: Apache-2.0
"""Plans under traces: bursts, replicas by need, cost."""

from __future__ import annotations

from typing import cast

import pytest
from msgspec.structs import replace

from dovetail.advice import catalog, gpus
from dovetail.advice.config import read
from dovetail.advice.serve.plan import plan
from dovetail.advice.serve.replica_queue import ReplicaLimits, StepTimes
from dovetail.advice.serve.request_lengths import lengths_of
from dovetail.advice.serve.request_trace import RequestTrace, TracedRequest
from dovetail.advice.serve.roofline import StepBatch, StepModel
from dovetail.advice.serve.simulation import BY_NEED, SimulatedPlan, SimulatedRole, simulate
from dovetail.advice.serve.traced import simulated
from dovetail.advice.serve.types import AGGREGATED, DISAGGREGATED, GpuOffer, ServeQuestion, SimulatedRun

GPU = gpus.find("H100-SXM5")[0]
HOUR = 3_600_000_000


def traced(times: list[float], prompt: int = 1000, output: int = 200) -> RequestTrace:
    return RequestTrace(tuple(TracedRequest(at_s, prompt, output) for at_s in times), times[-1], 0, ())


def asked(trace: RequestTrace, mode: str = AGGREGATED, **more: object) -> ServeQuestion:
    entry = catalog.find("llama-3.1-8b")
    assert entry is not None
    lengths = lengths_of([(one.input, one.output) for one in trace.requests], "t")
    question = ServeQuestion(
        read(entry.config), "llama-3.1-8b", trace.peak_rate, lengths, 1000, 50_000,
        (GpuOffer(GPU, 8, 8, 3_600_000, "list"),), ("llm-d",) if mode == DISAGGREGATED else ("vllm",), (mode,), "bf16",
        "bf16",
    )  # fmt: skip
    return replace(question, **more)


def runs(question: ServeQuestion, trace: RequestTrace) -> tuple[SimulatedRun, SimulatedRun]:
    found = simulated(question, plan(question), trace).simulation
    assert found is not None
    fixed, by_need = found.runs
    return fixed, by_need


def test_an_even_load_has_the_times_of_the_plan() -> None:
    trace = traced([n / 8 for n in range(2400)])
    question = asked(trace)
    (option,) = plan(question).options
    fixed, _ = runs(question, trace)
    assert fixed.ttft_ms is not None and fixed.tpot_us is not None
    assert fixed.met_milli == 1000 and fixed.unfinished == 0
    assert option.tpot_us * 0.5 < fixed.tpot_us.p50 < option.tpot_us * 1.3
    assert fixed.ttft_ms.p50 < option.ttft_ms


def test_a_burst_waits_with_fixed_replicas_and_by_need_more_are_started_and_paid() -> None:
    trace = traced([*(float(n) for n in range(300)), *(300 + n / 20 for n in range(4000)), 900.0], 2000, 20)
    question = asked(trace, rate=1.0)
    fixed, by_need = runs(question, trace)
    assert fixed.ttft_ms is not None and by_need.ttft_ms is not None
    assert fixed.ttft_ms.p50 > 10 * by_need.ttft_ms.p50
    assert by_need.met_milli > fixed.met_milli and by_need.queued < fixed.queued
    numbers = [number for _, (number,) in by_need.replicas]
    assert numbers[:5] == [1] * 5 and max(numbers) > 2
    assert {number for _, (number,) in fixed.replicas} == {1}
    assert (fixed.gpu_s, fixed.micro_usd) == (900, 900_000)
    assert by_need.gpu_s > fixed.gpu_s and by_need.micro_usd == by_need.gpu_s * 1000


def test_replicas_are_taken_away_after_the_time_of_stability_and_no_request_is_lost() -> None:
    trace = traced([*(n / 20 for n in range(3000)), *(150 + 5.0 * n for n in range(1, 150))], 2000, 50)
    _, by_need = runs(asked(trace, rate=20.0), trace)
    numbers = [number for _, (number,) in by_need.replicas]
    assert by_need.unfinished == 0
    assert max(numbers) > 1 and numbers[-1] == 1
    assert numbers[5] == max(numbers), "not before five minutes have passed"


def test_the_first_number_is_that_for_the_trace_and_not_for_a_lower_rate_of_the_plan() -> None:
    trace = traced([n / 8 for n in range(800)])
    _, by_need = runs(asked(trace, rate=0.001), trace)
    assert by_need.replicas[0] == (0, (1,))


class Steps:
    """A step takes 10 ms, so that a request of 100 tokens takes a second."""

    def seconds(self, batch: StepBatch) -> float:
        return 0.01


@pytest.mark.parametrize(("rate", "most"), [(21, 20), (25, 25)])
@pytest.mark.slow
def test_a_difference_of_a_tenth_is_ignored_as_by_an_autoscaler(rate: int, most: int) -> None:
    trace = traced([n / rate for n in range(rate * 200)], 10, 101)
    limits = ReplicaLimits(sequences=4, tokens=1e9, budget=1000, part=0.5, computed=1.0)
    role = SimulatedRole("decode", 20, 40, 1, 1, StepTimes(cast(StepModel, Steps())), limits)
    run = simulate(SimulatedPlan((role,), rate, 0, 0.0, None), trace, plan(asked(trace)).wanted, BY_NEED)
    assert run.replicas[0] == (0, (20,)) and max(number for _, (number,) in run.replicas) == most


def test_no_more_replicas_than_gpus() -> None:
    trace = traced([n / 100 for n in range(6000)], 2000, 20)
    question = asked(trace, rate=5.0, offers=(GpuOffer(GPU, 1, 2),))
    _, by_need = runs(question, trace)
    assert max(number for _, (number,) in by_need.replicas) == 2
    assert by_need.micro_usd is None


def test_prefill_and_decode_scale_on_their_own_and_the_hand_over_takes_its_time() -> None:
    trace = traced([n / 4 for n in range(1200)], prompt=6000)
    question = asked(trace, DISAGGREGATED, ttft_ms=3000)
    fixed, by_need = runs(question, trace)
    slow, _ = runs(replace(question, transfer_mb_per_s=500), trace)
    assert fixed.ttft_ms is not None and slow.ttft_ms is not None
    assert all(len(numbers) == 2 for _, numbers in fixed.replicas) and len(by_need.targets) == 2
    assert fixed.unfinished == 0
    assert slow.ttft_ms.p50 > fixed.ttft_ms.p50 + 500


@pytest.mark.slow
def test_prefill_and_decode_together_have_no_more_gpus_than_there_are() -> None:
    trace = traced([n / 60 for n in range(12_000)], prompt=3000, output=300)
    question = asked(trace, DISAGGREGATED, ttft_ms=3000, rate=2.0, offers=(GpuOffer(GPU, 1, 8),))
    (option,) = plan(question).options
    _, by_need = runs(question, trace)
    each = [role.gpus_each for role in option.roles]
    most = max(sum(a * b for a, b in zip(numbers, each, strict=True)) for _, numbers in by_need.replicas)
    assert option.gpus < most <= 8


def test_without_a_plan_nothing_is_simulated() -> None:
    trace = traced([0.0, 1.0], prompt=100_000)
    question = asked(trace, ttft_ms=1)
    assert simulated(question, plan(question), trace).simulation is None


@pytest.mark.parametrize("half", [0, 1])
def test_progress_rises_to_all(half: int) -> None:
    seen: list[tuple[int, int]] = []
    trace = traced([n / 4 for n in range(500)])
    question = asked(trace)
    simulated(question, plan(question), trace, lambda done, of: seen.append((done, of)))
    assert seen == sorted(seen) and {of for _, of in seen} == {1000}
    assert any((done >= 500) == bool(half) for done, _ in seen)
