# SPDX-License-Identifier: Apache-2.0
"""`dovetail uninstall`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import click

from dovetail.cli.answer_form import AnswerForm, answer_option, write_answer
from dovetail.cli.cluster import run
from dovetail.cli.console import Console
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.markup import escape

if TYPE_CHECKING:
    from dovetail.operator.installation.removal import Removal


@click.command(name="uninstall")
@kubeconfig_options
@click.option("--dry-run", is_flag=True, help="Delete nothing; show what would be deleted.")
@click.option(
    "--delete-data",
    is_flag=True,
    help="Delete Queues, with all usage, GPUNodes, and the volumes of agents' endpoints and of the history as well.",
)
@click.option(
    "--keep-crds/--delete-crds",
    "keep_crds",
    default=True,
    show_default=True,
    help="Keep the definitions of Dovetail's kinds. To delete them needs --delete-data.",
)
@click.option(
    "--stacks-only", is_flag=True, help="Delete the GPUStacks alone, and wait until the operator has done it."
)
@answer_option
def command(
    kubeconfig: str | None,
    context: str | None,
    dry_run: bool,
    delete_data: bool,
    keep_crds: bool,
    stacks_only: bool,
    form: AnswerForm,
) -> None:  # fmt: skip
    """Uninstall Dovetail: the GPUStack with all that was made for it, then the operator. Running jobs go on.

    Queues, GPUNodes and their definitions stay unless asked for. If it breaks off, the same command goes on. Where the
    operator is gone, the command does its work.
    """
    from dovetail.operator.installation.installer import InstallRefused
    from dovetail.operator.installation.removal import RemovalRequest, uninstall

    if not keep_crds and not delete_data:
        raise click.UsageError("--delete-crds deletes every Queue and GPUNode: add --delete-data")
    if stacks_only and delete_data:
        raise click.UsageError("--stacks-only and --delete-data exclude each other")
    config = config_of(kubeconfig, context)
    request = RemovalRequest(stacks_only, delete_data, not keep_crds, dry_run)
    progress = Console(stderr=True)
    # The watches of the operator in this command are cut off at its end, which is no news.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    try:
        work = uninstall(config, request, lambda text: progress.print(f"[dim]{escape(text)}[/dim]"))
        removal = run(work, config.server)
    except InstallRefused as error:
        raise click.ClickException(str(error)) from error
    if form.whole:
        write_answer(form, "Removal", removal)
    else:
        show(removal, Console(), dry_run=dry_run)


def show(removal: Removal, console: Console, *, dry_run: bool) -> None:
    """Print what was deleted and what stays."""
    for name in removal.removed:
        console.print(f"{'would delete' if dry_run else 'deleted'} {escape(name)}")
    if not removal.removed:
        console.print("Nothing of Dovetail is installed.")
    for name in removal.kept:
        console.print(f"kept {escape(name)}")
