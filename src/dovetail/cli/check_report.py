# SPDX-License-Identifier: Apache-2.0
"""The answer of `dovetail check`, and its five lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from dovetail.advice.lint.rule import Severity
from dovetail.cli.change_prices import PricedJob, PricedWhatIf
from dovetail.cli.console import Console
from dovetail.cli.lint.report import ReportedFinding, counted
from dovetail.cli.money import money, price_of, unpriced
from dovetail.cli.output import count, foreign, gpus, span, start
from dovetail.cli.whatif_report import places_of
from dovetail.core.reasons import When
from dovetail.views.whatif_types import WhatifOutcome

CheckVerdict = Literal["now", "later", "unknown", "never", "not read"]
_ORDER: tuple[CheckVerdict, ...] = ("now", "later", "unknown", "never")
_MOST_JOBS = 2
_SLOW_PERCENT = 90
"""Of the most bandwidth that as many GPUs of the node can have: a placement below this is slow."""


class ManifestCheck(Struct, frozen=True):
    """`verdict` is that of the job that starts last: now, later (its start is expected), unknown (it waits, until when
    is not known), never; `not read` if the manifests cannot be read, and then there is no `placement`. `findings` are
    those of lint, the worst first. `change` is what to do first, "" for nothing."""

    verdict: CheckVerdict
    findings: tuple[ReportedFinding, ...]
    placement: PricedWhatIf | None
    change: str

    @property
    def runs(self) -> bool:
        """Whether it will run as far as that is known."""
        errors = any(one.level is Severity.ERROR for one in self.findings)
        return self.verdict not in ("never", "not read") and not errors


def check(findings: Sequence[ReportedFinding], placement: PricedWhatIf | None) -> ManifestCheck:
    """`placement` is None if the manifests cannot be read."""
    levels = list(Severity)
    ordered = tuple(sorted(findings, key=lambda one: levels.index(one.level)))
    if placement is None:
        return ManifestCheck("not read", ordered, None, _of_finding(ordered[0]) if ordered else "")
    jobs = submitted_jobs(placement)
    found = [_verdict(one) for one in jobs]
    verdict = next((one for one in reversed(_ORDER) if one in found), _ORDER[0])
    return ManifestCheck(verdict, ordered, placement, _change(ordered, jobs))


def submitted_jobs(placement: PricedWhatIf) -> list[WhatifOutcome]:
    """The jobs that the change makes, as far as they request GPUs."""
    names = {one.job for one in placement.submitted or ()}
    return [one for one in placement.jobs if one.job in names]


def _verdict(one: WhatifOutcome) -> CheckVerdict:
    if one.state == When.NEVER:
        return "never"
    if one.effect == "starts now":
        return "now"
    return "later" if one.after is not None and one.after.start_ms else "unknown"


def _change(findings: Sequence[ReportedFinding], jobs: Sequence[WhatifOutcome]) -> str:
    """The first of: an error, a job that never starts, one that waits, GPUs that are slow together, a warning."""
    worst = findings[0] if findings else None
    if worst is not None and worst.level is Severity.ERROR:
        return _of_finding(worst)
    for verdict in ("never", "unknown"):
        for one in jobs:
            if _verdict(one) == verdict:
                return f"{one.job}: {one.message}"
    for one in jobs:
        for place in one.places:
            if place.ideal_mbps and place.mbps * 100 < place.ideal_mbps * _SLOW_PERCENT:
                rate = f"{place.mbps / 1000:.0f} of {place.ideal_mbps / 1000:.0f} GB/s"
                return f"{one.job}: its GPUs on {place.node} have {rate} between them: require NVLink, or wait"
    return _of_finding(worst) if worst is not None and worst.level is Severity.WARNING else ""


def _of_finding(one: ReportedFinding) -> str:
    place = f"{one.file}:{one.line}" if one.line else one.file
    fix = "; `dovetail lint --fix` does it" if one.fixable else ""
    return f"{place}: {one.rule}: {one.message}{fix}"


def show(answer: ManifestCheck, console: Console) -> None:
    """Print the five lines."""
    found = answer.placement
    jobs = submitted_jobs(found) if found is not None else []
    lines = {
        "runs": _runs(answer, jobs),
        "where": "; ".join(f"{one.job}: {places_of(one)}" for one in jobs[:_MOST_JOBS] if one.places) or "not known",
        "price": _price(found),
        "lint": counted(answer.findings) + ("; see `dovetail lint`" if answer.findings else ""),
        "change": answer.change or "nothing",
    }
    for name, text in lines.items():
        console.print(f"[bold]{name:<7}[/bold] {foreign(text)}", highlight=False)


def _runs(answer: ManifestCheck, jobs: Sequence[WhatifOutcome]) -> str:
    if answer.placement is None:
        return "not checked: the manifests cannot be read"
    if not jobs:
        return "no pod in it requests GPUs"
    last = max(jobs, key=lambda one: (_ORDER.index(_verdict(one)), one.after.start_ms if one.after is not None else 0))
    now = sum(_verdict(one) == "now" for one in jobs)
    total = sum(one.gpus_milli for one in jobs)
    whole = f"{count(len(jobs), 'job')} with {gpus(total)} GPUs"
    if now == len(jobs):
        return f"now: {whole}"
    some = f"{now} of {whole} now; " if len(jobs) > 1 else ""
    if _verdict(last) == "never":
        return f"{some}{last.job} never: {last.message}"
    return f"{some}{last.job} {start(last.after, answer.placement.now_ms)}: {last.message}"


def _price(found: PricedWhatIf | None) -> str:
    if found is None or found.price is None:
        return "not known"
    if not found.price.jobs:
        return "nothing: it holds no GPUs"
    priced = [one for one in found.price.jobs if one.per_hour_micro is not None]
    if not priced:
        return f"not known: {unpriced(found.price.jobs[0])}"
    currency = found.price.currency
    hour = money(sum(one.per_hour_micro or 0 for one in priced), currency)
    rest = "" if len(priced) == len(found.price.jobs) else ", of that part of it that has a price"
    return f"{hour} an hour{rest}{_at_most(priced, currency)}; {price_of(priced[0])}"


def _at_most(priced: Sequence[PricedJob], currency: str) -> str:
    if any(one.cost_micro is None for one in priced):
        return ""
    cost = money(sum(one.cost_micro or 0 for one in priced), currency)
    return f", at most {cost} in its run-time limit of {span(max(one.run_ms for one in priced))}"
