# SPDX-License-Identifier: Apache-2.0
"""`dovetail lint`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct
from msgspec.structs import replace

from dovetail.advice.lint.inventory import facts_of
from dovetail.advice.lint.rule import Facts, Rule, Severity
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.lint.baseline import new_findings, read_baseline
from dovetail.cli.lint.baseline import write_baseline as save_baseline
from dovetail.cli.lint.left_out import LeftOut
from dovetail.cli.lint.settings import FILE, BadSettings, settings_of
from dovetail.cli.manifest_files import File, names, read, show_diffs, written
from dovetail.cli.output import count
from dovetail.kube.api.gc_pause import gc_paused
from dovetail.kube.manifests.documents import STDIN
from dovetail.kube.manifests.folders import Ignored

if TYPE_CHECKING:
    from dovetail.advice.lint.engine import LintFinding
    from dovetail.advice.lint.field import Field

_FAIL_ON = {
    "error": {Severity.ERROR},
    "warning": {Severity.ERROR, Severity.WARNING},
    "info": set(Severity),
    "never": set(),
}
WRITERS = ("text", "json", "sarif", "junit", "github")
"""The names of `report.WRITERS`, which are not imported for the options."""


class NotKnown(click.ClickException):
    """The inventory or the cluster could not be read."""

    exit_code = 3


class InventorySource(Struct, frozen=True):
    """Where the nodes are known from: files, or with `cluster` the cluster of the kubeconfig and its context."""

    inventory: tuple[str, ...]
    cluster: bool
    kubeconfig: str | None
    context: str | None


class _Rules(click.ParamType[tuple[str, ...]]):
    name = "RULES"

    def convert(
        self, value: str | tuple[str, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        from dovetail.advice.lint.engine import UNREADABLE
        from dovetail.advice.lint.rules import RULES

        chosen = tuple(part.strip().upper() for part in value.split(",") if part.strip())
        known = [UNREADABLE, *(rule.id for rule in RULES)]
        for each in chosen:
            if each not in known:
                self.fail(f"there is no rule {each}; --list shows all", param, ctx)
        return chosen


def _known(rules: Sequence[str]) -> tuple[str, ...]:
    """The ids of the configuration. Raises BadSettings for one that does not exist."""
    from dovetail.advice.lint.engine import UNREADABLE
    from dovetail.advice.lint.rules import BY_ID

    for one in rules:
        if one != UNREADABLE and one not in BY_ID:
            raise BadSettings(f"{FILE}: there is no rule {one}; dovetail lint --list shows all")
    return tuple(rules)


def _explain(ctx: click.Context, param: click.Parameter, value: tuple[str, ...] | None) -> None:
    if value and not ctx.resilient_parsing:
        from dovetail.advice.lint.rules import RULES
        from dovetail.cli.lint import report as lint_report

        for rule in RULES:
            if rule.id in value:
                click.echo(lint_report.explained(rule))
        ctx.exit()


def _list(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from dovetail.advice.lint.rules import RULES

        for rule in RULES:
            fix = "--fix" if rule.fixable else ""
            click.echo(f"{rule.id}  {rule.level.value:<8}{fix:<7}{rule.title}")
        ctx.exit()


@click.command(name="lint")
@click.argument("paths", nargs=-1, metavar="PATH...")
@click.option("--fix", is_flag=True, help="Fix in place what can be fixed; for -, print the fixed text.")
@click.option("--diff", is_flag=True, help="Show what --fix would change; change nothing.")
@click.option("-o", "--output", type=click.Choice(WRITERS), default="text", show_default=True)
@click.option(
    "--inventory", multiple=True, metavar="FILE", help="Nodes and other objects of a cluster, as kubectl prints them."
)
@click.option("--cluster", is_flag=True, help="Read the cluster of the kubeconfig, so that guesses become exact.")
@click.option("--only", type=_Rules(), default=(), help="Only these rules, separated by commas.")
@click.option("--skip", type=_Rules(), default=(), help="All rules except these; G00 are unreadable documents.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave out files, with the syntax of .gitignore.")
@click.option(
    "--config", metavar="FILE", help=f"The configuration; else the nearest {FILE} up to the root of the repository."
)
@click.option("--baseline", metavar="FILE", help="Leave out the findings that this file has.")
@click.option("--write-baseline", metavar="FILE", help="Write all findings to this file, for --baseline; exit with 0.")
@click.option(
    "--fail-on", type=click.Choice(list(_FAIL_ON)),
    help="Exit with 1 if there is a finding of this level or a worse one; without it: error.",
)  # fmt: skip
@click.option("--fail-unchecked", is_flag=True, help="Exit with 1 also if something was not checked: see the report.")
@click.option(
    "--explain", type=_Rules(), expose_value=False, is_eager=True, callback=_explain, help="Explain rules and exit."
)
@click.option("--list", is_flag=True, expose_value=False, is_eager=True, callback=_list, help="List rules and exit.")
@click.option(
    "--policy", is_flag=True, help="Print ValidatingAdmissionPolicies for the rules that CEL can express, and exit."
)
@click.option("--deny", type=_Rules(), default=(), help="With --policy: these rules deny; all others warn.")
@kubeconfig_options
@gc_paused(kept=True)
def command(
    paths: tuple[str, ...],
    fix: bool,
    diff: bool,
    output: str,
    inventory: tuple[str, ...],
    cluster: bool,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    exclude: tuple[str, ...],
    config: str | None,
    baseline: str | None,
    write_baseline: str | None,
    fail_on: str | None,
    fail_unchecked: bool,
    policy: bool,
    deny: tuple[str, ...],
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Find faults in manifests of GPU jobs before they are submitted, and fix them.

    PATH is a file, a folder, or - for standard input, such as rendered templates. Of a folder, what .gitignore files
    name is left out. Templates that were not rendered are skipped, and counted.

    Exit code 0: no finding of the level of --fail-on or worse. 1: there is one, or with --fail-unchecked something was
    not checked. 2: wrong usage, also in the
    configuration. 3: the inventory or the cluster cannot be read.
    """
    from dovetail.advice.lint.rules import RULES
    from dovetail.cli.lint import report as lint_report

    settings, folder = settings_of(config)
    only, skip = only or _known(settings.only), (*skip, *_known(settings.skip))
    rules = tuple(rule for rule in RULES if (not only or rule.id in only) and rule.id not in skip)
    source = InventorySource(inventory, cluster, kubeconfig, context)
    _refuse_contradictions(paths, fix, diff, output, policy, deny, source)
    if policy:
        from dovetail.advice.lint import admission
        from dovetail.advice.lint.policies import POLICIES

        available = [one.id for one in rules if one.id in POLICIES]
        missing = [rule for rule in deny if rule not in available]
        if missing:
            raise click.UsageError(
                f"--deny {','.join(missing)}: CEL cannot express it, or --only or --skip excludes it; possible are "
                f"{', '.join(available)}"
            )
        click.echo(admission.policies(rules, frozenset(deny), _cluster_facts(source)), nl=False)
        return
    ignored = Ignored(True, ((Path.cwd(), exclude), (folder, settings.exclude)))
    files = [read(name) for name in names(paths, ignored)]
    objects = _objects(files)
    cluster_facts = _cluster_facts(source)
    facts = replace(cluster_facts, objects=objects + cluster_facts.objects)
    if diff:
        changed = [_fixed(file, facts, rules) for file in files]
        show_diffs(files, changed)
        if all(old.data == new.data for old, new in zip(files, changed, strict=True)):
            click.echo("--fix would change nothing: no finding here has a fix", err=True)
    elif fix:
        files = [written(file, _fixed(file, facts, rules)) for file in files]
    left_out = LeftOut(frozenset(paths))
    found = []
    for one in (finding for file in files for finding in _findings(left_out.of(file), facts, rules)):
        if one.rule not in skip:
            # Asked while the tree of the document, which its edits need, is at hand.
            _ = output in lint_report.SHOW_FIXES and not diff and one.fixable
            found.append(one)
    known = folder / settings.baseline if settings.baseline and baseline is None else baseline
    if write_baseline is not None:
        save_baseline(Path(write_baseline), found)
        click.echo(f"{write_baseline}: {count(len(found), 'finding')} written", err=True)
        return
    if known is not None:
        new = new_findings(found, read_baseline(Path(known)), Path(known).parent)
        left_out.known, found = len(found) - len(new), new
    fatal = frozenset(level for level in Severity if level in _FAIL_ON[fail_on or settings.fail_on or "error"])
    missed = (*lint_report.unchecked(objects), *left_out.missed())
    if not diff:
        named = tuple(file.name for file in files)
        report = lint_report.LintReport(tuple(found), named, objects, rules, fatal, (*missed, *left_out.lines()))
        click.echo(lint_report.WRITERS[output](report), nl=False, err=fix and STDIN in paths)
        if output != "text":
            for line in report.left_out:
                click.echo(line, err=True)
    if any(one.level in fatal for one in found) or (fail_unchecked and missed):
        sys.exit(1)


def _refuse_contradictions(
    paths: tuple[str, ...], fix: bool, diff: bool, output: str, policy: bool, deny: tuple[str, ...],
    source: InventorySource,
) -> None:  # fmt: skip
    """Raises UsageError."""
    looks, named = source.cluster, bool(source.kubeconfig or source.context)
    if not paths and not policy:
        raise click.UsageError("name files or folders to lint, or - for standard input")
    for wrong, why in (
        (fix and diff, "--diff shows what --fix writes: use one of them"),
        (diff and output != "text", f"--diff prints a diff, not {output}"),
        (bool(deny) and not policy, "--deny needs --policy"),
        (policy and bool(paths), "--policy prints policies and lints nothing: omit the paths"),
        (looks and bool(source.inventory), "--cluster and --inventory both define the nodes: use one of them"),
        (named and not looks, "--kubeconfig and --context need --cluster"),
        (paths.count(STDIN) + source.inventory.count(STDIN) > 1, "- is standard input, which can be read once"),
    ):
        if wrong:
            raise click.UsageError(why)


def linted(paths: tuple[str, ...], inventory: tuple[str, ...]) -> list[LintFinding]:
    """The findings of all rules in the files, with what is known of the nodes from the inventory. Raises
    ClickException."""
    from dovetail.advice.lint.rules import RULES

    files = [read(name) for name in names(paths, Ignored(True))]
    try:
        known = _inventory_facts(tuple(names(inventory)))
    except NotKnown:
        known = Facts()
    facts = replace(known, objects=_objects(files) + known.objects)
    return [finding for file in files for finding in _findings(file, facts, RULES)]


def _objects(files: Iterable[File]) -> tuple[Field, ...]:
    return tuple(whole for file in files for document in file.documents for whole in document.objects())


def _fixed(file: File, facts: Facts, rules: Sequence[Rule]) -> File:
    from dovetail.advice.lint.fix import fixed

    return file.rewritten("".join(fixed(document, facts, rules).text for document in file.documents))


def _findings(file: File, facts: Facts, rules: Sequence[Rule]) -> Iterable[LintFinding]:
    from dovetail.advice.lint.engine import lint, unreadable

    if file.error is not None:
        return [unreadable(file.name, file.error)]
    return lint(file.documents, facts, rules)


def _cluster_facts(source: InventorySource) -> Facts:
    """The facts of the cluster or of the inventory; empty without both. Raises NotKnown."""
    if source.cluster:
        # Imported here: to load the client takes longer than to lint most files.
        from dovetail.cli.lint.cluster import read_facts

        return read_facts(config_of(source.kubeconfig, source.context), NotKnown)
    return _inventory_facts(source.inventory) if source.inventory else Facts()


def _inventory_facts(inventory: tuple[str, ...]) -> Facts:
    """Raises NotKnown."""
    objects = []
    for file in map(read, inventory):
        errors = [file.error] if file.error else [each.error for each in file.documents if each.error]
        for error in errors:
            place = f"{file.name}:{error.line}" if error.line else file.name
            raise NotKnown(f"{place}: {error.message}")
        objects += [whole for document in file.documents for whole in document.objects()]
    facts = facts_of(objects)
    if not facts.nodes:
        raise NotKnown(f"{', '.join(inventory)}: no Node found; `kubectl get nodes -o yaml` prints them")
    return facts
