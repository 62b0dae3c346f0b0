# SPDX-License-Identifier: Apache-2.0
"""`dovetail fabric show`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from dovetail.cli.answer_form import AnswerForm, answer_option, write_answer
from dovetail.cli.console import Console
from dovetail.cli.fabric.sources import SourceChoice, read_sources, source_options
from dovetail.cli.output import count, printable

if TYPE_CHECKING:
    from dovetail.topology.fabric import FabricPlacement


@click.command(name="show")
@source_options()
@answer_option
def command(choice: SourceChoice, form: AnswerForm) -> None:
    """Draw the tree of switches, racks and nodes that each FILE describes.

    Without a FILE it is that of the labels of the cluster's nodes; with --cluster also that.
    """
    from dovetail.cli.fabric.answers import trees_of

    sources = read_sources(choice)
    if form.whole:
        write_answer(form, "FabricTrees", trees_of(sources))
        return
    for source, reading in sources.items():
        console = Console()
        console.print(f"{source}: {count(len(reading.placements), 'node')}", markup=False)
        for line in tree_lines(reading.placements):
            console.print(printable(line), markup=False)


def tree_lines(placements: Sequence[FabricPlacement]) -> Iterator[str]:
    """The domains, each with its number of nodes, and the nodes of the narrowest as a hostlist."""
    yield from _below({one.node: one.path for one in placements}, "")


def _below(paths: Mapping[str, tuple[str, ...]], indent: str) -> Iterator[str]:
    from dovetail.topology.hostlist import compress

    domains: dict[str, dict[str, tuple[str, ...]]] = {}
    for node, path in paths.items():
        domains.setdefault(path[0], {})[node] = path[1:]
    for at, name in enumerate(sorted(domains)):
        inside = domains[name]
        last = at == len(domains) - 1
        leaf = not any(inside.values())
        shown = f": {compress(sorted(inside))}" if leaf else ""
        yield f"{indent}{'└' if last else '├'}─ {name} ({len(inside)}){shown}"
        if not leaf:
            yield from _below(inside, f"{indent}{' ' if last else '│'}  ")
