# SPDX-License-Identifier: Apache-2.0
"""What `run` and `submit` do before they create objects: the linter examines them, with the nodes and queues of the
cluster as far as the user may read these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import yaml
from msgspec.structs import replace

from dovetail.advice.lint.cluster import FEW_REQUESTS, few_facts
from dovetail.advice.lint.engine import LintFinding, lint
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.fix import fixed
from dovetail.advice.lint.inventory import facts_of
from dovetail.advice.lint.rule import Facts, Severity
from dovetail.advice.lint.rules import RULES
from dovetail.advice.lint.source import SourceDocument, documents
from dovetail.cli.cluster import run
from dovetail.cli.output import count
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.manifests.documents import ManifestError, read_documents
from dovetail.kube.reading.lists import read_lists

Document = dict[str, Any]
_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "blue"}


def cluster_facts(config: ClusterConfig) -> Facts:
    """The nodes and queues of the cluster, as far as they may be read. Raises ClickException."""
    return few_facts(run(read_lists(config, FEW_REQUESTS), config.server))


def file_facts(files: Sequence[str]) -> Facts:
    """The same of files that stand for a cluster. Raises ClickException."""
    try:
        return facts_of(Field(one.value) for one in read_documents(files))
    except ManifestError as error:
        raise click.ClickException(str(error)) from error


def examined(made: Sequence[Document], facts: Facts) -> tuple[list[Document], list[LintFinding]]:
    """The objects with what the linter can fix in them fixed, and what it finds then."""
    text = yaml.safe_dump_all(made, sort_keys=False)
    found = [fixed(one, _with(facts, documents("", text)), RULES) for one in documents("", text)]
    whole = [field.value for one in found for field in one.objects()]
    return whole, findings(found, facts)


def findings(found: Sequence[SourceDocument], facts: Facts) -> list[LintFinding]:
    """What the linter finds in the documents."""
    return list(lint(found, _with(facts, found), RULES))


def _with(facts: Facts, found: Sequence[SourceDocument] | Any) -> Facts:
    own = tuple(field for one in found for field in one.objects())
    return replace(facts, objects=own + facts.objects)


def report(found: Sequence[LintFinding], *, force: bool) -> None:
    """Print the findings on standard error. Raises ClickException for errors without `force`."""
    for one in found:
        level = click.style(one.level.value, _COLOURS[one.level], bold=True)
        place = f"{one.file}:{one.line}: " if one.file and one.line else ""
        where = f"{one.object}: {one.path}: " if one.path else ""
        guess = " (a guess: the nodes are not known)" if one.guess else ""
        click.echo(f"{place}{level} {one.rule}: {where}{one.message}{guess}", err=True)
    errors = [one for one in found if one.level is Severity.ERROR]
    if errors and not force:
        rule = errors[0].rule
        explained = f"`dovetail lint --explain {rule}` explains {rule}; " if rule != "G00" else ""
        raise click.ClickException(
            f"nothing was created: {count(len(errors), 'error')}; {explained}--force creates the objects all the same"
        )
