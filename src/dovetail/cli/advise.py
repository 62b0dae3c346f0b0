# SPDX-License-Identifier: Apache-2.0
"""`dovetail advise`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from dovetail.cli.advise_columns import ADVICE
from dovetail.cli.answer_form import write_answer
from dovetail.cli.console import Console
from dovetail.cli.engine_loads import engine_loads
from dovetail.cli.history_store import HistorySource, source_options
from dovetail.cli.listing import ListForm, list_options, write_rows
from dovetail.cli.names import complete_namespaces
from dovetail.cli.price_options import book_of, price_options
from dovetail.cli.quantities import DurationParam

if TYPE_CHECKING:
    from dovetail.advice.sizing.rule import EarlierAdvice
    from dovetail.cost.price_rules import PriceBook
    from dovetail.cost.price_sources import PriceSources
    from dovetail.history.store import HistoryReader
    from dovetail.historyserver.questions import AdviceQuestion


@click.command(name="advise")
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@source_options
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
    jobs: tuple[str, ...], source: HistorySource, namespace: str | None, seconds: float, diff: tuple[str, ...],
    fix: tuple[str, ...], record: str | None, prices: PriceSources, form: ListForm,
) -> None:  # fmt: skip
    """Advise on the size of jobs, from how they used their GPUs: fewer, smaller, shared, or what keeps them waiting.

    JOB is [NAMESPACE/]NAME; without one, all jobs that held GPUs in the period. For one JOB all that was seen and
    advised is shown. Asks the collector of the cluster, or reads the history itself with --store or --prometheus; no
    cluster is changed.

    Exit code 0, also if there is advice. 1: the history cannot be read, or a JOB held no GPU. 2: wrong usage.
    """
    if diff and fix:
        raise click.UsageError("--diff shows what --fix writes: use one of them")
    from dovetail.advice.sizing.rule import JobAdviceList
    from dovetail.cli import advise_report
    from dovetail.history.prometheus.matchers import without
    from dovetail.historyserver.answers import advice_of
    from dovetail.historyserver.questions import AdviceQuestion

    source.check_prices(prices)
    question = AdviceQuestion(jobs, namespace or "", seconds)
    source = replace(source, namespace=question.namespace)
    pods: set[str] = set()

    def worked_out(reader: HistoryReader) -> JobAdviceList:
        found = advice_of(reader, question, book_of(prices))
        for one in found.jobs if jobs else ():
            of_namespace, _, name = one.job.partition("/")
            pods.update(f"{pod.namespace}/{pod.name}" for pod in reader.job(name, of_namespace))
        return found

    answer = source.answer(question, JobAdviceList, worked_out)
    if record:
        answer = replace(answer, earlier=_followed(record, source, question, book_of(prices)))
    if source.prometheus is not None:
        # `job` and `instance` are labels of the scrape of the collector.
        matchers = without(source.matchers, ("job", "instance"))
        loads = engine_loads(source.prometheus, question.namespace, matchers)
        if loads is not None:
            answer = replace(answer, engines=tuple(one for one in loads if not jobs or one.name in pods))
    earlier = answer.earlier
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
    if form.notes and answer.engines is not None:
        advise_report.engines(answer.engines, console)
    if form.notes and earlier:
        advise_report.earlier(answer, console)
    if diff or fix:
        advise_report.carry_out(answer.jobs, diff or fix, write=bool(fix))


def _followed(
    record: str, source: HistorySource, question: AdviceQuestion, book: PriceBook
) -> tuple[EarlierAdvice, ...]:
    """What became of the advice in the file. Raises ClickException."""
    from dovetail.cli.advise_record import followed
    from dovetail.cost.model_prices import market
    from dovetail.historyserver.answers import uses_of

    with source.opened("--record") as reader:
        period, uses = uses_of(reader, question)
        prices = market(reader.spans(period), book, period.end_ms)
        return followed(record, uses, reader, prices, period.end_ms)
