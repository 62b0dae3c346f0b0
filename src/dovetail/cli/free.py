# SPDX-License-Identifier: Apache-2.0
"""`dovetail free`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dovetail.cli.answer_form import write_answer
from dovetail.cli.cluster import ClusterSource, cluster_options
from dovetail.cli.columns import FREE, free_rows
from dovetail.cli.console import Console
from dovetail.cli.listing import ListForm, list_options, write_rows
from dovetail.cli.price_options import book_of, price_options
from dovetail.cli.shape import beside_options, shape_option

if TYPE_CHECKING:
    from dovetail.cost.price_sources import PriceSources
    from dovetail.views.free_types import Beside, Free
    from dovetail.views.shape_types import ShapeAnswer, ShapeView


@click.command(name="free")
@cluster_options
@shape_option("Show the largest gang of such pods that can start now: 8, 8xH100; 4x8xH100 also asks for four pods.")
@beside_options
@price_options
@list_options(FREE)
def command(
    source: ClusterSource,
    shape: ShapeView | None,
    cpu_milli: int,
    memory_bytes: int,
    prices: PriceSources,
    form: ListForm,
) -> None:
    """Show what still fits: whole GPUs, MIG instances, shares and devices by claim, and what blocks the next size.

    Also shows which free GPUs no waiting pod, or no pod of --shape, can use, why, and what they cost. The running
    scheduler answers, if there is one; else the cluster is read. Writes nothing. The pods request no CPU and no memory
    unless --cpu and --memory add some.
    """
    from dovetail.cli.free_report import show, show_shape
    from dovetail.cli.stranded_prices import priced_free, priced_shape
    from dovetail.cost.price_rules import CurrencyError
    from dovetail.views.free_types import Beside, Free
    from dovetail.views.shape_types import ShapeAnswer, ShapeError

    if shape is not None and not form.plain and not form.whole:
        raise click.UsageError("--shape shows tables of domains: use it with -o table, json, yaml or jsonpath alone")
    beside, book = Beside(cpu_milli, memory_bytes), book_of(prices)
    answer = _asked(source, shape, beside)
    if answer is None:
        from dovetail.views.free import free
        from dovetail.views.shape import largest

        state = source.state()
        try:
            answer = free(state, beside) if shape is None else largest(state, shape, beside)
        except ShapeError as error:
            raise click.ClickException(str(error)) from error
    console = Console()
    if isinstance(answer, Free) and not form.plain and not form.whole:
        write_rows(form, FREE, free_rows(answer), source.now_ms, console)
        return
    try:
        priced = (
            priced_shape(answer, book, source.now_ms)
            if isinstance(answer, ShapeAnswer)
            else priced_free(answer, book, source.now_ms)
        )
    except CurrencyError as error:
        raise click.ClickException(str(error)) from error
    if form.whole:
        write_answer(form, "LargestGangs" if isinstance(priced, ShapeAnswer) else "Free", priced)
        return
    if isinstance(priced, ShapeAnswer):
        show_shape(priced, console)
    else:
        show(priced, console)
    if not cpu_milli and not memory_bytes:
        console.print("\nThe pods request no CPU and no memory; --cpu and --memory add an amount for each GPU.")


def _asked(source: ClusterSource, shape: ShapeView | None, beside: Beside) -> Free | ShapeAnswer | None:
    """The answer of the running scheduler."""
    from dovetail.kube.objects.views import CAPACITIES
    from dovetail.kube.reading.views import ViewRequest
    from dovetail.views.free_types import Free
    from dovetail.views.shape_types import ShapeAnswer

    query = {"cpuMilli": str(beside.cpu_milli), "memoryBytes": str(beside.memory_bytes)}
    if shape is None:
        return source.ask(ViewRequest(CAPACITIES, source.namespace, query=query), Free)
    return source.ask(ViewRequest(CAPACITIES, source.namespace, query=query | {"shape": shape.text}), ShapeAnswer)
