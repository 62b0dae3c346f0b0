# SPDX-License-Identifier: Apache-2.0
"""`dovetail spot`."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, isfinite
from pathlib import Path

import click
from msgspec import Struct

from dovetail.advice.fault_tolerance import RULES, Lack, Means, lacks
from dovetail.advice.interruptions import Interrupted, break_even_discount, break_even_mtbi_s
from dovetail.advice.lint.rewrite import NotRewritten, rewritten
from dovetail.advice.lint.source import SourceDocument, document
from dovetail.cli import manifest_files
from dovetail.cli.answer_form import AnswerForm, answer_option, write_answer
from dovetail.cli.console import Console, Table, right
from dovetail.cli.extras import plot_option
from dovetail.cli.output import span
from dovetail.cli.quantities import DurationParam, Percent
from dovetail.kube.manifests.documents import STDIN
from dovetail.kube.manifests.templates import group_kind

_POINTS, _SPREAD = 200, 30.0


class At(Struct, frozen=True):
    """Expected time and cost at a checkpoint interval, as multiples of those on demand without checkpoints; None if the
    job never ends. `expected_s` is the expected run time of the job, None without --work."""

    name: str
    interval_s: float
    time_factor: float | None
    cost_factor: float | None
    expected_s: float | None


class Missing(Struct, frozen=True):
    """Something that a manifest lacks. `fixable`: --fix can add it with the options at hand."""

    file: str
    line: int
    object: str
    field: str
    what: str
    fixable: bool


class Spot(Struct, frozen=True):
    """The answer. `mtbi_s` and `break_even_mtbi_s` are mean times between interruptions of the whole job, the latter
    None without a discount. `break_even_discount` is a fraction of 1, None if the job never ends. `missing` is None
    without manifests."""

    save_s: float
    restart_s: float
    mtbi_s: float
    discount: float
    intervals: tuple[At, ...]
    break_even_discount: float | None
    break_even_mtbi_s: float | None
    pays: bool
    missing: tuple[Missing, ...] | None


@click.command(name="spot")
@click.option("--save", type=DurationParam(), required=True, help="Time that the job takes to save a checkpoint.")
@click.option("--restart", type=DurationParam(0), required=True, help="Time from an interruption until work resumes.")
@click.option("--mtbi", type=DurationParam(), help="Mean time between interruptions of one instance. Or use --rate.")
@click.option("--rate", type=float, metavar="PER-HOUR", help="Interruptions of one instance per hour. Or use --mtbi.")
@click.option("--discount", type=Percent(), required=True, help="How much less spot costs than on demand.")
@click.option(
    "--nodes",
    type=click.IntRange(1, 1 << 16),
    default=1,
    show_default=True,
    help="Instances of the job; when one is interrupted, all restart.",
)
@click.option("--work", type=DurationParam(), help="Run time without interruptions; adds the expected run time.")
@click.option("--interval", type=DurationParam(), help="Also show time and cost at this checkpoint interval.")
@plot_option("Draw cost by interval, as PNG.")
@click.option("-f", "--file", "files", multiple=True, help="Manifests to check for fault tolerance; - for stdin.")
@click.option("--fix", is_flag=True, help="Add what the manifests lack, where the text to add is known.")
@click.option("--checkpoint-claim", metavar="NAME", help="With -f: the PersistentVolumeClaim for the checkpoints.")
@click.option("--save-command", metavar="COMMAND", help="With -f: the shell command that saves a checkpoint.")
@answer_option
def command(
    save: float,
    restart: float,
    mtbi: float | None,
    rate: float | None,
    discount: float,
    nodes: int,
    work: float | None,
    interval: float | None,
    plot: Path | None,
    files: tuple[str, ...],
    fix: bool,
    checkpoint_claim: str | None,
    save_command: str | None,
    form: AnswerForm,
) -> None:
    """Compute how often to save checkpoints, what interruptions cost in time and money, and whether spot pays.

    The model is random, independent interruptions. Needs no cluster and no network.
    """  # fmt: skip
    if (mtbi is None) == (rate is None):
        raise click.UsageError("use either --mtbi or --rate: how often an instance is interrupted")
    if rate is not None and not 0 < rate < inf:
        raise click.UsageError(f"--rate {rate:g}: must be more than 0 interruptions per hour")
    each_s = mtbi if mtbi is not None else 3600 / (rate or 1)
    if (fix or checkpoint_claim or save_command) and not files:
        raise click.UsageError("--fix, --checkpoint-claim and --save-command need manifests: name them by -f")
    if fix and STDIN in files and form.whole:
        raise click.UsageError(
            "--fix of standard input and -o json would both print to standard output: use one of them"
        )
    job = Interrupted(save, restart, each_s / nodes)
    wanted = {"Young 1974": job.young_s(), "Daly 2006": job.daly_s()} | ({"yours": interval} if interval else {})
    intervals = tuple(_at(name, job, each, discount, work) for name, each in wanted.items())
    best = job.best()
    means = Means(save, checkpoint_claim or "", save_command or "")
    found = Spot(
        save, restart, job.mtbi_s, discount, intervals, break_even_discount(best) if isfinite(best) else None,
        break_even_mtbi_s(save, restart, discount), best * (1 - discount) < 1,
        _missing(files, means, fix) if files else None,
    )  # fmt: skip
    if plot is not None:
        _draw(found, job, plot)
    if form.whole:
        write_answer(form, "SpotAnswer", found)
    else:
        _show(found, Console(markup=False, stderr=fix and STDIN in files))


def _at(name: str, job: Interrupted, interval_s: float, discount: float, work_s: float | None) -> At:
    slowdown = job.slowdown(interval_s)
    if not isfinite(slowdown):
        return At(name, interval_s, None, None, None)
    return At(name, interval_s, slowdown, slowdown * (1 - discount), work_s and work_s * slowdown)


def _missing(files: tuple[str, ...], means: Means, fix: bool) -> tuple[Missing, ...]:
    """What the manifests lack; with `fix`, what they still lack after the files were changed."""
    found, jobs = [], 0
    for file in map(manifest_files.read, manifest_files.names(files)):
        for error in [file.error] if file.error else [each.error for each in file.documents if each.error]:
            place = f"{file.name}:{error.line}" if error.line else file.name
            raise click.ClickException(f"{place}: {error.message}")
        if fix:
            text = "".join(_fixed(each, means).text for each in file.documents)
            file = manifest_files.written(file, file.rewritten(text))
        for each in file.documents:
            jobs += sum(group_kind(whole.value) in RULES for whole in each.objects())
            found += [_missing_of(each, name, lack) for name, lack in _lacks(each, means)]
    if not jobs:
        kinds = ", ".join(dict.fromkeys(kind for _, kind in RULES))
        raise click.ClickException(f"{', '.join(files)}: no job found; the kinds of jobs are {kinds}")
    return tuple(found)


def _lacks(of: SourceDocument, means: Means) -> Iterator[tuple[str, Lack]]:
    """Pairs of the name of a job of the document and something that the job lacks."""
    from dovetail.advice.lint.engine import name_of

    for whole in of.objects():
        if group_kind(whole.value) in RULES:
            yield from ((name_of(whole), lack) for lack in lacks(whole, means))


def _fixed(of: SourceDocument, means: Means) -> SourceDocument:
    """The document with what can be added. An addition that would change other parts of the text is left out."""
    refused: set[str] = set()
    while lack := next((one for _, one in _lacks(of, means) if one.edits and str(one.field) not in refused), None):
        try:
            of = document(of.file, rewritten(of.text, lack.edits), of.first_line)
        except NotRewritten:
            refused.add(str(lack.field))
    return of


def _missing_of(of: SourceDocument, name: str, lack: Lack) -> Missing:
    try:
        fixable = bool(lack.edits) and bool(rewritten(of.text, lack.edits))
    except NotRewritten:
        fixable = False
    return Missing(of.file, of.position(lack.field.path)[0], name, str(lack.field), lack.what, fixable)


def _draw(found: Spot, job: Interrupted, path: Path) -> None:
    # Imported here: matplotlib takes half a second to load.
    from dovetail.views.spot_plot import draw

    marked = {at.name: (at.interval_s, at.cost_factor) for at in found.intervals if at.cost_factor is not None}
    if not marked:
        raise click.ClickException("nothing to draw: the job never ends at any interval")
    daly_s = job.daly_s()
    steps = (daly_s * _SPREAD ** (2 * at / _POINTS - 1) for at in range(_POINTS + 1))
    curve = [(each, job.slowdown(each) * (1 - found.discount)) for each in steps]
    every = span(round(1000 * found.mtbi_s))
    title = f"Saving {span(round(1000 * found.save_s))}, an interruption every {every}, {100 * found.discount:g} % off"
    try:
        draw(title, [point for point in curve if isfinite(point[1])], marked, path)
    except OSError as error:
        raise click.ClickException(f"cannot write the picture: {error}") from error
    Console(stderr=True).print(f"drawn: {path}")


def _show(found: Spot, console: Console) -> None:
    console.print(f"The job is interrupted every {span(round(1000 * found.mtbi_s))} on average.")
    table = Table("checkpoint interval by", right("interval"), right("time"), right("cost"))
    for at in found.intervals:
        factors = ("never ends", "-") if at.time_factor is None else (f"{at.time_factor:.3f}", f"{at.cost_factor:.3f}")
        if at.expected_s is not None:
            factors = (f"{factors[0]} = {span(round(1000 * at.expected_s))}", factors[1])
        table.add_row(at.name, span(round(1000 * at.interval_s)), *factors)
    console.print(table)
    console.print("Time and cost are expected values; 1 is on demand without checkpoints.")
    console.print(_verdict(found))
    if found.missing is not None:
        console.print(
            "\nThe manifests lack, to survive an interruption:" if found.missing else "\nThe manifests lack nothing."
        )
    for one in found.missing or ():
        console.print(f"{one.file}:{one.line}: {one.object}: {one.field}: {one.what}", soft_wrap=True)
    fixable = sum(one.fixable for one in found.missing or ())
    if fixable:
        console.print(f"--fix adds {fixable} of them.")


def _verdict(found: Spot) -> str:
    least, often = found.break_even_discount, found.break_even_mtbi_s
    ends = [] if least is None else [f"{100 * least:.1f} % off"]
    ends += [] if often is None else [f"an interruption every {span(round(1000 * often))}"]
    verdict = f"Spot {'pays' if found.pays else 'does not pay'}."
    return f"{verdict} It breaks even at {', or at '.join(ends)}." if ends else verdict
