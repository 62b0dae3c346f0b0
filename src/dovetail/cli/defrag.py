# SPDX-License-Identifier: Apache-2.0
"""`dovetail defrag`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from dovetail.cli.answer_form import AnswerForm, answer_option, write_answer
from dovetail.cli.cluster import ClusterSource, cluster_options
from dovetail.cli.console import Console, Table
from dovetail.cli.markup import escape
from dovetail.cli.names import complete_jobs
from dovetail.cli.output import count, indices, key_of, namespace_option
from dovetail.cli.shape import beside_options, shape_option

if TYPE_CHECKING:
    from dovetail.views.defrag_types import Defrag, DefragQuestion, MoveStepView, PodMove
    from dovetail.views.shape_types import ShapeView

_HOW = (
    "Nothing was moved. To carry out a step, cordon the source nodes, evict the pods, and wait until the pods that "
    "replace them are bound; then go on with the next step."
)


@click.command(name="defrag")
@click.argument("job", required=False, shell_complete=complete_jobs)
@shape_option("Instead of a JOB: room for such pods at the same time: 8, 8xH100, or 4x8xH100 for four pods.")
@beside_options
@namespace_option
@cluster_options
@answer_option
def command(
    source: ClusterSource,
    job: str | None,
    shape: ShapeView | None,
    cpu_milli: int,
    memory_bytes: int,
    namespace: str | None,
    form: AnswerForm,
) -> None:
    """Plan which running pods to move so that JOB ([NAMESPACE/]NAME) or a shape fits, with the least lost work.

    Prints the plan and moves nothing. Carry out the steps in their order: evict the pods of a step; their controllers
    create them again, and by then there is room for them on the target nodes. Pods that must not be preempted, and pods
    whose PodDisruptionBudget is used up, are not moved.
    """
    from dovetail.views.defrag_types import DefragQuestion

    if (job is None) == (shape is None):
        raise click.UsageError("name a JOB, or use --shape")
    if job is not None and (cpu_milli or memory_bytes):
        raise click.UsageError("--cpu and --memory go with --shape: the requests of a JOB are in its pods")
    key = key_of("JOB", job, namespace, source.namespace) if job is not None else ""
    asked = DefragQuestion(key, shape.text if shape is not None else "", cpu_milli, memory_bytes)
    answer = _ask(source, asked) or _work_out(source, asked)
    if form.whole:
        write_answer(form, "DefragPlan", answer)
    else:
        show(answer, Console())


def _ask(source: ClusterSource, asked: DefragQuestion) -> Defrag | None:
    """The answer of the running scheduler."""
    from dovetail.kube.objects.views import DEFRAG_PLANS
    from dovetail.kube.reading.views import ViewRequest
    from dovetail.views.defrag_types import Defrag

    namespace = asked.job.partition("/")[0] or source.namespace
    return source.ask(ViewRequest(DEFRAG_PLANS, namespace, body=msgspec.json.encode(asked)), Defrag)


def _work_out(source: ClusterSource, asked: DefragQuestion) -> Defrag:
    """Raises ClickException."""
    from dovetail.views.defrag import defrag
    from dovetail.views.names import JobNotFound
    from dovetail.views.shape_types import ShapeError

    state = source.state()
    try:
        return defrag(state, asked)
    except (JobNotFound, ShapeError) as error:
        raise click.ClickException(str(error)) from error


def show(answer: Defrag, console: Console) -> None:
    """Print the plan."""
    what = answer.job or (_shape(answer.shape) if answer.shape is not None else "")
    if not answer.room:
        sure = "No moves can" if answer.proven else "No moves were found (there may be some) that"
        console.print(f"{sure} make room for [bold]{escape(what)}[/bold]: {escape(answer.why)}.")
        return
    if not answer.steps:
        console.print(f"[bold]{escape(what)}[/bold] fits without moves {_places(answer)}.")
        _notes(answer, console)
        return
    moves = sum(move.count for step in answer.steps for move in step.moves)
    console.print(
        f"{count(moves, 'pod moves', 'pods move')} in {count(len(answer.steps), 'step')}, {answer.lost_gpu_minutes:g} "
        f"GPU-minutes of work are lost; then [bold]{escape(what)}[/bold] fits {_places(answer)}.",
        highlight=False,
    )
    table = Table("step", "job", "queue", "pod", "from", "to", "GPU-minutes lost")
    for number, step in enumerate(answer.steps, 1):
        for i, move in enumerate(step.moves):
            table.add_row(*(_head(number, step) if not i else ("", "", "")), *_move(move), _lost(step) if not i else "")
    console.print(table)
    _notes(answer, console)
    console.print(_HOW)


def _notes(answer: Defrag, console: Console) -> None:
    for note in answer.notes:
        console.print(f"[yellow]attention:[/yellow] {escape(note)}")


def _head(number: int, step: MoveStepView) -> tuple[str, str, str]:
    return str(number), step.job, step.queue


def _lost(step: MoveStepView) -> str:
    return f"{step.lost_gpu_minutes:g}"


def _move(move: PodMove) -> tuple[str, str, str]:
    gpus = f" GPU {indices(move.gpus)}" if move.gpus else ""
    pods = f"{count(move.count, 'pod')} {move.pod}" if move.count > 1 else move.pod
    return pods, move.source, f"{move.target}{gpus}"


def _places(answer: Defrag) -> str:
    from dovetail.views.names import some

    return "on " + some(tuple(dict.fromkeys(place.node for place in answer.places)))


def _shape(shape: ShapeView) -> str:
    gpus = f"{count(shape.gpus, 'GPU')}{f' of {shape.model}' if shape.model else ''}"
    return f"a pod with {gpus}" if shape.pods == 1 else f"{shape.pods} pods with {gpus} each"
