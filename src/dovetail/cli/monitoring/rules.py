# SPDX-License-Identifier: Apache-2.0
"""`dovetail monitoring rules`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
import yaml

from dovetail.kube.yaml_text import read_yaml
from dovetail.monitoring.rules import RUNBOOKS, prometheus_rules, rule_file
from dovetail.monitoring.thresholds import THRESHOLDS, BadThreshold, resolved

_GENERATED = (
    "# Made by `dovetail monitoring rules{options}` (docs/how-to/monitoring.md). Change thresholds with --thresholds.\n"
)


@click.command(name="rules")
@click.option("-o", "--output", type=click.Choice(["yaml", "crd", "thresholds"]), default="yaml", show_default=True)
@click.option("--thresholds", "overrides", metavar="FILE", type=click.File("rb"))
@click.option("--runbooks", metavar="URL", default=RUNBOOKS, show_default=True)
def command(output: str, overrides: Any, runbooks: str) -> None:
    """Write the recording rules and alerts for Prometheus to standard output.

    `yaml` is a plain rule file, `crd` are PrometheusRule objects for the operator of Prometheus, `thresholds` is a file
    for --thresholds with the values that are in force and their meaning.
    """
    try:
        values = resolved(_read(overrides) if overrides is not None else {})
    except BadThreshold as error:
        raise click.ClickException(f"{overrides.name}: {error}") from error
    if output == "thresholds":
        click.echo("".join(_threshold_lines(values)), nl=False)
    else:
        made = rule_file(values, runbooks) if output == "yaml" else prometheus_rules(values, runbooks)
        click.echo(text(output, made), nl=False)


def text(output: str, document: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> str:
    """A rule file (`yaml`) or PrometheusRule objects (`crd`) as they are written."""
    documents = [document] if isinstance(document, Mapping) else document
    options = "" if output == "yaml" else f" -o {output}"
    return _GENERATED.format(options=options) + yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True
    )


def _read(file: Any) -> Mapping[str, object]:
    try:
        found = read_yaml(file.read())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadThreshold(f"it is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise BadThreshold("it must have lines `NAME: VALUE`")
    return {str(name): value for name, value in found.items()}


def _threshold_lines(values: Mapping[str, object]) -> list[str]:
    return [f"# {one.meaning} ({one.unit})\n{yaml.safe_dump({one.name: values[one.name]})}" for one in THRESHOLDS]


class _Dumper(yaml.SafeDumper):
    """Expressions of several lines are blocks."""


def _string(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _string)
