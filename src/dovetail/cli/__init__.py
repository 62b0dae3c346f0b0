# SPDX-License-Identifier: Apache-2.0
"""The `dovetail` command. Each subcommand lives in its own module and is imported when it is asked for."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

import click

from dovetail import __runs__, __version__

_COMMANDS = {
    "agent": "Find the GPUs of this machine and offer them to its kubelet.",
    "defrag": "Plan moves of running pods that make room for a job or a shape; move nothing.",
    "demo": "Run a small cluster on this machine and show what Dovetail does with it.",
    "doctor": "Look for what is wrong with the GPUs of a cluster, and say how to mend it.",
    "free": "Say what still fits, by GPU model and size, and what blocks the next size.",
    "instances": "Rank cloud instances by dollars per useful GPU-hour, and say why others are passed over.",
    "lint": "Say what is wrong with manifests of GPU jobs before they are submitted, and mend it.",
    "memory": "Say what a model takes of GPU memory, and which GPUs and MIG profiles hold it.",
    "migrate": "Make of manifests for other schedulers, or an older Kubernetes, what is read today.",
    "priority": "Say why a job has its place in the line, and what would change that.",
    "queue": "Show the line of those who wait: in which order, why, and when they start.",
    "replay": "Decide a recorded day again, and say whether every decision is the same.",
    "scheduler": "Schedule the pods of a cluster that name this scheduler.",
    "share": "Show what each queue has, is due and has used.",
    "simulate": "Run a trace or manifests through the scheduler's core under a virtual clock.",
    "snapshot": "Write down all of a cluster that is decided by, for `simulate` and for commands with --file.",
    "spot": "Say how often to save checkpoints, what interruptions cost, and whether spot pays.",
    "topology": "Show how the GPUs of a node are wired, and the bandwidth of every set of them.",
    "whatif": "Say what a change would do, without making it.",
    "why": "Say why a pod is where it is, or why it is still pending.",
}


class LazyGroup(click.Group):
    """Knows its commands by name and help, so that `dovetail why --help` does not pay for numpy. Each is `command` of
    the module whose name begins with `prefix`."""

    def __init__(self, prefix: str, lazy: Mapping[str, str], **options: Any) -> None:
        super().__init__(**options)
        self._prefix, self._lazy = prefix, lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        # Nothing that a module makes at its import is garbage; to look for some is an eighth of the time to start.
        gc.disable()
        command: click.Command = importlib.import_module(f"{self._prefix}{cmd_name}").command
        gc.freeze()
        gc.enable()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(self._lazy.items()))


@click.group(
    cls=LazyGroup, prefix="dovetail.cli.", lazy=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="dovetail", message=f"%(prog)s %(version)s ({__runs__})")
def cli() -> None:
    """Dovetail: a GPU scheduler for Kubernetes."""


def main() -> None:
    """Entry point. Errors that a user can mend are one line on stderr and exit code 1; usage errors exit with 2."""
    # Nothing here multiplies matrices, and each thread that numpy's library keeps for it spins a while at the start.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
