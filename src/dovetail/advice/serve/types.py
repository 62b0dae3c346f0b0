# SPDX-License-Identifier: Apache-2.0
"""The question and the answer of a plan of serving."""

from __future__ import annotations

from msgspec import Struct

from dovetail.advice.architecture import Architecture
from dovetail.advice.gpus import GpuProduct
from dovetail.advice.serve.request_lengths import RequestLengths
from dovetail.advice.serve.roofline import InstanceLayout

AGGREGATED, DISAGGREGATED = "aggregated", "disaggregated"
MODES = (AGGREGATED, DISAGGREGATED)
CACHES = ("bf16", "fp16", "fp8")
"""Formats of the KV cache that the engines have."""
ALL, PREFILL, DECODE = "all", "prefill", "decode"


class GpuOffer(Struct, frozen=True):
    """GPUs that a plan may use: `nodes` nodes of `gpus_per_node`. The price is that of a GPU-hour in millionths of a
    dollar, None if unknown; `price_of` has its source."""

    gpu: GpuProduct
    nodes: int
    gpus_per_node: int
    micro_usd_per_gpu_hour: int | None = None
    price_of: str = ""


class ServeQuestion(Struct, frozen=True):
    """What is to be served: `rate` requests per second of these lengths, `reuse_percent` of each prompt in the cache of
    prefixes, with these times wanted, and so many LoRA adapters of this rank at a time. `tp` and `pp` None: free.
    `price_limit` is in millionths of a dollar for an hour, None: none. `load_mb_per_s` is the rate at which a node
    reads weights, `transfer_mb_per_s` that of a GPU to those of another node."""

    model: Architecture
    name: str
    rate: float
    lengths: RequestLengths
    ttft_ms: int
    tpot_us: int
    offers: tuple[GpuOffer, ...]
    engines: tuple[str, ...]
    modes: tuple[str, ...]
    weights: str
    cache: str
    reuse_percent: int = 0
    adapters: int = 0
    adapter_rank: int = 16
    tp: int | None = None
    pp: int | None = None
    price_limit: int | None = None
    load_mb_per_s: int = 2000
    transfer_mb_per_s: int = 50_000


class RolePlan(Struct, frozen=True):
    """The instances of a role: `all`, or `prefill` and `decode`. Of each: its layout, GPUs and nodes, the tokens of
    its KV cache, the sequences that it can hold at the wanted times (`concurrency`) and those that run at the rate
    (`running`)."""

    role: str
    replicas: int
    layout: InstanceLayout
    gpus_each: int
    nodes_each: int
    kv_tokens: int
    concurrency: int
    running: int


class ServingOption(Struct, frozen=True):
    """A plan that holds the wanted times. `tokens_per_s` are the output tokens at which it still does. The price for a
    million output tokens is at the rate of the question; None: the price of the GPU is not known. `start_s` is from the
    start of a pod until its instance answers. `because` is when to choose this engine, `error_percent` the median error
    of throughput in the check of this engine against published measurements."""

    engine: str
    mode: str
    gpu: str
    roles: tuple[RolePlan, ...]
    gpus: int
    nodes: int
    ttft_ms: int
    tpot_us: int
    tokens_per_s: int
    start_s: int
    micro_usd_per_hour: int | None
    micro_usd_per_million_tokens: int | None
    because: str
    error_percent: int


class RejectedOption(Struct, frozen=True):
    """What was not planned, and the rule that it fails; an empty field stands for all."""

    engine: str
    mode: str
    gpu: str
    layout: str
    reason: str


class WantedServing(Struct, frozen=True):
    """The question, as far as the answer repeats it."""

    rate: float
    lengths: RequestLengths
    reuse_percent: int
    ttft_ms: int
    tpot_us: int
    weights: str
    cache: str
    adapters: int
    adapter_rank: int


class TimePercentiles(Struct, frozen=True):
    """Of 50, 95 and 99 % of the requests the longest time."""

    p50: int
    p95: int
    p99: int


class SimulatedRun(Struct, frozen=True):
    """The requests of a trace through the first plan. `scaling` is `fixed` (the replicas of the plan) or `by need`.
    Times to the first token in milliseconds, and per further token in microseconds; None without a request. `met_milli`
    of a thousand requests had the wanted times, `unfinished` did not end, at most `queued` waited in queues at a time.
    `replicas` are those of each role by second, each minute; `targets` the requests of a replica of each role that
    decide the need. GPU-seconds and their price, None where it is not known, until the last arrival."""

    scaling: str
    ttft_ms: TimePercentiles | None
    tpot_us: TimePercentiles | None
    met_milli: int
    unfinished: int
    queued: int
    replicas: tuple[tuple[int, tuple[int, ...]], ...]
    targets: tuple[int, ...]
    gpu_s: int
    micro_usd: int | None


class TraceSimulation(Struct, frozen=True):
    """The simulation of the first plan with the requests of a trace: their number, the seconds from the first to the
    last, the mean rate and that of the busiest five minutes, the requests `later` than the hour that is simulated, and
    the gaps without a request, from which second to which."""

    requests: int
    seconds: int
    mean_rate: float
    peak_rate: float
    later: int
    gaps: tuple[tuple[int, int], ...]
    runs: tuple[SimulatedRun, ...]


class ServePlan(Struct, frozen=True):
    """Plans, the cheapest first, or that of the fewest GPUs where prices are not known. `nearest` is what would hold
    the model where nothing does, else empty. `choice` is the first against the best of another engine. `simulation` is
    that of a trace, None without one."""

    model: str
    wanted: WantedServing
    options: tuple[ServingOption, ...]
    rejected: tuple[RejectedOption, ...]
    nearest: str
    choice: str
    notes: tuple[str, ...]
    simulation: TraceSimulation | None = None
