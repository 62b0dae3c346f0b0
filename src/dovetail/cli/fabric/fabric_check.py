# SPDX-License-Identifier: Apache-2.0
"""`dovetail fabric check`."""

from __future__ import annotations

import sys

import click

from dovetail.cli.console import Console
from dovetail.cli.fabric.sources import print_findings, read_sources, source_options
from dovetail.cli.output import count


@click.command(name="check")
@source_options
def command(files: tuple[str, ...], format_name: str | None, nodes: str | None) -> None:
    """Find contradictions and weak links in files that describe the network above the nodes.

    Each FILE is compared with each other one. Exit code 1: there are errors, which `import` refuses.
    """
    from dovetail.topology.fabric_check import findings_of

    sources = read_sources(files, format_name, nodes)
    found = findings_of(sources)
    console = Console()
    for source, findings in found.items():
        print_findings(source, findings, console)
    every = [one for findings in found.values() for one in findings]
    errors = sum(one.kind.is_error for one in every)
    counted = ", ".join(f"{name}: {count(len(reading.placements), 'node')}" for name, reading in sources.items())
    console.print(f"{counted}; {count(errors, 'error')}, {count(len(every) - errors, 'warning')}")
    sys.exit(1 if errors else 0)
