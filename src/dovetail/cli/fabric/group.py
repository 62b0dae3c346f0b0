# SPDX-License-Identifier: Apache-2.0
"""`dovetail fabric`."""

from __future__ import annotations

import click

from dovetail.cli import LazyGroup

_COMMANDS = {
    "check": "Find contradictions and weak links in files that describe the network.",
    "import": "Write the node labels that follow from files, or the same places for Slurm.",
    "measure": "Measure the network with jobs, and mark what is slow.",
    "show": "Draw the tree of switches, racks and nodes.",
}


@click.group(name="fabric", cls=LazyGroup, prefix="dovetail.cli.fabric.fabric_", lazy=_COMMANDS)
def command() -> None:
    """Read the network above the nodes from files of other tools, check it, and label nodes by it."""
