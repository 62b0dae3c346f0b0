# SPDX-License-Identifier: Apache-2.0
"""`dovetail history`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from dovetail.cli.answer_form import write_answer
from dovetail.cli.console import Console
from dovetail.cli.history_columns import COLUMNS, HistoryJob, job_row
from dovetail.cli.history_store import HistorySource, source_options
from dovetail.cli.listing import ListForm, list_options, selector_option, write_rows
from dovetail.cli.names import complete_queues
from dovetail.history.jobs import OUTCOMES

if TYPE_CHECKING:
    from dovetail.core.model import Requirement

_PATTERN = "*?["
"""What makes a name a pattern."""


class _Times(click.ParamType[Any]):
    """A time as RFC 3339, or how long before the end of what is known, as in 7d."""

    name = "TIME|DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[bool, int]:
        from dovetail.kube.translate.durations import duration_ms

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


@click.command(name="history")
@click.argument("names", metavar="[[NAMESPACE/]JOB|PATTERN]...", nargs=-1)
@source_options
@click.option("-n", "--namespace", default="", help="Only jobs in this namespace. Default: all namespaces.")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Jobs of all namespaces, also with -n.")
@click.option("-u", "--user", "users", metavar="USER,USER...", default="", help="Only jobs of these users.")
@click.option("-q", "--queue", default="", help="Only jobs in this queue.", shell_complete=complete_queues)
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
    source: HistorySource,
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
    from dovetail.historyserver.past_jobs import PastJobs, past_jobs_of
    from dovetail.historyserver.questions import JobTerm, PastJobsQuestion

    since_ago, since_ms = _ago(since)
    until_ago, until_ms = _ago(until)
    terms = tuple(JobTerm(one.key, one.operator, one.values) for one in labels)
    question = PastJobsQuestion(
        names, "" if everywhere else namespace, tuple(filter(None, users.split(","))), queue, outcomes, terms,
        since_ms, since_ago, until_ms, until_ago,
    )  # fmt: skip
    source = replace(source, namespace=question.namespace or _namespace_of(names))
    answer = source.answer(question, PastJobs, lambda reader: past_jobs_of(reader, question))
    found, known = [job_row(job) for job in answer.jobs], answer.known
    _check_named(names, found, source.name)
    if form.whole:
        write_answer(form, "HistoryJob", found)
        return
    if found or not form.notes:
        write_rows(form, COLUMNS, found, known.end_ms, Console())
    if form.notes and not form.columns:
        one = len(names) == 1 and len({row.job for row in found}) == 1
        show_more(found, answer, Console(), steps=one)


def _namespace_of(names: tuple[str, ...]) -> str:
    """The namespace that all of these names have; "" if they have none, several, or a pattern of them."""
    found = {before if slash else "" for before, slash, _ in (name.partition("/") for name in names)}
    (only,) = found if len(found) == 1 else ("",)
    return "" if any(mark in only for mark in _PATTERN) else only


def _ago(time: tuple[bool, int] | None) -> tuple[bool, int | None]:
    """Whether it is before the end of the history, and the milliseconds."""
    return (not time[0], time[1]) if time is not None else (False, None)


def _check_named(wanted: tuple[str, ...], found: list[HistoryJob], history: str) -> None:
    """Raises ClickException for a name, other than a pattern, that no job has."""
    from dovetail.historyserver.past_jobs import names

    for name in wanted:
        if not any(mark in name for mark in _PATTERN) and not any(names(name, row.job) for row in found):
            raise click.ClickException(f"{history} knows no such job {name}; `dovetail history` lists jobs")
