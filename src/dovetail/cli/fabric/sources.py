# SPDX-License-Identifier: Apache-2.0
"""The options of `dovetail fabric`, and the files that it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dovetail.cli.console import Console
from dovetail.cli.files import text_of
from dovetail.cli.output import printable

if TYPE_CHECKING:
    from dovetail.topology.fabric import FabricFinding, FabricReading

Command = TypeVar("Command", bound=Callable[..., Any])
FORMAT_NAMES = ("ibnetdiscover", "topology.yaml", "topology.conf", "aws", "gcp", "oci", "lldp", "node-labels", "csv")


def source_options(command: Command) -> Command:
    """FILE..., --format and --nodes."""
    command = click.option(
        "--nodes",
        metavar="FILE",
        help="Output of `kubectl get nodes -o json`: hosts get the names of its nodes; others are left out.",
    )(command)
    command = click.option(
        "--format",
        "format_name",
        type=click.Choice(FORMAT_NAMES),
        help="The format of all files; else their content decides.",
    )(command)
    return click.argument("files", metavar="FILE...", nargs=-1, required=True)(command)


def read_sources(files: Sequence[str], format_name: str | None, nodes: str | None) -> dict[str, FabricReading]:
    """The reading of each file. Raises ClickException."""
    from dovetail.topology.fabric import FabricError
    from dovetail.views.fabric import MOST_BYTES, node_names, read_fabric

    if len(set(files)) < len(files):
        raise click.UsageError("a FILE is there twice")
    found = {}
    at = nodes or ""
    try:
        names = node_names(text_of(nodes, most_bytes=MOST_BYTES)) if nodes else None
        for at in files:
            found[at] = read_fabric(text_of(at, most_bytes=MOST_BYTES), format_name, names)
    except FabricError as error:
        raise click.ClickException(f"{at}: {error}") from error
    return found


def print_findings(source: str, findings: Sequence[FabricFinding], console: Console) -> None:
    """The findings of a source, the errors first."""
    for one in sorted(findings, key=lambda one: not one.kind.is_error):
        severity = "error" if one.kind.is_error else "warning"
        console.print(printable(f"{source}: {severity}: {one.code}: {one.what}; {one.kind.fix}"), markup=False)
