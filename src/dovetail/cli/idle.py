# SPDX-License-Identifier: Apache-2.0
"""`dovetail idle`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dovetail.cli.console import Console
from dovetail.cli.history_store import opened, store_option
from dovetail.cli.idle_columns import IDLE
from dovetail.cli.listing import ListForm, list_options, write_answer, write_rows
from dovetail.cli.names import complete_namespaces
from dovetail.cli.price_options import price_options
from dovetail.cli.quantities import DurationParam

if TYPE_CHECKING:
    from dovetail.cost.price_rules import PriceBook
    from dovetail.history.idle import IdlePod


@click.command(name="idle")
@store_option
@click.option("-n", "--namespace", help="Only pods of this namespace.", shell_complete=complete_namespaces)
@click.option("-u", "--user", "users", metavar="USER,USER...", default="", help="Only pods of these users.")
@click.option("-q", "--queue", default="", help="Only pods in this queue.")
@click.option(
    "--least", "least_s", type=DurationParam(), default="1h", show_default=True,
    help="Leave out pods that are idle for a shorter time.",
)  # fmt: skip
@click.option(
    "--exempt", metavar="NAMESPACE|KEY=VALUE", multiple=True,
    help="Leave out pods of this namespace, or with this label. May be repeated.",
)  # fmt: skip
@price_options
@list_options(IDLE)
def command(
    store: Path, namespace: str | None, users: str, queue: str, least_s: float, exempt: tuple[str, ...],
    book: PriceBook, form: ListForm,
) -> None:  # fmt: skip
    """Show which pods hold GPUs and do not use them: since when, what it has cost, and what to do.

    As of the end of the history. Reads the history and nothing else; no pod is changed.
    """
    from dovetail.cli.idle_report import notes
    from dovetail.cost.idle_pods import idle_list
    from dovetail.cost.price_rules import CurrencyError
    from dovetail.history.idle import IdleRules

    of = set(filter(None, users.split(",")))

    def wanted(one: IdlePod) -> bool:
        pod = one.pod
        return namespace in (None, pod.namespace) and (not of or pod.user in of) and queue in ("", pod.queue)

    rules = IdleRules(least_ms=round(least_s * 1000), exempt=frozenset(exempt))
    try:
        with opened(store) as reader:
            answer = idle_list(reader, rules, book, wanted)
    except CurrencyError as error:
        raise click.ClickException(str(error)) from error
    console = Console()
    if form.whole:
        write_answer(form, "IdleList", answer)
        return
    if answer.pods or not form.notes:
        write_rows(form, IDLE, answer.pods, round(answer.now.timestamp() * 1000), console)
    if form.notes:
        notes(answer, console)
