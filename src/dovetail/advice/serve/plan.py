# SPDX-License-Identifier: Apache-2.0
"""Plans of serving: for each engine, mode and GPU model the layout that holds the wanted times with the fewest GPUs.

Rules
- Each layout is a plan or rejected, with the first rule that it fails.
- Of one engine, mode and GPU model, the plan with the fewest GPUs is shown, then that with the shorter time per token.
- Plans are ordered by dollars per hour; those whose price is not known come after, by their number of GPUs.
- An engine that does not route by prefix finds a prefix in the cache of one of its replicas only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import ceil

from msgspec.structs import replace

from dovetail.advice.gpus import GPUS
from dovetail.advice.serve import candidates, sizing
from dovetail.advice.serve.choice import chosen, unsupported
from dovetail.advice.serve.engines import BY_NAME, Engine
from dovetail.advice.serve.rates import rates
from dovetail.advice.serve.roofline import InstanceLayout, Lengths, StepModel
from dovetail.advice.serve.room import CacheRoom, cache_room
from dovetail.advice.serve.sizing import SizedRole, TimesMissed, WantedTimes
from dovetail.advice.serve.types import (
    AGGREGATED,
    ALL,
    DECODE,
    DISAGGREGATED,
    PREFILL,
    GpuOffer,
    RejectedOption,
    RolePlan,
    ServePlan,
    ServeQuestion,
    ServingOption,
    WantedServing,
)
from dovetail.advice.serve.work import ModelWork, work_of

Reject = Callable[[str, str], None]
"""Notes a layout that was rejected, and why."""
_HOUR_S = 3600
_GB = 10**9
_MOST_NODES = 16


def plan(asked: ServeQuestion) -> ServePlan:
    """The plans for a question. Raises PlanError if its options contradict the model."""
    if asked.tp:
        candidates.check_tp(asked.model, asked.tp)
    work = work_of(asked.model, asked.weights, asked.cache, asked.adapters, asked.adapter_rank)
    options: list[ServingOption] = []
    rejected: list[RejectedOption] = []
    for offer in asked.offers:
        for name in asked.engines:
            for mode in asked.modes:
                best, others = _best(asked, work, BY_NAME[name], mode, offer)
                options += best
                rejected += others
    options.sort(key=lambda one: (one.micro_usd_per_hour is None, one.micro_usd_per_hour or 0, one.gpus, one.tpot_us))
    wanted = WantedServing(
        asked.rate,
        asked.lengths,
        asked.reuse_percent,
        asked.ttft_ms,
        asked.tpot_us,
        asked.weights,
        asked.cache,
        asked.adapters,
        asked.adapter_rank,
    )
    fits = options or any(_holding(asked, work, offer) for offer in asked.offers)
    nearest = "" if fits else _nearest(asked, work)
    notes = (*asked.model.notes, *_notes(asked))
    return ServePlan(asked.name, wanted, tuple(options), tuple(rejected), nearest, chosen(options), notes)


def _notes(asked: ServeQuestion) -> Iterator[str]:
    longest = asked.lengths.longest
    if asked.model.max_context and longest > asked.model.max_context:
        yield f"{longest} tokens exceed the {asked.model.max_context} of the configuration"


def _best(
    asked: ServeQuestion, work: ModelWork, engine: Engine, mode: str, offer: GpuOffer
) -> tuple[list[ServingOption], list[RejectedOption]]:
    """The plan, if there is one, and what was rejected."""
    rejected: list[RejectedOption] = []

    def reject(layout: str, reason: str) -> None:
        rejected.append(RejectedOption(engine.name, mode, offer.gpu.model, layout, reason))

    if reason := unsupported(engine, mode, asked.model, asked.weights, offer.gpu):
        reject("", reason)
        return [], rejected
    found: list[tuple[int, int, ServingOption]] = []
    if mode == AGGREGATED:
        for layout, model, room in _fitting(asked, work, engine, offer, reject):
            try:
                sized = _settled(
                    asked, engine, partial(sizing.aggregated, model, sequences=room.sequences, budget=engine.budget)
                )
            except TimesMissed as error:
                reject(str(layout), _slow(asked, error))
                continue
            role = _role(ALL, layout, offer, room, sized)
            option = _option(asked, work, engine, offer, (role,), sized)
            found.append((option.gpus, option.tpot_us, option))
    else:
        found += _disaggregated(asked, work, engine, offer, reject)
    found.sort(key=lambda one: one[:2])
    for position, (_, _, option) in enumerate(found):
        layouts = " + ".join(f"{role.replicas}x {role.layout}" for role in option.roles)
        if reason := _too_much(asked, offer, option):
            reject(layouts, reason)
        else:
            for _, _, other in found[position + 1 :]:
                reject(
                    " + ".join(f"{role.replicas}x {role.layout}" for role in other.roles),
                    f"no fewer GPUs: {other.gpus}, and {layouts} needs {option.gpus}",
                )
            return [option], rejected
    return [], rejected


def _fitting(
    asked: ServeQuestion, work: ModelWork, engine: Engine, offer: GpuOffer, reject: Reject
) -> Iterator[tuple[InstanceLayout, StepModel, CacheRoom]]:
    lengths = _lengths(asked, asked.lengths.input)
    held = 0
    for layout in candidates.layouts(asked.model, offer, asked.tp, asked.pp):
        if held and layout.pp > held:
            # Further stages only lengthen the time of a token.
            return
        if reason := candidates.refusal(asked.model, layout, offer):
            reject(str(layout), reason)
            continue
        ranks = layout.tp * layout.dp
        speed = rates(offer.gpu, asked.weights, ranks)
        if speed is None:
            reject(str(layout), f"the speed of {offer.gpu.model} is not known")
            return
        room = cache_room(work, layout, offer.gpu, engine, lengths, asked.lengths.longest)
        if not room.sequences:
            each = f"{room.bytes_per_gpu / _GB:.1f} GB" if room.bytes_per_gpu > 0 else "nothing"
            reject(
                str(layout),
                f"does not fit: weights leave {each} of each GPU for a cache of {asked.lengths.longest} tokens",
            )
            continue
        held = layout.pp
        yield layout, StepModel(work, layout, speed, engine.efficiency), room


def _disaggregated(
    asked: ServeQuestion, work: ModelWork, engine: Engine, offer: GpuOffer, reject: Reject
) -> Iterator[tuple[int, int, ServingOption]]:
    """Prefill and decode with layouts of their own: of each role the layout with the fewest GPUs."""
    prefills: list[tuple[int, float, RolePlan, SizedRole]] = []
    decodes: list[tuple[int, float, RolePlan, SizedRole]] = []
    for layout, model, room in _fitting(asked, work, engine, offer, reject):
        hand_over_s = work.cached(asked.lengths.input_p95, 1) / layout.tp / (asked.transfer_mb_per_s * 1e6)
        for role, into in ((PREFILL, prefills), (DECODE, decodes)):
            try:
                if role == PREFILL:
                    size = partial(sizing.prefill, model, budget=engine.budget, hand_over_s=hand_over_s)
                    sized = _settled(asked, engine, size)
                else:
                    sized = sizing.decode(model, _wanted(asked, engine, 1), room.sequences)
            except TimesMissed as error:
                reject(f"{role} {layout}", _slow(asked, error))
                continue
            planned = _role(role, layout, offer, room, sized)
            into.append((sized.replicas * layout.gpus, sized.ttft_s + sized.tpot_s, planned, sized))
    if prefills and decodes:
        (_, _, first, before), (_, _, second, after) = (min(one, key=lambda x: x[:2]) for one in (prefills, decodes))
        # The step of decoding until the first token takes what it really takes.
        ttft_s = before.ttft_s - asked.tpot_us / 1e6 + after.tpot_s
        both = replace(after, ttft_s=ttft_s, most_rate=min(before.most_rate, after.most_rate))
        option = _option(asked, work, engine, offer, (first, second), both)
        yield option.gpus, option.tpot_us, option


def _settled(asked: ServeQuestion, engine: Engine, size: Callable[[WantedTimes], SizedRole]) -> SizedRole:
    """The replicas, once their number decides how much of a prompt each finds in its cache."""
    first = size(_wanted(asked, engine, 1))
    return size(_wanted(asked, engine, first.replicas)) if first.replicas > 1 and asked.reuse_percent else first


def _wanted(asked: ServeQuestion, engine: Engine, replicas: int) -> WantedTimes:
    share = 1.0 if engine.routes_prefixes else 1.0 / replicas
    return WantedTimes(
        asked.rate,
        asked.ttft_ms / 1000,
        asked.tpot_us / 1e6,
        _lengths(asked, asked.lengths.input, share),
        _lengths(asked, asked.lengths.input_p95, share),
    )


def _lengths(asked: ServeQuestion, prompt: float, share: float = 1.0) -> Lengths:
    computed = max(1.0, prompt * (1 - asked.reuse_percent / 100 * share))
    return Lengths(prompt, computed, asked.lengths.output)


def _role(role: str, layout: InstanceLayout, offer: GpuOffer, room: CacheRoom, sized: SizedRole) -> RolePlan:
    return RolePlan(
        role, sized.replicas, layout, layout.gpus, _nodes(layout, offer), room.tokens, sized.concurrency,
        ceil(sized.running),
    )  # fmt: skip


def _nodes(layout: InstanceLayout, offer: GpuOffer) -> int:
    return layout.pp if layout.tp * layout.dp * 2 > offer.gpus_per_node and layout.pp > 1 else 1


def _option(
    asked: ServeQuestion,
    work: ModelWork,
    engine: Engine,
    offer: GpuOffer,
    roles: tuple[RolePlan, ...],
    sized: SizedRole,
) -> ServingOption:
    gpus = sum(role.replicas * role.gpus_each for role in roles)
    price = offer.micro_usd_per_gpu_hour
    an_hour = None if price is None else price * gpus
    a_million = None if an_hour is None else round(an_hour * 1e6 / (asked.rate * asked.lengths.output * _HOUR_S))
    read_s = max(work.loaded_bytes / (asked.load_mb_per_s * 1e6 * role.nodes_each) for role in roles)
    return ServingOption(
        engine.name, AGGREGATED if len(roles) == 1 else DISAGGREGATED, offer.gpu.model, roles, gpus,
        _all_nodes(roles, offer), ceil(sized.ttft_s * 1000), ceil(sized.tpot_s * 1e6),
        int(sized.most_rate * asked.lengths.output), ceil(read_s + engine.init_s), an_hour, a_million,
        engine.advice, engine.error_percent,
    )  # fmt: skip


def _all_nodes(roles: tuple[RolePlan, ...], offer: GpuOffer) -> int:
    """Nodes that the instances fill, each role on nodes of its own but for the last node of each."""
    loose = 0
    whole = 0
    for role in roles:
        if role.nodes_each > 1:
            whole += role.replicas * role.nodes_each
            continue
        each_node = max(1, offer.gpus_per_node // role.gpus_each)
        whole += role.replicas // each_node
        loose += role.replicas % each_node * role.gpus_each
    return whole + -(-loose // offer.gpus_per_node)


def _too_much(asked: ServeQuestion, offer: GpuOffer, option: ServingOption) -> str:
    if option.nodes > offer.nodes:
        return f"{option.gpus} GPUs of {option.nodes} nodes hold the times, and {offer.nodes} are at hand"
    if asked.price_limit is not None:
        if option.micro_usd_per_hour is None:
            return f"the price of {offer.gpu.model} is not known, and there is a limit"
        if option.micro_usd_per_hour > asked.price_limit:
            limit = asked.price_limit / 1e6
            return f"{option.micro_usd_per_hour / 1e6:.2f} dollars per hour, and the limit is {limit:.2f}"
    return ""


def _slow(asked: ServeQuestion, error: TimesMissed) -> str:
    return f"{error}; {asked.ttft_ms} ms to the first and {asked.tpot_us / 1000:g} ms for each token are wanted"


def _nearest(asked: ServeQuestion, work: ModelWork) -> str:
    """What would hold the model: more GPUs of the same kind, else the GPU model that does with the fewest."""
    for offer in asked.offers:
        more = GpuOffer(offer.gpu, _MOST_NODES, max(8, offer.gpus_per_node))
        if layout := _holding(asked, work, more):
            return f"{layout.gpus} x {offer.gpu.model} ({layout})"
    found = [
        (layout.gpus, gpu.usable_mib, gpu.model, layout)
        for gpu in GPUS
        if (layout := _holding(asked, work, GpuOffer(gpu, _MOST_NODES, 8)))
    ]
    if not found:
        return f"none of {_MOST_NODES} nodes with {asked.lengths.longest} tokens of context: use a smaller format"
    gpus, _, model, layout = min(found)
    return f"{gpus} x {model} ({layout})"


def _holding(asked: ServeQuestion, work: ModelWork, offer: GpuOffer) -> InstanceLayout | None:
    """The layout with the fewest GPUs that holds the model and one sequence."""
    engine = BY_NAME[asked.engines[0]]
    lengths = _lengths(asked, asked.lengths.input)
    fitting = [
        layout
        for layout in candidates.layouts(asked.model, offer, asked.tp, asked.pp)
        if not candidates.refusal(asked.model, layout, offer)
        and cache_room(work, layout, offer.gpu, engine, lengths, asked.lengths.longest).sequences
    ]
    return min(fitting, key=lambda one: (one.gpus, one.pp, one.dp)) if fitting else None
