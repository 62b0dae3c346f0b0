# SPDX-License-Identifier: Apache-2.0
"""`dovetail agent`."""

from __future__ import annotations

import click

from dovetail.cli import LazyGroup

_COMMANDS = {
    "inspect": "Show the GPUs of this machine, how they are wired, and what could not be read.",
    "mps": "Keep the MPS control daemons that the agent of this machine asks for.",
    "observe": "Tell the agent how GPUs are divided by MIG: the part of it that needs a privilege.",
    "run": "Offer the GPUs of this machine to its kubelet, and tell the cluster what there is.",
}


@click.group(name="agent", cls=LazyGroup, prefix="dovetail.cli.agent.", lazy=_COMMANDS)
def command() -> None:
    """Find the GPUs of this machine and offer them to its kubelet."""
