# SPDX-License-Identifier: Apache-2.0
"""The pages about the past: costs, waste, advice, and the past of a job, made of the answers of `dovetail cost`,
`idle`, `advise`, `history` and `queue budgets`.

Rules: a question has the options of its command as they are by default. A page for users of one namespace is made of
answers for that namespace alone, which are redacted where they are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from dovetail.advice.sizing.rule import JobAdvice, JobAdviceList
from dovetail.cost.cost_lines import CostLine, cost_lines
from dovetail.cost.costs import CostAnswer
from dovetail.cost.idle_pods import IdleList, IdleRow
from dovetail.cost.utilization import Utilization
from dovetail.dashboard.page_types import Asking, Page
from dovetail.dashboard.past_page_types import (
    AdvicePage,
    AdvisedJob,
    BudgetsPage,
    CostGroup,
    CostPage,
    IdleHolder,
    IdlePage,
    JobUsePage,
    TeamTrend,
    TrendPage,
)
from dovetail.history.records import DAY_MS
from dovetail.historyserver.past_jobs import PastJobs
from dovetail.historyserver.questions import (
    RESOURCES,
    AdviceQuestion,
    CostQuestion,
    HistoryAsked,
    IdleQuestion,
    PastJobsQuestion,
    UseQuestion,
)
from dovetail.kube.api.resources import QUEUES, Resource
from dovetail.kube.objects.history import COSTS, IDLE_LISTS, PAST_JOBS, QUESTION, SIZE_ADVICE, USE_REPORTS
from dovetail.kube.queue_budgets import QueueBudgetUses
from dovetail.kube.reading.views import NoSuchObject

MOST_GROUPS = 2_000
"""Of a page of costs; all others are one row."""
TREND_DAYS = 7
MOST_STEPS = 200
"""The pods of a run whose times are shown."""
_OF_JOB = CostQuestion("job")
_HOUR_S, _HUNDREDTHS, _MICRO, _PER_MILLE = 3600, 100, 1_000_000, 10


def _asked(question: HistoryAsked) -> tuple[Resource, dict[str, str]]:
    return RESOURCES[type(question)], {QUESTION: msgspec.json.encode(question).decode()}


async def cost(ask: Asking, fabric: Sequence[str], name: str) -> CostPage:
    """The costs by group and period: BY/PERIOD."""
    by, _, period = name.partition("/")
    resource, query = _asked(CostQuestion(by, period, limit=MOST_GROUPS))
    answer = await ask(resource, CostAnswer, query)
    lines, total = cost_lines(answer)
    return CostPage(
        answer.by, answer.start_ms, answer.end_ms, answer.asked_start_ms, answer.asked_end_ms, answer.currency,
        tuple(map(_group, lines)), _group(total), answer.others, answer.prices, answer.unpriced, answer.coverage,
    )  # fmt: skip


def _group(line: CostLine) -> CostGroup:
    def money(name: str) -> float | None:
        cents = line.known(name)
        return cents / _HUNDREDTHS if cents is not None else None

    def hours(name: str) -> float:
        return line.hours[name] / _HUNDREDTHS

    return CostGroup(
        line.row.name, line.row.kind, money("cost"), line.share, money("allocated"), money("used"), money("idle"),
        money("unmeasured"), money("unallocated"), money("unhealthy"), line.gpu_hours / _HUNDREDTHS, hours("allocated"),
        hours("used"), hours("idle"), hours("unmeasured"), hours("unallocated"), hours("unhealthy"), hours("unpriced"),
        line.row.jobs, line.row.pods,
    )  # fmt: skip


def idle_question() -> tuple[Resource, dict[str, str]]:
    """What the page Waste asks about idle pods: the resource, and the query."""
    return _asked(IdleQuestion())


async def idle(ask: Asking, fabric: Sequence[str], name: str) -> IdlePage:
    """The pods that hold GPUs and do not use them."""
    resource, query = idle_question()
    found = await ask(resource, IdleList, query)
    return IdlePage(
        round(found.now.timestamp() * 1000), tuple(map(_holder, found.pods)), _hours(found.gpu_s),
        _money(found.cost_micro) or 0.0, found.currency, found.price_date, found.not_measured, found.elsewhere,
        _hours(found.elsewhere_gpu_s),
    )  # fmt: skip


def _holder(row: IdleRow) -> IdleHolder:
    return IdleHolder(
        row.pod, row.job, row.kind, row.user, row.queue, row.node, row.held, row.unused,
        round(row.since.timestamp() * 1000), row.at_least, row.ever_used, _hours(row.gpu_s), _money(row.cost_micro),
        row.coverage_milli / _PER_MILLE, row.action,
    )  # fmt: skip


async def advice(ask: Asking, fabric: Sequence[str], name: str) -> AdvicePage:
    """What is advised on the size of jobs."""
    resource, query = _asked(AdviceQuestion())
    found = await ask(resource, JobAdviceList, query)
    rows = tuple(row for one in found.jobs for row in _advised(one))
    unjudged = sum(one.verdict == "not enough data" for one in found.jobs)
    return AdvicePage(found.start_ms, found.end_ms, rows, len(found.jobs), unjudged)


def _advised(job: JobAdvice) -> tuple[AdvisedJob, ...]:
    return tuple(
        AdvisedJob(
            job.job, job.user, job.queue, one.title, one.cause, one.action, one.gain, one.risk,
            _hours(one.saving.gpu_s), _money(one.saving.cost_micro), one.saving.currency, one.saving.price_date,
            job.gpus_milli, job.model, job.mean_milli / _PER_MILLE, _hours(job.held_gpu_s),
        )
        for one in job.advice
    )  # fmt: skip


async def job_use(ask: Asking, fabric: Sequence[str], name: str) -> JobUsePage:
    """The past of the job NAMESPACE/NAME: its runs, its use and its costs."""
    resource, query = _asked(PastJobsQuestion((name,)))
    past = await ask(resource, PastJobs, query)
    runs = tuple(replace(one, steps=one.steps[:MOST_STEPS]) for one in past.jobs if one.job == name)
    resource, query = _asked(_OF_JOB)
    costs = await ask(resource, CostAnswer, query)
    groups = [line for line in cost_lines(costs)[0] if line.row.name == name and line.row.kind == "group"]
    used: JobAdvice | None = None
    with suppress(NoSuchObject):
        resource, query = _asked(AdviceQuestion((name,)))
        used = next(iter((await ask(resource, JobAdviceList, query)).jobs), None)
    page = JobUsePage(
        costs.start_ms, costs.end_ms, runs, _group(groups[0]) if groups else None, costs.currency
    )  # fmt: skip
    if used is None:
        return page
    return replace(
        page, model=used.model, mean_percent=used.mean_milli / _PER_MILLE, p95_percent=used.p95_milli / _PER_MILLE,
        idle_percent=used.idle_milli / _PER_MILLE, measured_percent=used.coverage_milli / _PER_MILLE,
        memory_peak_mib=used.memory_peak_mib, memory_mib=used.memory_mib, bottleneck=used.bottleneck,
        meaning=used.meaning, advice=_advised(used),
    )  # fmt: skip


async def trend(ask: Asking, fabric: Sequence[str], name: str) -> TrendPage:
    """The queues on each of the last whole days."""
    # A period in days ends with the day of its end, which may not be over.
    resource, query = _asked(UseQuestion("day", f"{TREND_DAYS + 1}d"))
    asked = await ask(resource, Utilization, query)
    days = [row.name for row in asked.rows if row.kind == "group"]
    if asked.end_ms % DAY_MS:
        days = days[:-1]
    days = days[-TREND_DAYS:]
    found: dict[str, list[tuple[float, float]]] = {}
    for at, day in enumerate(days):
        resource, query = _asked(UseQuestion("queue", day, limit=MOST_GROUPS))
        for row in (await ask(resource, Utilization, query)).rows:
            if row.kind == "group":
                hours = found.setdefault(row.name, [(0.0, 0.0)] * len(days))
                hours[at] = _hours(row.allocated_gpu_s), _hours(row.used_gpu_s)
    return TrendPage(
        tuple(days),
        tuple(TeamTrend(queue, *map(tuple, zip(*hours, strict=True))) for queue, hours in sorted(found.items())),
    )


async def budgets(ask: Asking, fabric: Sequence[str], name: str) -> BudgetsPage:
    """The budgets of the queues, and what was used of them."""
    return BudgetsPage((await ask(QUEUES, QueueBudgetUses)).budgets)


def _hours(gpu_s: int) -> float:
    return round(gpu_s / _HOUR_S, 2)


def _money(micro: int | None) -> float | None:
    return round(micro / _MICRO, 2) if micro is not None else None


PAST_PAGES: Mapping[str, Page] = {"idle": idle, "advice": advice, "trend": trend, "budgets": budgets}
OF_PAST: Mapping[str, Page] = {"cost": cost, "past": job_use}
"""The pages of a period, and of a job."""
NEEDED: Mapping[str, tuple[Resource, ...]] = {
    "idle": (IDLE_LISTS,),
    "advice": (SIZE_ADVICE,),
    "trend": (USE_REPORTS,),
    "budgets": (QUEUES,),
    "cost": (COSTS,),
    "past": (PAST_JOBS, COSTS, SIZE_ADVICE),
}
"""What a user must be allowed to list to see each."""
