# SPDX-License-Identifier: Apache-2.0
"""`dovetail idle`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec
from msgspec.structs import replace

from dovetail.cli.answer_form import write_answer
from dovetail.cli.console import Console
from dovetail.cli.history_store import HistorySource, source_options
from dovetail.cli.idle_columns import IDLE
from dovetail.cli.idle_foresight import with_policy
from dovetail.cli.idle_notices import post, webhook_url, write_events
from dovetail.cli.kubeconfig import config_of
from dovetail.cli.listing import ListForm, list_options, write_rows
from dovetail.cli.names import complete_namespaces, complete_queues
from dovetail.cli.output import versioned
from dovetail.cli.price_options import book_of, price_options
from dovetail.cli.quantities import DurationParam

if TYPE_CHECKING:
    from dovetail.cost.price_sources import PriceSources


@click.command(name="idle")
@source_options
@click.option("-n", "--namespace", help="Only pods of this namespace.", shell_complete=complete_namespaces)
@click.option("-u", "--user", "users", metavar="USER,USER...", default="", help="Only pods of these users.")
@click.option("-q", "--queue", default="", help="Only pods in this queue.", shell_complete=complete_queues)
@click.option(
    "--least", "least_s", type=DurationParam(), default="1h", show_default=True,
    help="Leave out pods that are idle for a shorter time.",
)  # fmt: skip
@click.option(
    "--exempt", metavar="NAMESPACE|KEY=VALUE", multiple=True,
    help="Leave out pods of this namespace, or with this label. May be repeated.",
)  # fmt: skip
@click.option(
    "--notify", is_flag=True, help="Write an event on each of these pods, once for each time in which it is idle."
)
@click.option(
    "--webhook",
    metavar="URL",
    callback=webhook_url,
    help="Send the list, as -o json has it, there by POST if it has pods.",
)
@price_options
@list_options(IDLE)
def command(
    source: HistorySource, namespace: str | None, users: str, queue: str, least_s: float, exempt: tuple[str, ...],
    notify: bool, webhook: str | None, prices: PriceSources, form: ListForm,
) -> None:  # fmt: skip
    """Show which pods hold GPUs and do not use them: since when, what it has cost, and what to do;
    and what the idle policy of the cluster will do about each, and when.

    As of the end of the history. Asks the collector of the cluster, or reads the history itself with --store or
    --prometheus; no pod is changed.

    Exit code 1: the history cannot be read, or an event or the list cannot be delivered.
    """
    from dovetail.cli.idle_report import notes
    from dovetail.cost.idle_pods import IdleList
    from dovetail.historyserver.answers import idle_of
    from dovetail.historyserver.questions import IdleQuestion

    source.check_prices(prices)
    of = tuple(filter(None, users.split(",")))
    question = IdleQuestion(namespace or "", of, queue, round(least_s * 1000), exempt)
    source = replace(source, namespace=question.namespace)
    answer = source.answer(question, IdleList, lambda reader: idle_of(reader, question, book_of(prices)))
    not_known = ""
    if source.config is not None:
        answer, not_known = with_policy(source.config, answer)
    console = Console()
    if form.whole:
        write_answer(form, "IdleList", answer)
    elif answer.pods or not form.notes:
        write_rows(form, IDLE, answer.pods, round(answer.now.timestamp() * 1000), console)
    if form.notes and not form.whole:
        notes(answer, not_known, console)
    if not answer.pods:
        return
    if webhook is not None:
        post(webhook, msgspec.json.encode(versioned("IdleList", answer)))
    if notify:
        write_events(source.config or config_of(None, None), answer)
