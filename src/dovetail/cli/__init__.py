# SPDX-License-Identifier: Apache-2.0
"""The `dovetail` command. Each subcommand has a module of its own, which is imported when the subcommand is used.

Such a module declares options, and imports little for that: what takes long to import (numpy, asyncio, the core, the
client) is imported by the function that needs it, when it runs. So the help of a command is there at once.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

import click

from dovetail import __runs__, __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_COMMANDS = {
    "advise": "Advise on the size of jobs, from how they used their GPUs.",
    "agent": "Find the GPUs of this machine and offer them to its kubelet.",
    "cancel": "Cancel jobs: delete the object of each, and so its pods.",
    "capacity": "Advise which GPUs to rent, buy or give back, from what was held and what waited.",
    "check": "Check manifests before they are submitted: whether they will run, and what to change.",
    "collector": "Write the history of a cluster into a file, for `history`.",
    "completion": "Print the script by which a shell completes commands, options and names.",
    "cost": "Show what the GPUs of a period cost, by team, user, job, model or another grouping.",
    "dashboard": "Serve web pages about a cluster: fleet, queue, jobs, nodes, teams and leases.",
    "defrag": "Plan which running pods to move so that a job or a shape fits; move nothing.",
    "demo": "Run a small cluster on this machine and show what Dovetail does with it.",
    "doctor": "Find faults in the GPU setup of a cluster, and show how to fix each.",
    "drain": "Empty nodes so that no job is cut: what is affected, and when they are empty; then do it.",
    "events": "Show the life of a job: what happened to it, when, and how long each step took.",
    "fabric": "Read the network above the nodes from files of other tools, check it, and label nodes by it.",
    "free": "Show what still fits, by GPU model and size, and what blocks the next size.",
    "history": "Show jobs of the past: submitted, waited, placed where, how often, ended, and how.",
    "hold": "Keep jobs that wait from starting, until `release`.",
    "idle": "Show which pods hold GPUs and do not use them: since when, what it cost, and what to do.",
    "idle-policy": "Write notices about idle pods, and stop idle workloads whose owners consent to it.",
    "install": "Install Dovetail on a cluster, or upgrade it.",
    "instances": "Rank cloud instances by dollars per useful GPU-hour, and show why others are passed over.",
    "jobs": "List the jobs that run, wait or are done: user, queue, GPUs, nodes, reason, start and end.",
    "leases": "Show which software agent holds which GPUs until when, and what others negotiate for.",
    "lint": "Find faults in manifests of GPU jobs before they are submitted, and fix them.",
    "logs": "Show what the pods of a job have written, also as it comes.",
    "memory": "Compute the GPU memory that a model needs, and which GPUs and MIG profiles hold it.",
    "migrate": "Convert manifests for other schedulers, or for an older Kubernetes.",
    "monitoring": "Write what Prometheus needs to watch GPUs, jobs and the scheduler.",
    "nodes": "List the GPU nodes: state, GPUs by state, since when, why, and what happens next.",
    "operator": "Install what a GPUStack describes, and keep it so.",
    "plane": "Run the control plane of a software agent.",
    "priority": "Explain the position of a job in queue order, and what would change it.",
    "queue": "List the waiting jobs in queue order: why each waits, and when it starts.",
    "release": "Let jobs start that are held or suspended.",
    "replay": "Repeat the decisions of a recording, and check that every one is the same.",
    "report": "Show how the GPUs of a period were used, by team, user, model or another grouping.",
    "run": "Run a command on GPUs: as a Job, a JobSet or a PyTorchJob.",
    "scheduler": "Schedule the pods of a cluster that name this scheduler.",
    "serve": "Plan how a model is served: engine, parallelism, replicas, latencies, cost, and the objects.",
    "share": "Show the guarantee, fair share, allocation and usage of each queue.",
    "simulate": "Run a trace or manifests through the scheduler's core under a virtual clock.",
    "snapshot": "Save what the scheduler reads of a cluster, for `simulate` and for commands with --file.",
    "spot": "Compute how often to save checkpoints, what interruptions cost, and whether spot pays.",
    "status": "Show what of Dovetail runs on a cluster, its versions, what is broken, and the next step.",
    "submit": "Create the objects of files, after a look for faults.",
    "top": "Show which pod computes on which GPU now, and what bounds it.",
    "topology": "Show how the GPUs of a node are wired, and the bandwidth of every set of them.",
    "uninstall": "Remove Dovetail from a cluster. Running jobs go on.",
    "wait": "Wait until a job has started, or has ended.",
    "watch": "Show jobs, queue and nodes on a screen that stays up to date.",
    "whatif": "Predict what a change would do, without making it.",
    "why": "Explain why a pod runs where it does, or why it is still pending.",
}


CLOSED_PIPE = 128 + 13
"""The exit code if the output is a pipe that is closed: that of a program that SIGPIPE ends."""


class LazyGroup(click.Group):
    """A group that imports a subcommand only when it is used, so that `dovetail --help` does not import numpy.

    `lazy` has the name and help of each subcommand; the subcommand is `command` of the module `prefix` + name,
    with `_` for `-`.
    """

    def __init__(self, prefix: str, lazy: Mapping[str, str], **options: Any) -> None:
        super().__init__(**options)
        self._prefix, self._lazy = prefix, lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        # An import leaves no garbage, and the collector would take a part of the start-up time to find none.
        gc.disable()
        command: click.Command = importlib.import_module(f"{self._prefix}{cmd_name.replace('-', '_')}").command
        gc.freeze()
        gc.enable()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self._lazy and not name.startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(name, self._lazy)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise click.UsageError(f"no such command {name!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. If what it prints to is closed, as by `head`, it ends quietly."""
        try:
            answer = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
        except BrokenPipeError:
            if not _is_closed(sys.stdout):
                # It is a connection that broke.
                raise
            # What is left in the buffer goes nowhere, or Python would complain of it at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(CLOSED_PIPE)
        return answer

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands, none of which is imported for that, and the options."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=text) for name, text in self._lazy.items() if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(self._lazy.items()))


def _is_closed(stream: TextIO) -> bool:
    """Whether the stream is a pipe that nothing reads any more."""
    from select import POLLERR, poll

    asked = poll()
    asked.register(stream, 0)
    return any(event & POLLERR for _, event in asked.poll(0))


def _version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    """Print the version, and what of it runs, and exit."""
    if wanted and not ctx.resilient_parsing:
        click.echo(f"dovetail {__version__} ({__runs__()})")
        ctx.exit()


@click.group(
    cls=LazyGroup, prefix="dovetail.cli.", lazy=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version,
              help="Show the version and exit.")  # fmt: skip
def cli() -> None:
    """Dovetail: a GPU scheduler for Kubernetes."""


def main() -> None:
    """Entry point. Expected errors print one line on stderr and exit with 1; usage errors exit with 2."""
    # No command multiplies matrices, and each thread that OpenBLAS starts for that spins for a while at the start.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        # As a plugin it is called with two words.
        plugin = sys.argv[0].endswith("kubectl-dovetail")
        cli.main(prog_name="kubectl dovetail" if plugin else "dovetail", standalone_mode=False)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
