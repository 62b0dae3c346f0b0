# SPDX-License-Identifier: Apache-2.0
"""The records of advice: what a rule is, what it proposes, and what a user gets for a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from dovetail.advice.sizing.market import HourPrice
from dovetail.advice.sizing.seen import JobSeen
from dovetail.advice.sizing.workload import Workload
from dovetail.monitoring.engine_load import EngineLoad

Verdict = Literal["advice", "right-sized", "not enough data"]
ChangeKind = Literal["gpus", "mig", "instance", "share", "part", "cpu", "host", "select", "annotate"]


class SizeChange(Struct, frozen=True):
    """What changes in a manifest. gpus: a pod requests `amount` GPUs. mig: an instance of the profile whose resource is
    `resource`, in place of each GPU; instance: in place of one of another profile. share: a shared GPU, of whose memory
    it takes `amount` MiB; part: a smaller share, of `amount` MiB or the fraction `value`. cpu: each GPU gets
    `amount` times the CPUs. host: a pod requests `amount` thousandths of a CPU and `value` of memory of its node, where
    they are not 0 or "". select: only nodes whose label `key` is `value`. annotate: the annotation `key` of pods is
    `value`."""

    kind: ChangeKind
    amount: int = 0
    resource: str = ""
    key: str = ""
    value: str = ""


class SizeProposal(Struct, frozen=True):
    """What a rule proposes for a job. `saves_milli` is the part of the GPU time that is saved, in thousandths; `now`
    and `then` are what an hour costs before and after a move, if both are known. `gain` states what there is to win
    where no saving is known, or what else there is."""

    cause: str
    action: str
    saves_milli: int = 0
    now: HourPrice | None = None
    then: HourPrice | None = None
    gain: str = ""
    change: SizeChange | None = None


class SizingRule(Struct, frozen=True):
    """`proposes` is None for a job to which the rule does not apply. `early`: it does not need the data of a week.
    `beside`: it is advised beside others; of all other rules, the first that applies is. `falsifier` is what would show
    that the advice was wrong; `source` is where the rule is from."""

    name: str
    title: str
    when: str
    risk: str
    falsifier: str
    source: str
    proposes: Callable[[JobSeen], SizeProposal | None]
    early: bool = False
    beside: bool = False


class Saving(Struct, frozen=True):
    """What would have been saved in the window: GPU-seconds, and money where a price is known, in
    millionths of the currency. `price_date` is the date of the price."""

    gpu_s: int
    cost_micro: int | None = None
    currency: str = ""
    price_date: str = ""


class SizingAdvice(Struct, frozen=True):
    """One piece of advice. See SizingRule and SizeProposal for the fields."""

    rule: str
    title: str
    cause: str
    action: str
    gain: str
    risk: str
    falsifier: str
    saving: Saving
    change: SizeChange | None = None


class JobAdvice(Struct, frozen=True):
    """What was seen of a job in the window from `start_ms` to `end_ms`, and what is advised. Thousandths of real use:
    `p50_milli`, `p95_milli` (upper edges of a twentieth), `mean_milli`, `idle_milli`; `least_milli` and `most_milli`
    are the lowest and the highest mean of its GPUs. `held_gpu_s` is what
    it held, in GPU-seconds, and `coverage_milli` the part of that time that was measured.
    `memory_mib` is the usable memory of a GPU, 0 if the model is not known. `bottleneck` is the class and
    `meaning` what that is. `missing` is why
    there is not enough data. `host_cpu_milli` and `host_memory_mib` are what its pods used of the CPUs of their nodes
    in the busiest hour, and their most memory, for each device; 0 where that was not measured."""

    job: str
    user: str
    queue: str
    workload: Workload
    verdict: Verdict
    start_ms: int
    end_ms: int
    days: int
    runs: int
    pods: int
    gpus_milli: int
    model: str
    held_gpu_s: int
    coverage_milli: int
    p50_milli: int
    p95_milli: int
    mean_milli: int
    idle_milli: int
    least_milli: int
    most_milli: int
    memory_peak_mib: int
    memory_mib: int
    bottleneck: str
    meaning: str
    missing: str = ""
    advice: tuple[SizingAdvice, ...] = ()
    host_cpu_milli: int = 0
    host_memory_mib: int = 0


Followed = Literal["changed", "cleared", "unchanged", "gone", "too early"]


class EarlierAdvice(Struct, frozen=True):
    """Advice of the time `advised_ms`, and what happened since then. changed: the job holds something else.
    cleared: it holds the same, and the rule does not apply any more. unchanged: the rule still applies. gone: it held
    nothing since. too early: less than a day was measured. `held` and `held_now` are what a pod held, in words;
    `mean_milli` is the mean real use, `gpu_s_per_day` what the job held in a day, and `..._now` the same since then."""

    job: str
    rule: str
    advised_ms: int
    followed: Followed
    held: str
    held_now: str
    mean_milli: int
    mean_now_milli: int
    gpu_s_per_day: int
    gpu_s_per_day_now: int


class JobAdviceList(Struct, frozen=True):
    """The advice for the jobs of a period. `earlier` is what became of advice in a record, `engines` the load of
    inference engines now, with what is found in it; None where it was not read."""

    now_ms: int
    start_ms: int
    end_ms: int
    jobs: tuple[JobAdvice, ...]
    earlier: tuple[EarlierAdvice, ...] = ()
    engines: tuple[EngineLoad, ...] | None = None
