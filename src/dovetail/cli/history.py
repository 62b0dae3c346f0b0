# SPDX-License-Identifier: Apache-2.0
"""`dovetail history`."""

from __future__ import annotations

from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from dovetail.cli.console import Console
from dovetail.cli.history_columns import COLUMNS, HistoryJob, job_row
from dovetail.cli.history_store import opened, store_option
from dovetail.cli.listing import ListForm, list_options, selector_option, write_answer, write_rows
from dovetail.history.jobs import OUTCOMES, PastJob, past_jobs
from dovetail.history.records import DAY_MS, Period

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dovetail.core.model import Requirement
    from dovetail.history.records import PodRecord

_DEFAULT_MS = 7 * DAY_MS


class _Times(click.ParamType[Any]):
    """A time as RFC 3339, or how long before the end of what is known, as in 7d."""

    name = "TIME|DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[bool, int]:
        from dovetail.kube.translate.annotations import duration_ms

        try:
            return False, duration_ms(value)
        except ValueError:
            pass
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no duration such as 7d, and no time such as 2026-01-31T12:00:00Z", param, ctx)
        if moment.tzinfo is None:
            self.fail(f"{value!r} has no time zone: end it with Z for UTC", param, ctx)
        return True, round(moment.timestamp() * 1000)


def _outcomes(text: str) -> tuple[str, ...]:
    known = {one.lower(): one for one in OUTCOMES}
    found = [one.strip().lower() for one in text.split(",")] if text else []
    for one in found:
        if one not in known:
            raise click.BadParameter(f"there is no outcome {one!r}; there are {', '.join(OUTCOMES)}")
    return tuple(known[one] for one in found)


class _JobFilter(Struct, frozen=True):
    """Which jobs are listed."""

    names: tuple[str, ...]
    namespace: str
    users: tuple[str, ...]
    queue: str
    outcomes: tuple[str, ...]
    labels: tuple[Requirement, ...]

    def wants(self, job: PastJob) -> bool:
        if self.names and not any(_names(name, job.job) for name in self.names):
            return False
        if self.namespace and job.job.partition("/")[0] != self.namespace:
            return False
        if self.users and job.user not in self.users:
            return False
        if self.queue and job.queue != self.queue:
            return False
        return not self.outcomes or job.outcome in self.outcomes


def _names(pattern: str, job: str) -> bool:
    return fnmatchcase(job if "/" in pattern else job.partition("/")[2], pattern)


@click.command(name="history")
@click.argument("names", metavar="[[NAMESPACE/]JOB|PATTERN]...", nargs=-1)
@store_option
@click.option("-n", "--namespace", default="", help="Only jobs in this namespace. Default: all namespaces.")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Jobs of all namespaces, also with -n.")
@click.option("-u", "--user", "users", metavar="USER,USER...", default="", help="Only jobs of these users.")
@click.option("-q", "--queue", default="", help="Only jobs in this queue.")
@click.option(
    "-s", "--outcome", "outcomes", metavar="OUTCOME,OUTCOME...", default="",
    callback=lambda _ctx, _param, text: _outcomes(text), help=f"Only jobs that ended so, of {', '.join(OUTCOMES)}.",
)  # fmt: skip
@selector_option("Only jobs with a pod that has these labels, as in app=train,tier!=test.")
@click.option(
    "--since", type=_Times(), default=None,
    help="Only jobs that were there after this time, or so long before the end of the history. Default: 7d; with "
    "names, all that is known.",
)  # fmt: skip
@click.option("--until", type=_Times(), default=None, help="Only jobs that were there before this time.")
@list_options(COLUMNS)
def command(
    names: tuple[str, ...],
    store: Path,
    namespace: str,
    everywhere: bool,
    users: str,
    queue: str,
    outcomes: tuple[str, ...],
    labels: tuple[Requirement, ...],
    since: tuple[bool, int] | None,
    until: tuple[bool, int] | None,
    form: ListForm,
) -> None:
    """Show jobs of the past: submitted, waited, placed where, preempted, restarted, ended, and how.

    With the name of one job also its pods, and how long each step of them took. Times are relative to the end of the
    history.
    """
    from dovetail.cli.history_report import show_more

    wanted = _JobFilter(
        names, "" if everywhere else namespace, tuple(filter(None, users.split(","))), queue, outcomes, labels
    )
    with opened(store) as reader:
        known = reader.known()
        period = _period(known, since, until, bool(names))
        found = _jobs(reader.pods(period), known.end_ms, wanted)
        gaps = list(reader.gaps(period))
    _check_named(names, found, known, store)
    if form.whole:
        write_answer(form, "HistoryJob", found)
        return
    if found or not form.notes:
        write_rows(form, COLUMNS, found, known.end_ms, Console())
    if form.notes and not form.columns:
        one = len(names) == 1 and len({row.job for row in found}) == 1
        show_more(found, known, period, gaps, Console(), steps=one)


def _period(
    known: Period, since: tuple[bool, int] | None, until: tuple[bool, int] | None, named: bool
) -> Period:  # fmt: skip
    """Raises UsageError."""

    def at(time: tuple[bool, int]) -> int:
        absolute, ms = time
        return ms if absolute else known.end_ms - ms

    end_ms = at(until) if until is not None else known.end_ms + 1
    start_ms = at(since) if since is not None else 0 if named else min(known.end_ms, end_ms) - _DEFAULT_MS
    if start_ms >= end_ms:
        raise click.UsageError("--since must be before --until, and before the end of the history")
    return Period(max(0, start_ms), end_ms)


def _jobs(records: Iterable[PodRecord], now_ms: int, wanted: _JobFilter) -> list[HistoryJob]:
    from dovetail.core.labels import holds

    pods = list(records)
    if wanted.labels:
        keys = {
            (one.namespace, one.job)
            for one in pods
            if all(holds(term, one.labels.get(term.key)) for term in wanted.labels)
        }
        pods = [one for one in pods if (one.namespace, one.job) in keys]
    return [job_row(job) for job in past_jobs(pods, now_ms, steps=bool(wanted.names)) if wanted.wants(job)]


def _check_named(names: tuple[str, ...], found: list[HistoryJob], known: Period, store: Path) -> None:
    """Raises ClickException for a name, other than a pattern, that no job has."""
    for name in names:
        if not any(mark in name for mark in "*?[") and not any(_names(name, row.job) for row in found):
            raise click.ClickException(f"{store} knows no such job {name}; `dovetail history` lists jobs")
