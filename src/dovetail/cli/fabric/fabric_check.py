# SPDX-License-Identifier: Apache-2.0
"""`dovetail fabric check`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from dovetail.cli.answer_form import AnswerForm, answer_option, write_answer
from dovetail.cli.console import Console
from dovetail.cli.fabric.sources import (
    CLUSTER,
    SourceChoice,
    imports_of,
    print_findings,
    read_sources,
    recorded_of,
    source_options,
    spares_of,
)
from dovetail.cli.output import count

if TYPE_CHECKING:
    from dovetail.topology.fabric import FabricFinding, FabricReading


@click.command(name="check")
@source_options()
@answer_option
def command(choice: SourceChoice, form: AnswerForm) -> None:
    """Find contradictions and weak links in what describes the network above the nodes.

    Without a FILE the labels of the cluster's nodes are checked. Each FILE is compared with each other one, and with
    --cluster with these labels and what was imported before. Domains with fewer spare nodes than the Fabric has a rule
    for are found, too. Exit code 1: there are errors, which `import` refuses.
    """
    from dovetail.cli.fabric.answers import check_of
    from dovetail.topology.fabric_check import findings_of
    from dovetail.views.spares import too_few

    sources, fabric = read_sources(choice), recorded_of(choice)
    sources |= imports_of(fabric)
    found = findings_of(sources)
    if spares := spares_of(choice, fabric):
        found[CLUSTER] = [*found.get(CLUSTER, ()), *too_few(spares)]
    if form.whole:
        write_answer(form, "FabricCheck", check_of(sources, found))
    else:
        _show(sources, found)
    sys.exit(1 if any(one.kind.is_error for findings in found.values() for one in findings) else 0)


def _show(sources: Mapping[str, FabricReading], found: Mapping[str, Sequence[FabricFinding]]) -> None:
    console = Console()
    for source, findings in found.items():
        print_findings(source, findings, console)
    every = [one for findings in found.values() for one in findings]
    errors = sum(one.kind.is_error for one in every)
    counted = ", ".join(f"{name}: {count(len(reading.placements), 'node')}" for name, reading in sources.items())
    console.print(f"{counted}; {count(errors, 'error')}, {count(len(every) - errors, 'warning')}")
