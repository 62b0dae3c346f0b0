# SPDX-License-Identifier: Apache-2.0
"""`dovetail serve`."""

from __future__ import annotations

import click

from dovetail.cli import LazyGroup

_COMMANDS = {
    "replicas": "Count the replicas that a serving workload needs and that can be placed now.",
    "turns": "Show the engines that take turns on GPUs, or give them their turns.",
    "wake": "Ask for the turn of an engine that sleeps.",
    "sleep": "Put an engine to sleep now.",
    "plan": "Plan engines, parallelism, replicas and cost for a model and a rate of requests.",
}


@click.group(name="serve", cls=LazyGroup, prefix="dovetail.cli.serve.serve_", lazy=_COMMANDS)
def command() -> None:
    """Plan how a model is served, count the replicas that it needs, and let engines take turns on GPUs."""
