# SPDX-License-Identifier: Apache-2.0
"""`dovetail jobs`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
from msgspec import Struct
from msgspec.structs import replace

from dovetail.cli.answer_form import write_answer
from dovetail.cli.cluster import ClusterSource, cluster_options
from dovetail.cli.console import Console
from dovetail.cli.listing import (
    ListColumn,
    ListColumns,
    ListForm,
    Shown,
    list_options,
    selector_option,
    write_rows,
)
from dovetail.cli.names import complete_jobs, complete_list, complete_namespaces, complete_nodes, complete_queues
from dovetail.cli.output import LOOK_AHEAD_ENDED, count, looking_ahead, span, start
from dovetail.cli.watching import watch_options, watch_rows
from dovetail.core.reasons import Expected, When
from dovetail.views.job_states import COMPLETED, DONE, ENDING, FAILED, RUNNING, STATES, UNFINISHED, WAITING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dovetail.core.model import Requirement
    from dovetail.views.job_types import JobFilter, JobList, JobRow, JobTime

_STYLES = {RUNNING: "green", ENDING: "yellow", WAITING: "yellow", COMPLETED: "dim", FAILED: "red"}
_NODES_SHOWN = 3
MOST_AHEAD = 500
"""A look-ahead for so many jobs on 200 nodes takes 0.7 s of CPU; for 2,000 it takes 1.8 s."""
_MOST_JOBS = 10**9
_AHEAD = {None: MOST_AHEAD, True: sys.maxsize, False: -1}


def _nodes(row: JobRow, shown: Shown) -> str:
    if shown.whole or len(row.nodes) <= _NODES_SHOWN:
        return ",".join(row.nodes)
    return f"{','.join(row.nodes[:_NODES_SHOWN])} and {len(row.nodes) - _NODES_SHOWN} more"


def _starts(row: JobRow, shown: Shown) -> str:
    if row.state == WAITING and row.when == When.NEVER:
        return "never"
    return _when(row.start, row.state != WAITING, shown)


def _ends(row: JobRow, shown: Shown) -> str:
    return _when(row.end, row.state in DONE, shown)


def _when(time: JobTime | None, past: bool, shown: Shown) -> str:
    """A time of a job: `2 h ago`, `in about 3 h`; "" where it was not looked for, or nothing is known of the past."""
    if time is None or (past and time.at is None):
        return ""
    at_ms = round(time.at.timestamp() * 1000) if time.at is not None else 0
    if past:
        return f"{span(max(0, shown.now_ms - at_ms))} ago"
    return start(Expected(time.sure, at_ms), shown.now_ms)


def _submitted(row: JobRow, shown: Shown) -> str:
    if row.submitted is None:
        return ""
    return f"{span(max(0, shown.now_ms - round(row.submitted.timestamp() * 1000)))} ago"


COLUMNS: ListColumns[JobRow] = ListColumns(
    (
        ListColumn("job", lambda row: row.job),
        ListColumn("user", lambda row: row.user),
        ListColumn("queue", lambda row: row.queue),
        ListColumn("gpus", lambda row: row.gpus, heading="GPUs", rank=lambda row: row.gpus_milli),
        ListColumn("state", lambda row: row.state, styles=_STYLES),
        ListColumn("nodes", lambda row: ",".join(row.nodes), _nodes),
        ListColumn("reason", lambda row: row.reason),
        ListColumn("starts", lambda row: row.start.at if row.start is not None else None, _starts),
        ListColumn("ends", lambda row: row.end.at if row.end is not None else None, _ends),
        ListColumn("submitted", lambda row: row.submitted, _submitted),
        ListColumn("kind", lambda row: row.kind, wide=True),
        ListColumn("pods", lambda row: row.pods, wide=True, to_the_right=True),
        ListColumn("placed", lambda row: row.placed, wide=True, to_the_right=True),
        ListColumn("counted", lambda row: row.gpus_milli / 1000, heading="GPUs counted", wide=True, to_the_right=True),
        ListColumn("priority", lambda row: row.priority, wide=True, to_the_right=True),
        ListColumn("lease", lambda row: row.lease, wide=True),
        ListColumn("why", lambda row: row.message, wide=True, prose=True),
    ),
    named_by="job",
    state="state",
)


class _Asked(Struct, frozen=True):
    """What is asked of the cluster, again and again with --watch. `states` () are those of unfinished jobs."""

    source: ClusterSource
    wanted: JobFilter
    states: tuple[str, ...]
    most_ahead: int


@click.command(name="jobs")
@click.argument("names", metavar="[NAME|PATTERN]...", nargs=-1, shell_complete=complete_jobs)
@cluster_options
@click.option(
    "-n",
    "--namespace",
    default="",
    help="Only jobs in this namespace. Default: all namespaces.",
    shell_complete=complete_namespaces,
)
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Jobs of all namespaces, also with -n.")
@click.option("-u", "--user", "users", metavar="USER,USER...", default="", help="Only jobs of these users.")
@click.option(
    "-q", "--queue", default="", help="Only jobs in this queue, and in those below it.", shell_complete=complete_queues
)
@click.option(
    "-s", "--state", "states", metavar="STATE,STATE...", default="", callback=lambda _ctx, _param, text: _states(text),
    help=f"Only jobs in these states, of {', '.join(STATES)}. Default: running, ending and waiting.",
    shell_complete=lambda _ctx, _param, text: complete_list(STATES, text),
)  # fmt: skip
@click.option("--all", "every", is_flag=True, help="Jobs in all states: also those that are done.")
@click.option(
    "--node",
    default="",
    metavar="NODE|PATTERN",
    help="Only jobs that have a pod on this node.",
    shell_complete=complete_nodes,
)
@selector_option("Only jobs with a pod that has these labels, as in app=train,tier!=test.")
@click.option(
    "--start/--no-start", "look_ahead", default=None,
    help=f"Whether to look ahead for the expected starts. Default: if at most {MOST_AHEAD} jobs wait.",
)  # fmt: skip
@list_options(COLUMNS)
@watch_options
def command(
    source: ClusterSource,
    names: tuple[str, ...],
    namespace: str,
    everywhere: bool,
    users: str,
    queue: str,
    states: tuple[str, ...],
    every: bool,
    node: str,
    labels: tuple[Requirement, ...],
    look_ahead: bool | None,
    form: ListForm,
    every_s: float,
) -> None:
    """List the jobs: those that run, those that wait and why, and with --all those that are done.

    NAME is [NAMESPACE/]NAME of a job, of one of its pods or of the object that these were made for; * and ? stand for
    any characters. A job that is done is known as long as one of its pods exists. The running scheduler answers, if
    there is one; else the cluster is read. Writes nothing.
    """
    from dovetail.views.job_types import JobFilter
    from dovetail.views.names import JobNotFound

    if every:
        states = STATES["all"]
    owners = tuple(one for one in users.split(",") if one)
    wanted = JobFilter(names, "" if everywhere else namespace, owners, queue, (), node, labels)
    asked = _Asked(source, wanted, states, _AHEAD[look_ahead])
    if every_s:
        source.check_again()
        watch_rows(_Again(asked).rows, form, COLUMNS, every_s, Console())
        return
    try:
        answer = _list(asked, states or UNFINISHED)
    except JobNotFound as error:
        raise click.ClickException(str(error)) from error
    if form.whole:
        write_answer(form, "JobList", answer)
    elif answer.jobs or not form.notes:
        write_rows(form, COLUMNS, answer.jobs, _now_ms(answer), Console())
    if form.notes:
        _print_notes(answer, asked, Console())


def _states(text: str) -> tuple[str, ...]:
    """The states that the words stand for. Raises BadParameter."""
    found: dict[str, None] = {}
    for word in filter(None, text.lower().split(",")):
        if word not in STATES:
            from difflib import get_close_matches

            near = get_close_matches(word, STATES, 1)
            meant = f"did you mean {near[0]}? There" if near else "there"
            raise click.BadParameter(f"{word!r} is no state; {meant} are {', '.join(STATES)}")
        found.update(dict.fromkeys(STATES[word]))
    return tuple(found)


def _list(asked: _Asked, states: tuple[str, ...]) -> JobList:
    """The jobs in these states; those that are named in all. Raises ClickException, and JobNotFound."""
    states = STATES["all"] if asked.wanted.names and not asked.states else states
    wanted = replace(asked.wanted, states=states)
    found = ask_jobs(asked.source, wanted, asked.most_ahead)
    if found is not None:
        return found
    try:
        cluster = asked.source.read(ended=any(one in states for one in DONE))
    except click.ClickException:
        unfinished = tuple(one for one in states if one in UNFINISHED)
        if unfinished in ((), states):
            raise
        # A scheduler that is older knows these.
        found = ask_jobs(asked.source, replace(wanted, states=unfinished), asked.most_ahead)
        if found is None:
            raise
        Console(stderr=True).print("note: jobs that are done are not listed, as the cluster cannot be read")
        return found
    from dovetail.views.job_list import job_list

    with looking_ahead() as watch:
        return job_list(
            cluster.state, asked.source.now_ms, wanted, cluster.feed.ended(), most_ahead=asked.most_ahead, watch=watch
        )  # fmt: skip


def ask_jobs(source: ClusterSource, wanted: JobFilter, most_ahead: int) -> JobList | None:
    """The answer of the running scheduler; None where the cluster has to be read. Raises ClickException."""
    import msgspec

    from dovetail.kube.objects.views import JOB_LISTS, LONGEST_VALUE
    from dovetail.kube.reading.views import ViewRequest
    from dovetail.views.job_types import JobFilter, JobList

    asking = {name: value for name in JobFilter.__struct_fields__ if (value := getattr(wanted, name))}
    text = msgspec.json.encode(asking).decode()
    if len(text) > LONGEST_VALUE:
        return None
    query = {"filter": text, "mostAhead": str(min(max(most_ahead, 0), _MOST_JOBS))}
    return source.ask(ViewRequest(JOB_LISTS, wanted.namespace or source.namespace, query=query), JobList)


class _Again:
    """Reads the jobs again and again. A job that was listed once is listed when it is done, too."""

    def __init__(self, asked: _Asked) -> None:
        self._asked = asked
        self._listed: set[str] = set()

    def rows(self) -> tuple[Iterable[JobRow], int]:
        """Raises ClickException."""
        from dovetail.views.names import JobNotFound

        try:
            answer = _list(self._asked, STATES["all"])
        except JobNotFound as error:
            if not self._listed:
                raise click.ClickException(str(error)) from error
            # What was named and found is gone.
            return (), self._asked.source.now_ms
        states = self._asked.states or UNFINISHED
        rows = [row for row in answer.jobs if row.state in states or row.job in self._listed]
        self._listed.update(row.job for row in rows)
        return rows, _now_ms(answer)


def _now_ms(answer: JobList) -> int:
    return round(answer.now.timestamp() * 1000)


def _print_notes(answer: JobList, asked: _Asked, console: Console) -> None:
    if not answer.jobs:
        console.print(_none(asked))
    if answer.elsewhere:
        console.print(f"{count(answer.elsewhere, 'job')} of other namespaces.")
    waiting = sum(row.state == WAITING for row in answer.jobs)
    if waiting and not answer.looked_ahead:
        console.print(f"{count(waiting, 'job')} {'waits' if waiting == 1 else 'wait'}: --start shows when they start.")
    elif not answer.whole:
        console.print(LOOK_AHEAD_ENDED)


def _none(asked: _Asked) -> str:
    """Why no job is listed."""
    if asked.wanted != type(asked.wanted)():
        return (
            "No job matches." if asked.states else "No job that runs or waits matches; --all also lists what is done."
        )
    return "There is no such job." if asked.states else "No job runs or waits; --all also lists what is done."
