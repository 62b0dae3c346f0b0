# SPDX-License-Identifier: Apache-2.0
"""`dovetail monitoring`."""

from __future__ import annotations

import click

from dovetail.cli import LazyGroup

_COMMANDS = {
    "boards": "Write the boards for Grafana.",
    "rules": "Write the recording rules and alerts for Prometheus, with your thresholds.",
}


@click.group(name="monitoring", cls=LazyGroup, prefix="dovetail.cli.monitoring.", lazy=_COMMANDS)
def command() -> None:
    """Write what Prometheus needs to watch GPUs, jobs and the scheduler."""
