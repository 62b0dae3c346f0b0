# SPDX-License-Identifier: Apache-2.0
"""`dovetail priority`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dovetail.cli.answer_form import AnswerForm, answer_option, write_answer
from dovetail.cli.cluster import ClusterSource, cluster_options
from dovetail.cli.console import Console, Table, prose
from dovetail.cli.markup import escape
from dovetail.cli.names import complete_jobs
from dovetail.cli.output import ago, count, key_of, namespace_option, span

if TYPE_CHECKING:
    from dovetail.views.rank_types import RankLevel, RankView

_SHOWN = 20
_DECIDED = {
    "class": "scavengers come after all others",
    "standing": "ordered by whether they stay within guarantee and fair share",
    "queue priority": "ordered by the priority of the queues",
    "usage": "ordered by usage divided by weight",
    "queue age": "equal in all terms, so the older queue is first",
    "alone": "no other queue has a waiting job",
}


@click.command(name="priority")
@click.argument("job", shell_complete=complete_jobs)
@namespace_option
@cluster_options
@answer_option
def command(source: ClusterSource, job: str, namespace: str | None, form: AnswerForm) -> None:
    """Explain the position of JOB ([NAMESPACE/]NAME) in queue order: the jobs before it, and what would change it.

    JOB is a gang, a pod, the object that the pods were made for, or a LeaseRequest. The scheduler's own core compares
    the queues at each level, from the top of the tree down to the job.
    """
    from dovetail.kube.objects.views import JOB_RANKS
    from dovetail.kube.reading.views import ViewRequest
    from dovetail.views.rank_types import RankView

    key = key_of("JOB", job, namespace, source.namespace)
    named, _, name = key.partition("/")
    answer = source.ask(ViewRequest(JOB_RANKS, named, name), RankView)
    if answer is None:
        from dovetail.views.names import JobNotFound
        from dovetail.views.rank import rank

        state = source.state()
        try:
            answer = rank(state, key, source.now_ms)
        except JobNotFound as error:
            raise click.ClickException(str(error)) from error
    if form.whole:
        write_answer(form, "JobRank", answer)
    else:
        show(answer, source.now_ms, Console())


def show(answer: RankView, now_ms: int, console: Console) -> None:
    """Print the position, the terms of each level, and the jobs before and behind."""
    console.print(
        f"[bold]{answer.job}[/bold] is number {answer.position} of {answer.waiting} in queue order: queue "
        f"{answer.queue}, priority {answer.priority}, waiting {ago(answer.since_ms, now_ms)}.",
        highlight=False,
    )
    for level in answer.levels:
        _level(level, console)
    if answer.user:
        console.print(f"In queue {answer.queue} it is charged to user {answer.user}.")
    if answer.before:
        console.print("Jobs before it:")
        table = Table("job", "queue", "by", prose("why"))
        console.print_rows(table, [(one.job, one.queue, one.by, escape(one.text)) for one in answer.before], _SHOWN)
    elsewhere = answer.position - 1 - len(answer.before)
    if elsewhere:
        console.print(f"{count(elsewhere, 'job')} of other namespaces {'is' if elsewhere == 1 else 'are'} before it.")
    for other in answer.overtaking:
        when = f"In {span(other.in_ms)} " if other.in_ms is not None else ""
        text = f"{when}{other.ahead} comes before {other.behind} if {other.condition}."
        console.print(text[0].upper() + text[1:] if not when and other.ahead != answer.job else text)


def _level(level: RankLevel, console: Console) -> None:
    from dovetail.views.rank_types import SHARE_CLASSES

    where = f"below {level.parent}" if level.parent else "at the top"
    console.print(f"Queues {where}: {_DECIDED.get(level.by, level.by)}.")
    table = Table("", "queue", "with its first job", "priority", "usage / weight", "weight", "first job")
    for one in level.terms:
        table.add_row(
            ">" if one.queue == level.own else "", one.queue, SHARE_CLASSES[one.share_class], str(one.priority),
            f"{one.gpus_per_weight:g} GPUs", str(one.weight), one.head,
        )  # fmt: skip
    console.print(table)
