# SPDX-License-Identifier: Apache-2.0
"""`dovetail plane`."""

from __future__ import annotations

import click

from dovetail.cli import LazyGroup

_COMMANDS = {
    "mcp": "Let a language model negotiate for leases of GPUs, over the Model Context Protocol.",
    "serve": "Serve the endpoints of agents' control planes, and carry their pods into leases.",
}


@click.group(name="plane", cls=LazyGroup, prefix="dovetail.cli.plane.", lazy=_COMMANDS)
def command() -> None:
    """Run the control plane of a software agent."""
