# SPDX-License-Identifier: Apache-2.0
"""One replica: steps, batches and limits, against numbers that follow from the times of its steps."""

from __future__ import annotations

import random
from typing import cast

import pytest

from dovetail.advice.serve.replica_queue import QueuedRequest, ReplicaLimits, ReplicaQueue, StepTimes
from dovetail.advice.serve.roofline import StepBatch, StepModel
from tests.advice.serve.pipeline_oracle import Arrival, first_tokens

LIMITS = ReplicaLimits(sequences=4, tokens=1e9, budget=1000, part=0.5, computed=1.0)


class Steps:
    """A step takes 10 ms, and a millisecond for each hundred tokens of prompts."""

    def seconds(self, batch: StepBatch) -> float:
        return 0.01 + batch.prompt / 100_000


def replica(ended: list[QueuedRequest], *, prefill: bool = False, **limits: float) -> ReplicaQueue:
    own = ReplicaLimits(**{name: limits.get(name, getattr(LIMITS, name)) for name in LIMITS.__struct_fields__})
    return ReplicaQueue(StepTimes(cast(StepModel, Steps())), own, 0.0, ended.append, prefill)


def request(number: int, at_s: float, prompt: int, output: int, *, decode: bool = False) -> QueuedRequest:
    return QueuedRequest(number, at_s, prompt, output, 0.0 if decode else 1.0)


def run(queue: ReplicaQueue, *requests: QueuedRequest, until_s: float = 100.0) -> None:
    for one in requests:
        queue.advance(one.at_s)
        queue.add(one)
    queue.advance(until_s)


def test_a_request_alone_has_its_first_token_after_its_prompt_and_then_one_in_each_step() -> None:
    ended: list[QueuedRequest] = []
    run(replica(ended), request(0, 1.0, 500, 11))
    (one,) = ended
    assert one.first_s == pytest.approx(1.015)
    assert one.end_s == pytest.approx(1.015 + 10 * 0.01)


def test_a_long_prompt_takes_several_steps_and_holds_up_the_tokens_of_others() -> None:
    ended: list[QueuedRequest] = []
    run(replica(ended), request(0, 0.0, 100, 100), request(1, 0.5, 2500, 2))
    first, second = sorted(ended, key=lambda one: one.number)
    # A step of 11 ms, then 10 ms each. Of the long prompt 999 tokens each go beside the running sequence.
    assert 0.045 < second.first_s - 0.5 < 0.070
    assert first.end_s == pytest.approx(0.011 + 99 * 0.01 + 0.025, abs=0.002)


def test_no_more_sequences_than_the_limit() -> None:
    ended: list[QueuedRequest] = []
    queue = replica(ended, sequences=2)
    run(queue, *(request(n, 0.0, 100, 51) for n in range(3)), until_s=0.3)
    assert (queue.load, queue.queued) == (3, 1)
    queue.advance(10.0)
    assert [one.number for one in ended] == [0, 1, 2]
    assert ended[2].first_s > ended[0].end_s


def test_no_more_tokens_than_the_cache_holds_but_always_one_request() -> None:
    ended: list[QueuedRequest] = []
    queue = replica(ended, tokens=150)
    run(queue, request(0, 0.0, 400, 10), request(1, 0.0, 100, 10), until_s=0.02)
    assert queue.queued == 1
    queue.advance(10.0)
    assert ended[1].first_s > ended[0].end_s


def test_prefill_ends_with_the_prompt_and_decode_begins_without_one() -> None:
    ended: list[QueuedRequest] = []
    run(replica(ended, prefill=True), request(0, 0.0, 500, 50))
    assert ended[0].end_s == pytest.approx(0.015)
    decoded: list[QueuedRequest] = []
    run(replica(decoded), request(0, 0.0, 500, 50, decode=True))
    assert (decoded[0].first_s, decoded[0].end_s) == (pytest.approx(0.01), pytest.approx(0.5))


def test_what_is_cached_of_a_prompt_is_not_computed() -> None:
    ended: list[QueuedRequest] = []
    run(replica(ended, computed=0.1), request(0, 0.0, 900, 2))
    assert ended[0].first_s == pytest.approx(0.0109, abs=0.0003)


def test_one_token_of_output_is_that_of_the_prompt() -> None:
    ended: list[QueuedRequest] = []
    run(replica(ended), request(0, 0.0, 500, 1))
    assert ended[0].first_s == ended[0].end_s


def test_groups_of_ranks_compute_a_prompt_each_within_their_part_of_the_budget() -> None:
    alone: list[QueuedRequest] = []
    run(replica(alone, groups=4), request(0, 0.0, 1000, 2))
    # Four steps of 250 tokens, as long as if all groups had so many.
    assert alone[0].first_s == pytest.approx(4 * 0.02, abs=0.002)
    together: list[QueuedRequest] = []
    run(replica(together, groups=4), *(request(n, 0.0, 1000, 2) for n in range(4)))
    assert [one.first_s for one in together] == [pytest.approx(alone[0].first_s)] * 4


class Pipeline:
    """All stages together take 5 ms, 0.05 ms for each sequence, and a millisecond for each hundred prompt tokens."""

    def __init__(self, stages: int) -> None:
        self.stages = stages

    def stage_s(self, sequences: float, prompt: float) -> float:
        return (0.005 + sequences / 20_000 + prompt / 100_000) / self.stages

    def seconds(self, batch: StepBatch) -> float:
        return self.stages * self.stage_s(batch.sequences / self.stages, batch.prompt / self.stages)


def _through(stages: int, arrivals: list[Arrival], budget: int = 2048) -> list[QueuedRequest]:
    ended: list[QueuedRequest] = []
    limits = ReplicaLimits(sequences=10_000, tokens=1e9, budget=budget, part=0.5, computed=1.0, stages=stages)
    queue = ReplicaQueue(StepTimes(cast(StepModel, Pipeline(stages))), limits, 0.0, ended.append)
    run(queue, *(request(n, at_s, prompt, output) for n, (at_s, prompt, output) in enumerate(arrivals)), until_s=1e4)
    return sorted(ended, key=lambda one: one.number)


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("prompt", [512, 2048, 10_240])
def test_a_prompt_alone_passes_all_stages_of_a_pipeline(stages: int, prompt: int) -> None:
    (one,) = _through(stages, [(0.0, prompt, 1)])
    (first_s,), _ = first_tokens([(0.0, prompt, 1)], stages, 2048, Pipeline(stages).stage_s)
    assert one.first_s == one.end_s == pytest.approx(first_s, rel=0.01)


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("load", [0.2, 0.6, 0.85])
def test_times_are_those_of_a_pipeline_batch_by_batch(stages: int, load: float) -> None:
    """In the mean of many requests; of four stages first tokens are up to a quarter late at load."""
    dice, at_s, arrivals = random.Random(stages), 0.0, list[Arrival]()
    for _ in range(400):
        prompt, output = dice.choice([256, 1024, 3072]), dice.randint(2, 60)
        at_s += dice.expovariate(load / 0.0145)
        arrivals.append((at_s, prompt, output))
    firsts, lasts = first_tokens(arrivals, stages, 2048, Pipeline(stages).stage_s)
    waits = [first_s - at_s for first_s, (at_s, _, _) in zip(firsts, arrivals, strict=True)]
    ours = _through(stages, arrivals)
    assert sum(one.first_s - one.at_s for one in ours) == pytest.approx(sum(waits), rel=0.1 if stages < 4 else 0.25)
    whole = [last_s - at_s for last_s, (at_s, _, _) in zip(lasts, arrivals, strict=True)]
    assert sum(one.end_s - one.at_s for one in ours) == pytest.approx(sum(whole), rel=0.12)
    assert all(one.at_s < one.first_s <= one.end_s for one in ours)
