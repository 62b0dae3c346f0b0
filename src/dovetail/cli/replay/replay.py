# SPDX-License-Identifier: Apache-2.0
"""`dovetail replay`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dovetail import __version__
from dovetail.cli.answer_form import AnswerForm, answer_option, write_answer
from dovetail.cli.console import Console

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from dovetail.recording.reader import BadRecording, RecordedRun
    from dovetail.recording.replay import Replay

_EXIT_CODES = {"equal": 0, "differs": 1, "unusable": 2}


@click.command(name="replay")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--decision", "decision", metavar="ID", help="Show only the step with this id, RUN-STEP, and its reasons."
)
@answer_option
def command(paths: tuple[Path, ...], decision: str | None, form: AnswerForm) -> None:
    """Repeat the decisions of a recording, and check that every one is the same.

    PATH is a directory into which `dovetail scheduler` recorded, or files of it, which may be compressed with gzip.
    Exit code 0: all decisions are equal. 1: a decision differs. 2: something cannot be used.

    With --decision, a single step is repeated and shown: its events, the queues, the waiting jobs, and its decisions.
    The id is in the annotation dovetail.dev/decision of a bound pod, and in the events of pods.
    """
    from dovetail.cli.replay.report import ReplayReport, show_runs
    from dovetail.recording.reader import find

    runs, wrong = find(paths)
    if decision is not None:
        _one(runs, wrong, decision, form)
        return
    replays = _replayed(runs)
    if form.whole:
        write_answer(form, "ReplayReport", ReplayReport(__version__, replays, [str(error) for error in wrong]))
    else:
        show_runs(replays, wrong, Console())
    codes = [_EXIT_CODES[done.verdict] for done in replays] + [_EXIT_CODES["unusable"]] * len(wrong)
    sys.exit(max(codes))


def _one(runs: list[RecordedRun], wrong: list[BadRecording], decision: str, form: AnswerForm) -> None:
    """Print the step of a decision id."""
    from dovetail.cli.replay.decision import show
    from dovetail.cli.replay.report import ReplayDifference, difference_lines
    from dovetail.recording.decided import NotRecorded, decided
    from dovetail.recording.reader import BadRecording
    from dovetail.recording.replay import Differs

    try:
        with _progress(sum(run.size_bytes for run in runs)) as (progress, task):
            answer = decided(runs, decision, lambda at: progress.update(task, completed=at))
    except NotRecorded as error:
        raise click.UsageError("; ".join([str(error), *map(str, wrong)])) from error
    except BadRecording as error:
        click.echo(str(error))
        sys.exit(_EXIT_CODES["unusable"])
    except Differs as error:
        if form.whole:
            write_answer(form, "ReplayDifference", ReplayDifference(__version__, error.difference))
        else:
            click.echo("\n".join(difference_lines(error.difference, error.recorded_by)))
        sys.exit(_EXIT_CODES["differs"])
    if form.whole:
        write_answer(form, "ReplayedDecision", answer)
    else:
        show(answer, Console())


@contextmanager
def _progress(total_bytes: int) -> Iterator[tuple[Progress, TaskID]]:
    """A progress bar on standard error, if that is a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console.rich, transient=True, disable=not console.is_terminal) as progress:
        yield progress, progress.add_task("replaying", total=total_bytes)


def _replayed(runs: list[RecordedRun]) -> list[Replay]:
    from dovetail.recording.replay import replay

    done_bytes, replays = 0, []
    with _progress(sum(run.size_bytes for run in runs)) as (progress, task):
        for run in runs:
            start_bytes = done_bytes
            replays.append(replay(run, lambda at, start=start_bytes: progress.update(task, completed=start + at)))  # type: ignore[misc]
            done_bytes += run.size_bytes
    return replays
