# SPDX-License-Identifier: Apache-2.0
"""`dovetail report`."""

from __future__ import annotations

import click

from dovetail.cli.answer_form import write_answer
from dovetail.cli.console import Console
from dovetail.cli.cost_columns import REPORT
from dovetail.cli.history_options import HistoryQuestion, asked_options
from dovetail.cli.listing import ListForm, list_options


@click.command(name="report")
@asked_options
@list_options(REPORT)
def command(asked: HistoryQuestion, form: ListForm) -> None:
    """Show how the GPUs of a period were used: hours allocated, used, idle and free, jobs, and how long these waited.

    As sreport of Slurm, by team, user, model, day or another grouping. Asks the collector of the cluster; with --store
    or --prometheus it reads the history itself, and needs no cluster.
    """
    from dovetail.cli.cost_report import show_use
    from dovetail.cost.utilization import Utilization
    from dovetail.historyserver.answers import use_of

    source, use, zone = asked.source, asked.use, asked.zone
    answer = source.answer(use, Utilization, lambda reader: use_of(reader, use, source.own))
    if form.whole:
        write_answer(form, "UtilizationReport", answer)
    else:
        show_use(answer, form, zone, asked.time_zone, Console())
