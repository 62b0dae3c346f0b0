# SPDX-License-Identifier: Apache-2.0
"""What `dovetail advise` prints, and what it changes in manifests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import click

from dovetail.advice.sizing.advise import HOUR_S, saved_cost, saved_gpu_s
from dovetail.advice.sizing.changes import fixed_text
from dovetail.advice.sizing.rule import JobAdvice, JobAdviceList, SizingAdvice
from dovetail.advice.sizing.seen import gib, percent
from dovetail.cli.console import Console, Table, prose, right
from dovetail.cli.manifest_files import names, read, show_diffs, written
from dovetail.cli.money import money
from dovetail.cli.output import ago, count, foreign, gpus
from dovetail.monitoring.engine_load import EngineLoad, sentence

_MEANINGS = {
    "advice": "",
    "right-sized": ": what it holds fits what it does",
    "not enough data": " to advise another size",
}
_LABEL = 12
_MOST_ENGINES = 20


def hours(gpu_s: int) -> str:
    """GPU time as text: `640 GPU hours`."""
    return f"{gpu_s / HOUR_S:,.0f} GPU hours" if gpu_s >= 10 * HOUR_S else f"{gpu_s / HOUR_S:.1f} GPU hours"


def page(one: JobAdvice, console: Console) -> None:
    """Print all that was seen and advised of a job."""
    verdict = f"{one.verdict}{_MEANINGS[one.verdict]}" if not one.advice else f"advice: {_rules(one)}"
    console.print(f"[bold]{foreign(one.job)}[/bold]: {verdict}")
    owner = f"{foreign(one.user) or 'an unknown user'}, queue {foreign(one.queue) or 'not known'}"
    held = f"{gpus(one.gpus_milli)} x {foreign(one.model) or 'an unknown model'}"
    _line(console, "job", f"{owner}; {one.workload}, {held} at a time")
    _line(console, "runs", f"{count(one.runs, 'run')} with {count(one.pods, 'pod')}")
    _line(
        console, "window",
        f"{_day(one.start_ms)} to {_day(one.end_ms)} UTC, {count(one.days, 'day')} with data; "
        f"{percent(one.coverage_milli)} of {hours(one.held_gpu_s)} was measured",
    )  # fmt: skip
    if one.missing:
        _line(console, "missing", foreign(one.missing))
    if one.coverage_milli:
        _line(
            console, "real use",
            f"p50 at most {percent(one.p50_milli)}, p95 at most {percent(one.p95_milli)}, "
            f"mean {percent(one.mean_milli)}, idle {percent(one.idle_milli)}; "
            f"means of its GPUs {percent(one.least_milli)} to {percent(one.most_milli)}",
        )  # fmt: skip
        of = f" of {gib(one.memory_mib)}" if one.memory_mib else ""
        _line(console, "memory", f"peak {gib(one.memory_peak_mib)}{of}")
    _line(console, "class", f"{one.bottleneck}: {one.meaning}")
    for advice in one.advice:
        _advice(advice, console)


def _rules(one: JobAdvice) -> str:
    return ", ".join(advice.rule for advice in one.advice)


def _advice(advice: SizingAdvice, console: Console) -> None:
    console.print(f"\n[bold]{advice.rule}[/bold]: {advice.title}")
    for label, text in (
        ("cause", advice.cause), ("do", advice.action), ("saves", _saving(advice)), ("risk", advice.risk),
        ("wrong if", advice.falsifier),
    ):  # fmt: skip
        _line(console, label, foreign(text))


def _line(console: Console, label: str, text: str) -> None:
    console.print(f"  {label:<{_LABEL}}{text}")


def _saving(advice: SizingAdvice) -> str:
    parts = [f"{hours(advice.saving.gpu_s)} of the window"] if advice.saving.gpu_s else []
    if advice.saving.cost_micro is not None:
        cost = money(advice.saving.cost_micro, advice.saving.currency)
        parts.append(f"{cost} at prices of {advice.saving.price_date or 'no date'}")
    return ", ".join([*parts, *filter(None, [advice.gain])]) or "not known"


def _day(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def notes(answer: JobAdviceList, console: Console) -> None:
    """Print the totals below the table."""
    by_verdict = [(sum(one.verdict == verdict for one in answer.jobs), verdict) for verdict in _MEANINGS]
    counts = ", ".join(f"{number} {verdict}" for number, verdict in by_verdict if number)
    saved, held = sum(map(saved_gpu_s, answer.jobs)), sum(one.held_gpu_s for one in answer.jobs)
    cost = saved_cost(answer.jobs)
    priced = f", and {money(*cost)} where prices are known" if cost else ""
    console.print(
        f"{count(len(answer.jobs), 'job')}: {counts}. The advice would have saved {hours(saved)} of {hours(held)}"
        f"{priced}."
    )


def engines(loads: Sequence[EngineLoad], console: Console) -> None:
    """Print what is found in the load of inference engines now."""
    if not loads:
        return
    found = [one for one in loads if one.findings]
    number = count(len(loads), "replica or pool", "replicas and pools")
    console.print(f"Inference engines now: {number}, {len(found)} with findings.")
    for one in found[:_MOST_ENGINES]:
        console.print(f"- {foreign(sentence(one))}.")
    if len(found) > _MOST_ENGINES:
        console.print(f"- {len(found) - _MOST_ENGINES} more: -o json has all.")


def earlier(answer: JobAdviceList, console: Console) -> None:
    """Print what became of earlier advice."""
    console.print("What was advised before:")
    table = Table(
        "job", "rule", "advised", "since then", prose("held"), prose("holds now"), right("use"), right("use now")
    )
    for one in answer.earlier:
        since = ago(one.advised_ms, answer.now_ms)
        table.add_row(
            foreign(one.job), one.rule, f"{since} ago", one.followed, foreign(one.held), foreign(one.held_now) or "-",
            percent(one.mean_milli), percent(one.mean_now_milli) if one.held_now else "-",
        )  # fmt: skip
    console.print(table)


def carry_out(jobs: Iterable[JobAdvice], paths: Sequence[str], *, write: bool) -> None:
    """Change the manifests of the jobs in files, or show the diff. Raises ClickException."""
    jobs = tuple(jobs)
    files = [read(name) for name in names(paths)]
    changed = []
    done: list[str] = []
    for file in files:
        if file.error is not None:
            raise click.ClickException(f"{file.name}: {file.error.message}")
        texts = []
        for document in file.documents:
            text, carried_out, refused = fixed_text(document, jobs)
            texts.append(text)
            done += carried_out
            for name in refused:
                click.echo(f"{file.name}: {name}: its text is not laid out for the change; change it by hand", err=True)
        changed.append(file.rewritten("".join(texts)))
    if write:
        for old, new in zip(files, changed, strict=True):
            written(old, new)
    else:
        show_diffs(files, changed)
    left = [one.job for one in jobs if one.job not in done and any(advice.change is not None for advice in one.advice)]
    verb = "changed" if write else "would change"
    click.echo(f"{verb}: {', '.join(dict.fromkeys(done)) or 'nothing'}", err=True)
    if left:
        click.echo(f"no manifest that can be changed: {', '.join(left)}", err=True)
