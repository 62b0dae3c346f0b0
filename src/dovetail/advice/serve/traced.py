# SPDX-License-Identifier: Apache-2.0
"""The simulation of the first plan of an answer with a trace: with the replicas of the plan, and by need."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from dovetail.advice.serve.engines import BY_NAME
from dovetail.advice.serve.rates import rates
from dovetail.advice.serve.replica_queue import ReplicaLimits, StepTimes
from dovetail.advice.serve.request_trace import RequestTrace
from dovetail.advice.serve.roofline import Lengths, StepBatch, StepModel, tokens_per_s
from dovetail.advice.serve.simulation import (
    BY_NEED,
    FIXED,
    SimulatedPlan,
    SimulatedRole,
    SimulationWatch,
    simulate,
)
from dovetail.advice.serve.sizing import UTILISATION
from dovetail.advice.serve.types import (
    DECODE,
    DISAGGREGATED,
    PREFILL,
    GpuOffer,
    RolePlan,
    ServePlan,
    ServeQuestion,
    ServingOption,
    TraceSimulation,
)
from dovetail.advice.serve.work import ModelWork, work_of


def simulated(
    asked: ServeQuestion, answer: ServePlan, trace: RequestTrace, watch: SimulationWatch = lambda done, of: None
) -> ServePlan:
    """The answer with the simulation of its first plan; without a plan nothing is simulated."""
    if not answer.options:
        return answer
    option = answer.options[0]
    offer = next(one for one in asked.offers if one.gpu.model == option.gpu)
    work = work_of(asked.model, asked.weights, asked.cache, asked.adapters, asked.adapter_rank)
    plan = SimulatedPlan(
        tuple(_role(asked, work, option, offer, role) for role in option.roles),
        max(asked.rate, UTILISATION * option.tokens_per_s / asked.lengths.output),
        option.start_s,
        work.cached(1, 1) / option.roles[0].layout.tp / (asked.transfer_mb_per_s * 1e6)
        if option.mode == DISAGGREGATED
        else 0.0,
        offer.micro_usd_per_gpu_hour,
    )
    runs = tuple(
        simulate(plan, trace, answer.wanted, scaling, partial(_half, watch, number))
        for number, scaling in enumerate((FIXED, BY_NEED))
    )
    found = TraceSimulation(
        len(trace.requests), round(trace.seconds), round(trace.mean_rate, 3), round(trace.peak_rate, 3), trace.later,
        tuple((round(begin), round(end)) for begin, end in trace.gaps), runs,
    )  # fmt: skip
    return replace(answer, simulation=found)


def _half(watch: SimulationWatch, number: int, done: int, of: int) -> None:
    watch(number * of + done, 2 * of)


def _role(
    asked: ServeQuestion, work: ModelWork, option: ServingOption, offer: GpuOffer, role: RolePlan
) -> SimulatedRole:
    engine, layout = BY_NAME[option.engine], role.layout
    speed = rates(offer.gpu, asked.weights, layout.tp * layout.dp)
    assert speed is not None, "a plan has GPUs with known speed"
    share = 1.0 if engine.routes_prefixes else 1.0 / role.replicas
    computed = 1 - asked.reuse_percent / 100 * share
    sequences = role.concurrency or engine.sequences
    # A replica for prefill holds no output.
    part = 0.0 if role.role == PREFILL else 1.0 if engine.reserves else 0.5
    limits = ReplicaLimits(
        sequences, float(role.kv_tokens), engine.budget * layout.dp, part,
        0.0 if role.role == DECODE else computed, layout.dp, layout.pp,
    )  # fmt: skip
    # Roles divide the GPUs as in the plan: each is simulated without the other.
    there = offer.nodes * offer.gpus_per_node
    most = there // role.gpus_each if len(option.roles) == 1 else role.replicas * (there // option.gpus)
    most = max(role.replicas, most)
    model = StepModel(work, layout, speed, engine.efficiency)
    target = _target(model, asked, role, computed, limits.budget)
    return SimulatedRole(role.role, role.replicas, most, target, role.gpus_each, StepTimes(model), limits)


def _target(model: StepModel, asked: ServeQuestion, role: RolePlan, computed: float, budget: int) -> int:
    """The requests of a replica at the load for which it is planned: UTILISATION of the most at which the wanted times
    hold. Prompts are computed one after another, so of prefill it is one."""
    if role.role == PREFILL:
        return 1
    lengths = Lengths(asked.lengths.input, max(1.0, asked.lengths.input * computed), asked.lengths.output)

    def rate(running: int) -> float:
        if role.role == DECODE:
            return running / model.seconds(StepBatch(running, lengths.context))
        return tokens_per_s(model, lengths, running, budget // role.layout.dp)

    wanted = UTILISATION * rate(role.concurrency)
    return next(number for number in range(1, role.concurrency + 1) if rate(number) >= wanted)
