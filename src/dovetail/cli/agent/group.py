# SPDX-License-Identifier: Apache-2.0
"""`dovetail agent`."""

from __future__ import annotations

import click

from dovetail.cli import LazyGroup

_COMMANDS = {
    "check": "Check in a container that the driver answers, and how many GPUs are visible.",
    "find": "Count the NVIDIA GPUs on the PCI bus of this machine, without a driver.",
    "inspect": "Show the GPUs of this machine, their topology, and what could not be read.",
    "mps": "Run the MPS control daemons that the agent of this machine requests.",
    "observe": "Report the MIG instances of this machine to the agent; this needs a privilege.",
    "run": "Offer the GPUs of this machine to its kubelet, and publish them in the cluster.",
}


@click.group(name="agent", cls=LazyGroup, prefix="dovetail.cli.agent.", lazy=_COMMANDS)
def command() -> None:
    """Find the GPUs of this machine and offer them to its kubelet."""
