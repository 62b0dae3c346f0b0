# SPDX-License-Identifier: Apache-2.0
"""`dovetail check`: lint, the scheduler and the prices about manifests, in five lines."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from dovetail.cli.answer_form import AnswerForm, answer_option, write_answer
from dovetail.cli.cluster import ClusterSource, cluster_options, submitted
from dovetail.cli.console import Console
from dovetail.cli.price_options import price_options
from dovetail.cli.whatif import predicted

if TYPE_CHECKING:
    from dovetail.cli.lint.report import ReportedFinding
    from dovetail.cost.price_sources import PriceSources


@click.command(name="check")
@click.argument("paths", metavar="FILE...", nargs=-1, required=True)
@cluster_options
@price_options
@answer_option
def command(source: ClusterSource, paths: tuple[str, ...], prices: PriceSources, form: AnswerForm) -> None:
    """Check manifests before they are submitted: whether they will run, where, for how much, and what to change first.

    That is what `dovetail lint`, `dovetail whatif submit` and its prices answer, in five lines; JSON has all of it. The
    rules know the nodes of --file. Writes nothing.

    Exit code 0: it runs, now or later. 1: a job never starts, or lint has an error. 2: wrong usage.
    """
    from dovetail.advice.lint.engine import UNREADABLE
    from dovetail.cli.check_report import check, show
    from dovetail.views.whatif_types import Submit

    if "-" in paths:
        raise click.UsageError("FILE is read twice, by the rules and by the scheduler: it cannot be standard input")
    findings = _linted(paths, source.files)
    placement = None
    if not any(one.rule == UNREADABLE for one in findings):
        placement = predicted(source, prices, Submit(submitted(paths, source.namespace)))
    answer = check(findings, placement)
    if form.whole:
        write_answer(form, "Check", answer)
    else:
        show(answer, Console())
    if not answer.runs:
        sys.exit(1)


def _linted(paths: tuple[str, ...], inventory: tuple[str, ...]) -> list[ReportedFinding]:
    """Raises ClickException."""
    from dovetail.cli.lint.lint import linted
    from dovetail.cli.lint.report import reported

    return [reported(one) for one in linted(paths, tuple(one for one in inventory if one != "-"))]
