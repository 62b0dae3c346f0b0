# SPDX-License-Identifier: Apache-2.0
"""`dovetail migrate`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from dovetail.advice.migrate.step import MigrationOutcome, MigrationTarget, World
from dovetail.cli.manifest_files import File, diff, names, read, show_diffs, written
from dovetail.cli.output import versioned
from dovetail.kube.manifests.documents import STDIN
from dovetail.kube.manifests.folders import Ignored

if TYPE_CHECKING:
    from dovetail.advice.migrate.engine import Migrated, MigrationNote
    from dovetail.advice.migrate.plan import PlanStep

_COLOURS = {MigrationOutcome.CHANGED: "green", MigrationOutcome.UNDERSTOOD: "blue", MigrationOutcome.LEFT: "yellow"}


@click.command(name="migrate")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--write", is_flag=True, help="Change the files in place; for -, print the changed text.")
@click.option(
    "--to", "targets", multiple=True, type=click.Choice([target.value for target in MigrationTarget]),
    help="Convert further: to PodGroups of Kubernetes, or from GPU resources to claims.",
)  # fmt: skip
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--plan", "planned", is_flag=True, help="Print the steps to migrate a cluster; change nothing.")
def command(paths: tuple[str, ...], write: bool, targets: tuple[str, ...], output: str, planned: bool) -> None:
    """Convert manifests for other schedulers, or for an older Kubernetes, to those that Dovetail reads.

    PATH is a file, a folder, or - for standard input, such as rendered templates. Without --write nothing is changed:
    the diff goes to standard output, the report to standard error.

    Exit code 0: everything was converted, or is supported as it is; also with --plan. 1: something has no equivalent,
    and the report shows what to do. 2: wrong usage.
    """
    from dovetail.advice.migrate.plan import plan

    if paths.count(STDIN) > 1:
        raise click.UsageError("- is standard input, which can be read once")
    if planned and write:
        raise click.UsageError("--plan changes nothing: omit --write")
    if write and output == "json" and STDIN in paths:
        raise click.UsageError(
            "--write and -o json would both print to standard output: use one of them, or name files"
        )
    files = [read(name) for name in names(paths, Ignored(git=True))]
    objects = tuple(whole for file in files for document in file.documents for whole in document.objects())
    world = World(objects, frozenset(map(MigrationTarget, targets)))
    found = [_migrated(file, world) for file in files]
    changed = [file.rewritten(one.text) for file, one in zip(files, found, strict=True)]
    notes = [each for one in found for each in one.notes]
    if planned:
        made = [whole for file in changed for each in file.documents for whole in each.objects()]
        click.echo(_PLANS[output](plan(made, notes, (*(f"--to {target}" for target in targets), *paths))), nl=False)
        return
    if write:
        for old, new in zip(files, changed, strict=True):
            written(old, new)
    elif output == "text":
        show_diffs(files, changed)
    report = _as_json(files, changed, notes) if output == "json" else _as_text(notes, len(files))
    click.echo(report, nl=False, err=(output == "text" and not write) or (write and STDIN in paths))
    if any(one.outcome is MigrationOutcome.LEFT for one in notes):
        sys.exit(1)


def _migrated(file: File, world: World) -> Migrated:
    from dovetail.advice.migrate.engine import Migrated, MigrationNote, migrate

    if file.error is not None:
        return Migrated(
            "", (MigrationNote(MigrationOutcome.LEFT, "", file.name, file.error.line, "", "", file.error.message),)
        )
    return migrate(file.documents, world)


def _as_text(notes: Sequence[MigrationNote], files: int) -> str:
    lines = []
    for one in notes:
        outcome = click.style(one.outcome.value, _COLOURS[one.outcome], bold=True)
        where = f"{one.file}:{one.line}" if one.line else one.file
        what = ": ".join(part for part in (one.object, one.path, one.message) if part)
        lines.append(f"{where}: {outcome}: {what}" + (f" ({one.dialect})" if one.dialect else ""))
    counts = Counter(one.outcome for one in notes)
    summary = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in MigrationOutcome if counts[outcome])
    return "\n".join([*lines, f"{summary or 'nothing to migrate'} in {files} file{'s' if files != 1 else ''}"]) + "\n"


def _plan_text(steps: Sequence[PlanStep]) -> str:
    lines = []
    for number, step in enumerate(steps, start=1):
        lines.append(click.style(f"{number}. {step.title}", bold=True) + f": {step.why}")
        lines += [f"   $ {one}" for one in step.run]
        lines.append(f"   check: {step.check}")
        lines.append(f"          {step.expect}")
    return "\n".join(lines) + "\n"


def _plan_json(steps: Sequence[PlanStep]) -> str:
    return _text_of(versioned("MigrationStep", steps))


_PLANS = {"text": _plan_text, "json": _plan_json}


def _as_json(files: Sequence[File], changed: Sequence[File], notes: Sequence[MigrationNote]) -> str:
    from dovetail.advice.migrate.engine import MigratedFile, Migration

    written = tuple(
        MigratedFile(old.name, old.data != new.data, "".join(diff(old, new)))
        for old, new in zip(files, changed, strict=True)
    )
    return _text_of(versioned("Migration", Migration(written, tuple(notes))))


def _text_of(answer: object) -> str:
    return json.dumps(answer, indent=2, ensure_ascii=False) + "\n"
