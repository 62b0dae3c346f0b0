# SPDX-License-Identifier: Apache-2.0
"""`dovetail queue budgets`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from dovetail.cli.answer_form import write_answer
from dovetail.cli.cluster import now_ms, run
from dovetail.cli.console import Console
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.listing import ListColumn, ListColumns, ListForm, list_options, write_rows
from dovetail.cli.output import count, foreign

if TYPE_CHECKING:
    from dovetail.kube.queue_budgets import QueueBudgetUse, QueueBudgetUses

_ONE = 10**6


def _amount(name: str, of: Callable[[QueueBudgetUse], int | None]) -> ListColumn[QueueBudgetUse]:
    def value(row: QueueBudgetUse) -> float | None:
        micro = of(row)
        return micro / _ONE if micro is not None else None

    def text(row: QueueBudgetUse, _: object) -> str:
        micro = of(row)
        return f"{micro / _ONE:,.2f}" if micro is not None else "-"

    return ListColumn(name, value, text, to_the_right=True)


def _percent(row: QueueBudgetUse) -> float | None:
    known = row.used_micro is not None and row.limit_micro
    return round(100 * (row.used_micro or 0) / row.limit_micro, 1) if known else None


def _time(at_ms: int) -> str | None:
    """In UTC, as the periods are."""
    return f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%d %H:%M}" if at_ms else None


BUDGETS: ListColumns[QueueBudgetUse] = ListColumns(
    (
        ListColumn("queue", lambda row: row.queue),
        ListColumn("unit", lambda row: row.unit),
        ListColumn("period", lambda row: row.period),
        _amount("used", lambda row: row.used_micro),
        _amount("limit", lambda row: row.limit_micro),
        ListColumn("percent", _percent, heading="%", to_the_right=True),
        _amount("forecast", lambda row: row.forecast_micro),
        ListColumn("used-up", lambda row: _time(row.used_up_ms), heading="used up"),
        ListColumn("ends", lambda row: _time(row.end_ms)),
        ListColumn("when-used", lambda row: row.when_used, heading="when used", wide=True),
        ListColumn("as-of", lambda row: _time(row.as_of_ms), heading="as of", wide=True),
    ),
    named_by="queue",
)


@click.command(name="budgets")
@kubeconfig_options
@list_options(BUDGETS)
def command(kubeconfig: str | None, context: str | None, form: ListForm) -> None:
    """Show the budgets of the queues: what was used in the period, the limit, and a forecast for the end of the period.

    As the scheduler wrote it into the status of the queues. Writes nothing.
    """
    from dovetail.kube.queue_budgets import read_budgets

    config = config_of(kubeconfig, context)
    answer = run(read_budgets(config, now_ms()), config.server)
    if form.whole:
        write_answer(form, "QueueBudgets", answer)
    else:
        show(answer, form, Console())


def show(answer: QueueBudgetUses, form: ListForm, console: Console) -> None:
    """Print the budgets as a list."""
    if answer.budgets or not form.notes:
        write_rows(form, BUDGETS, answer.budgets, answer.now_ms, console)
    if not form.notes:
        return
    if not answer.budgets:
        queues = f"{count(answer.queues, 'queue')} {'has' if answer.queues == 1 else 'have'}"
        console.print(f"No queue has a budget ({queues} none): spec.budget of a Queue." if answer.queues
                      else "There is no queue.")  # fmt: skip
        return
    console.print("Times are UTC. The forecast is that the rest of the period goes on as the part that is known.")
    unknown = sum(one.used_micro is None for one in answer.budgets)
    if unknown:
        console.print(f"What was used of {count(unknown, 'budget')} is not known: no scheduler has reported it.")
    for one in answer.budgets:
        if one.message:
            console.print(f"{foreign(one.queue)}, {foreign(one.unit)}: {foreign(one.message)}")
