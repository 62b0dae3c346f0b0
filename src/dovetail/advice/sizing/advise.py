# SPDX-License-Identifier: Apache-2.0
"""The advice for each job: the first rule that applies, and those beside it, or that there is not enough data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dovetail.advice.sizing import parts
from dovetail.advice.sizing import thresholds as limits
from dovetail.advice.sizing.market import NO_MARKET, Market
from dovetail.advice.sizing.rule import JobAdvice, Saving, SizeProposal, SizingAdvice, SizingRule, Verdict
from dovetail.advice.sizing.rules import RULES
from dovetail.advice.sizing.seen import JobSeen, percent, seen_of
from dovetail.history.job_use import JobsUse

GPU_SECOND = 1000 * 1000
"""Thousandths of a GPU times milliseconds."""
HOUR_S = 3600


def advise(uses: JobsUse, market: Market = NO_MARKET) -> tuple[JobAdvice, ...]:
    """The advice for each job of the window, by namespace and name."""
    return tuple(advice_for(seen) for seen in seen_of(uses, market))


def advice_for(seen: JobSeen) -> JobAdvice:
    use, total = seen.use, seen.total
    found = tuple(_advice(seen, rule, proposal) for rule, proposal in applying(seen))
    missing = _missing(seen)
    verdict: Verdict = "advice" if found else "not enough data" if missing else "right-sized"
    means = [one.mean_milli for one in seen.members]
    return JobAdvice(
        job=f"{use.namespace}/{use.name}", user=use.latest.user, queue=use.latest.queue, workload=seen.workload,
        verdict=verdict, start_ms=use.window.start_ms, end_ms=use.window.end_ms, days=len(total.days), runs=use.runs,
        pods=use.pods, gpus_milli=use.gpus_milli, model=seen.model, held_gpu_s=use.held_gpu // GPU_SECOND,
        coverage_milli=use.coverage_milli, p50_milli=seen.p50, p95_milli=seen.p95, mean_milli=total.mean_milli,
        idle_milli=total.idle_milli, least_milli=min(means, default=0), most_milli=max(means, default=0),
        memory_peak_mib=total.memory_peak_mib, memory_mib=seen.gpu.usable_mib if seen.gpu is not None else 0,
        bottleneck=seen.bottleneck.name, meaning=seen.bottleneck.meaning,
        missing=missing, advice=found, host_cpu_milli=total.host_cpu_milli, host_memory_mib=total.host_memory_mib,
    )  # fmt: skip


def applying(seen: JobSeen) -> Iterator[tuple[SizingRule, SizeProposal]]:
    """The rules that apply to a job, with what they propose."""
    decided = False
    for rule in RULES:
        if (
            (rule.beside or not decided)
            and (seen.enough or rule.early)
            and (proposal := rule.proposes(seen)) is not None
        ):
            decided = decided or not rule.beside
            yield rule, proposal


def _missing(seen: JobSeen) -> str:
    """What advice on the size would need and there is not."""
    if seen.enough:
        return _not_examined(seen)
    days, runs, coverage = len(seen.total.days), seen.use.runs, seen.use.coverage_milli
    if coverage < limits.LEAST_COVERAGE:
        shared = "; of a shared GPU that needs the agent's function `processes`, and no MPS" if seen.shared else ""
        return f"{percent(coverage)} of the time was measured; {percent(limits.LEAST_COVERAGE)} are needed{shared}"
    return f"measured days: {days}, runs: {runs}; {limits.FEWEST_DAYS} days or {limits.FEWEST_RUNS} runs are needed"


def _not_examined(seen: JobSeen) -> str:
    """Why it is not known whether the size is right; "" if it is."""
    if seen.gpu is None:
        return f"the memory of a GPU of the model {seen.model or '?'} is not known"
    known = seen.whole or parts.held_profile(seen) is not None or parts.held_share(seen)
    if not known and seen.needed <= limits.FULL_PART:
        return f"{seen.needed_text} of what it holds; it is not known which smaller parts of its GPUs there are"
    return ""


def _advice(seen: JobSeen, rule: SizingRule, proposal: SizeProposal) -> SizingAdvice:
    return SizingAdvice(
        rule.name, rule.title, proposal.cause, proposal.action, proposal.gain, rule.risk, rule.falsifier,
        _saving(seen, proposal), proposal.change,
    )  # fmt: skip


def _saving(seen: JobSeen, proposal: SizeProposal) -> Saving:
    held_s = seen.use.held_gpu // GPU_SECOND
    saved_s = seen.use.held_gpu * proposal.saves_milli // (1000 * GPU_SECOND)
    now, then = proposal.now, proposal.then
    if now is not None and then is not None and now.currency == then.currency:
        return Saving(saved_s, held_s * (now.micro - then.micro) // HOUR_S, now.currency, min(now.date, then.date))
    price = seen.market.model(seen.gpu.model) if saved_s and seen.gpu is not None else None
    if price is None:
        return Saving(saved_s)
    return Saving(saved_s, saved_s * price.micro // HOUR_S, price.currency, price.date)


def by_saving(jobs: tuple[JobAdvice, ...]) -> tuple[JobAdvice, ...]:
    """The jobs with advice first, those with the largest saving before the others."""

    def order(one: JobAdvice) -> tuple[bool, int, int, int, str]:
        micro, _ = saved_cost([one]) or (0, "")
        return not one.advice, -saved_gpu_s(one), -micro, -one.held_gpu_s, one.job

    return tuple(sorted(jobs, key=order))


def saved_gpu_s(job: JobAdvice) -> int:
    """What all the advice for a job would have saved, in GPU-seconds."""
    return sum(one.saving.gpu_s for one in job.advice)


def saved_cost(jobs: Iterable[JobAdvice]) -> tuple[int, str] | None:
    """The same of jobs in money, as far as prices are known: millionths of the currency, of which an answer has one."""
    savings = [one.saving for job in jobs for one in job.advice if one.saving.cost_micro is not None]
    return (sum(one.cost_micro or 0 for one in savings), savings[0].currency) if savings else None
