# SPDX-License-Identifier: Apache-2.0
"""`dovetail demo` and `dovetail demo agents`."""

from __future__ import annotations

import logging

import click

from dovetail.cli import LazyGroup
from dovetail.cli.answer_form import AnswerForm, answer_option
from dovetail.cli.extras import needs

_COMMANDS = {"agents": "Let five software agents negotiate for the GPUs of two nodes."}


@click.group(
    name="demo", cls=LazyGroup, prefix="dovetail.cli.demo.", lazy=_COMMANDS, invoke_without_command=True
)  # fmt: skip
@click.option("--keep", is_flag=True, help="Leave the cluster running for kubectl until Ctrl-C.")
@click.option("--dashboard", is_flag=True, help="The same, with its web pages: prints their address.")
@answer_option
@click.pass_context
def command(context: click.Context, keep: bool, dashboard: bool, form: AnswerForm) -> None:
    """Run a small cluster on this machine and show what Dovetail does with it.

    The cluster is in memory and served as a Kubernetes API: two nodes of 8 GPUs in one rack, a GPU in MIG mode, a
    shared GPU, and two GPUs for claims (DRA). The scheduler is the one that runs on a real cluster. Eight jobs are
    submitted. Needs no cluster, no container and no GPU.
    """
    logging.basicConfig(level="ERROR")
    if context.invoked_subcommand is None:
        # Imported here: the other demo needs nothing of it.
        from dovetail.cli.demo.jobs import show_jobs

        if dashboard:
            needs("dashboard")
        show_jobs(keep=keep or dashboard, dashboard=dashboard, form=form)
    elif keep or dashboard:
        raise click.UsageError("--keep and --dashboard are for `dovetail demo` alone")
