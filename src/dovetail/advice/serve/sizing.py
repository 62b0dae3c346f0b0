# SPDX-License-Identifier: Apache-2.0
"""The replicas of one layout that hold the wanted times at a rate, and the times that they reach.

Rules
- An instance runs as many sequences as its KV cache holds and as the time per output token allows.
- Instances are loaded to UTILISATION of what they could serve, as requests do not arrive evenly.
- A prompt waits for half a step and for the prompts before it, as in a queue with Poisson arrivals and equal service
  times: rho / (2 (1 - rho)) of its own time (Pollaczek-Khinchine).
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from msgspec import Struct

from dovetail.advice.serve.roofline import Lengths, StepBatch, StepModel, prefill_s, steady, tokens_per_s

UTILISATION = 0.8


class WantedTimes(Struct, frozen=True):
    """Requests per second, the wanted times in seconds, and the lengths: means, and those of a long prompt, for which
    the time to the first token has to hold."""

    rate: float
    ttft_s: float
    tpot_s: float
    mean: Lengths
    long: Lengths


class SizedRole(Struct, frozen=True):
    """Replicas of a layout, and of each: sequences that it can hold at the wanted times, those that run; the times
    in seconds; requests per second of all."""

    replicas: int
    concurrency: int
    running: float
    ttft_s: float
    tpot_s: float
    most_rate: float


class TimesMissed(Exception):
    """A layout that cannot hold the wanted times, whatever the number of replicas."""


def aggregated(model: StepModel, wanted: WantedTimes, sequences: int, budget: int) -> SizedRole:
    """Replicas that compute prompts and outputs. Raises TimesMissed."""
    alone = prefill_s(model, wanted.long, 1, budget)
    if alone > wanted.ttft_s:
        raise TimesMissed(f"a prompt alone takes {_ms(alone)} to its first token")
    lengths = wanted.mean
    most = _most(sequences, lambda running: _mixed_s(model, lengths, running, budget) <= wanted.tpot_s)
    if not most:
        raise TimesMissed(f"a sequence alone takes {_ms(_mixed_s(model, lengths, 1, budget))} for an output token")
    capacity = tokens_per_s(model, lengths, most, budget) / lengths.output
    replicas = _replicas(wanted.rate, capacity * UTILISATION)
    while True:
        each = wanted.rate / replicas
        running = _running(model, lengths, each, most, budget)
        tpot = _mixed_s(model, lengths, running, budget)
        own = prefill_s(model, wanted.long, running, budget)
        ttft = own + tpot / 2 + _queue(each / capacity) * own
        if ttft <= wanted.ttft_s:
            return SizedRole(replicas, most, running, ttft, tpot, capacity * replicas)
        if replicas > wanted.rate / (capacity * 0.05) + 1:
            raise TimesMissed(f"{_ms(ttft)} to the first token while others decode, even at 5 % of its load")
        replicas += max(1, replicas // 8)


def prefill(model: StepModel, wanted: WantedTimes, budget: int, hand_over_s: float) -> SizedRole:
    """Replicas that compute prompts only. The first token comes after the hand-over of the cache and a step of
    decoding, for which the wanted time per token is taken. Raises TimesMissed."""
    own, after_s = prefill_s(model, wanted.long, 0, budget), hand_over_s + wanted.tpot_s
    if own + after_s > wanted.ttft_s:
        raise TimesMissed(
            f"a prompt alone takes {_ms(own + after_s)} to its first token, with {_ms(hand_over_s)} for its cache"
        )
    whole = StepBatch(0, 0, budget * model.layout.dp, wanted.mean.input - wanted.mean.computed / 2)
    capacity = budget * model.layout.dp / model.stage_s(whole) / wanted.mean.computed
    replicas = _replicas(wanted.rate, capacity * UTILISATION)
    while True:
        ttft = own + _queue(wanted.rate / replicas / capacity) * own + after_s
        if ttft <= wanted.ttft_s:
            return SizedRole(replicas, 0, wanted.rate / replicas * own, ttft, 0.0, capacity * replicas)
        if replicas > wanted.rate / (capacity * 0.05) + 1:
            raise TimesMissed(f"{_ms(ttft)} to the first token, even at 5 % of its load")
        replicas += max(1, replicas // 8)


def decode(model: StepModel, wanted: WantedTimes, sequences: int) -> SizedRole:
    """Replicas that compute outputs only. Raises TimesMissed."""
    lengths = wanted.mean

    def step(running: float) -> float:
        return model.seconds(StepBatch(running, lengths.context))

    most = _most(sequences, lambda running: step(running) <= wanted.tpot_s)
    if not most:
        raise TimesMissed(f"a sequence alone takes {_ms(step(1))} for an output token")
    capacity = most / step(most) / lengths.output
    replicas = _replicas(wanted.rate, capacity * UTILISATION)
    each = wanted.rate / replicas
    low, high = 0.0, float(most)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if middle / step(middle) >= each * lengths.output else (middle, high)
    return SizedRole(replicas, most, high, step(high), step(high), capacity * replicas)


def _mixed_s(model: StepModel, lengths: Lengths, running: float, budget: int) -> float:
    """The time per output token with so many sequences, prompts between them. With more than the budget feeds, others
    wait for their turn."""
    return model.seconds(steady(lengths, running, budget * model.layout.dp))


def _most(sequences: int, holds: Callable[[float], bool]) -> int:
    """The largest number of sequences for which `holds`; 0 if it does not for one."""
    if sequences < 1 or not holds(1):
        return 0
    low, high = 1, sequences + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _running(model: StepModel, lengths: Lengths, rate: float, most: int, budget: int) -> float:
    """Sequences that run at this rate of requests."""
    low, high = 0.0, float(most)
    for _ in range(40):
        middle = (low + high) / 2
        enough = tokens_per_s(model, lengths, middle, budget) >= rate * lengths.output
        low, high = (low, middle) if enough else (middle, high)
    return high


def _replicas(rate: float, each: float) -> int:
    return max(1, ceil(rate / each))


def _queue(load: float) -> float:
    return load / (2 * (1 - load)) if load < 1 else float("inf")


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"
