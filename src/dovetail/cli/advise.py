# SPDX-License-Identifier: Apache-2.0
"""`dovetail advise`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dovetail.cli.advise_columns import ADVICE
from dovetail.cli.console import Console
from dovetail.cli.history_store import last, opened, store_option
from dovetail.cli.listing import ListForm, list_options, write_answer, write_rows
from dovetail.cli.names import complete_namespaces
from dovetail.cli.price_options import price_options
from dovetail.cli.quantities import DurationParam

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dovetail.cost.price_rules import PriceBook
    from dovetail.history.job_use import JobKey, JobsUse


@click.command(name="advise")
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@store_option
@click.option("-n", "--namespace", help="Only jobs of this namespace.", shell_complete=complete_namespaces)
@click.option(
    "--period", "seconds", type=DurationParam(), default="30d", show_default=True,
    help="How far to look back from the end of the history.",
)  # fmt: skip
@click.option("--diff", multiple=True, metavar="PATH", help="Show what --fix would change in manifests.")
@click.option("--fix", multiple=True, metavar="PATH", help="Carry the advice out in manifests: files or folders.")
@click.option(
    "--record", metavar="FILE", help="Keep in this file what was advised, and show what became of earlier advice in it."
)
@price_options
@list_options(ADVICE)
def command(
    jobs: tuple[str, ...], store: Path, namespace: str | None, seconds: float, diff: tuple[str, ...],
    fix: tuple[str, ...], record: str | None, book: PriceBook, form: ListForm,
) -> None:  # fmt: skip
    """Advise on the size of jobs, from how they used their GPUs: fewer, smaller, shared, or what keeps them waiting.

    JOB is [NAMESPACE/]NAME; without one, all jobs that held GPUs in the period. For one JOB all that was seen and
    advised is shown. Reads the history and nothing else; no cluster is changed.

    Exit code 0, also if there is advice. 1: the history cannot be read, or a JOB held no GPU. 2: wrong usage.
    """
    if diff and fix:
        raise click.UsageError("--diff shows what --fix writes: use one of them")
    from dovetail.advice.sizing.advise import advise, by_saving
    from dovetail.advice.sizing.rule import JobAdviceList
    from dovetail.cli import advise_report
    from dovetail.cli.advise_record import followed
    from dovetail.cost.model_prices import model_prices
    from dovetail.cost.price_rules import CurrencyError
    from dovetail.history.job_use import job_uses

    with opened(store) as reader:
        period = last(reader, seconds)
        uses = _chosen(job_uses(reader, period), jobs, namespace)
        earlier = followed(record, uses, reader, period.end_ms) if record else ()
        try:
            advised = by_saving(advise(uses, model_prices(reader.spans(period), book, period.end_ms)))
        except CurrencyError as error:
            raise click.ClickException(str(error)) from error
    answer = JobAdviceList(period.end_ms, uses.window.start_ms, uses.window.end_ms, advised, earlier)
    console = Console()
    if form.whole:
        write_answer(form, "JobAdviceList", answer)
    elif form.plain and len(jobs) == 1:
        for one in answer.jobs:
            advise_report.page(one, console)
    elif form.notes and not answer.jobs:
        console.print("No job held a GPU in the period.")
    else:
        write_rows(form, ADVICE, answer.jobs, answer.now_ms, console)
        if form.notes:
            advise_report.notes(answer, console)
    if form.notes and earlier:
        advise_report.earlier(answer, console)
    if diff or fix:
        advise_report.carry_out(answer.jobs, diff or fix, write=bool(fix))


def _chosen(uses: JobsUse, names: Sequence[str], namespace: str | None) -> JobsUse:
    """The jobs with these names, or all, in the namespace. Raises ClickException."""
    from msgspec.structs import replace

    jobs = [one for one in uses.jobs if namespace in (None, one.namespace)]
    if not names:
        return replace(uses, jobs=tuple(jobs))
    found: dict[JobKey, None] = {}
    for name in names:
        within, _, short = name.rpartition("/")
        of = [one for one in jobs if one.name == short and within in ("", one.namespace)]
        if not of:
            from difflib import get_close_matches

            near = get_close_matches(short, {one.name for one in jobs}, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise click.ClickException(f"job {name} held no GPU in the period{hint}")
        found.update({(one.namespace, one.name): None for one in of})
    return replace(uses, jobs=tuple(one for one in jobs if (one.namespace, one.name) in found))
