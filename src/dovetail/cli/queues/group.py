# SPDX-License-Identifier: Apache-2.0
"""`dovetail queue` lists the waiting jobs; with a verb it creates or stops a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dovetail.cli import LazyGroup
from dovetail.cli.names import complete_queues

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_VERBS = {
    "budgets": "Show what was used of the budgets of queues.",
    "create": "Create a queue.",
    "drain": "Stop a queue, and wait until nothing runs in it.",
    "resume": "Let the jobs of a stopped queue start again.",
    "stop": "Stop a queue: none of its jobs starts; what runs goes on.",
}


class QueueGroup(LazyGroup):
    """A command with an argument, in whose place a verb can stand. A queue that has the name of a verb is listed as
    `queue/NAME`."""

    allow_extra_args = False
    allow_interspersed_args = True

    def __init__(self, **options: Any) -> None:
        super().__init__("dovetail.cli.queues.", _VERBS, invoke_without_command=True, **options)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        verb = self.get_command(click.Context(self), args[0]) if args else None
        if verb is not None:
            return verb.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return click.Command.collect_usage_pieces(self, ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return click.Command.parse_args(self, ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        return click.Command.invoke(self, ctx)


def complete_queues_and_verbs(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Queues, and the verbs that can stand in their place."""
    from click.shell_completion import CompletionItem

    verbs = [CompletionItem(verb, help=text) for verb, text in _VERBS.items() if verb.startswith(incomplete)]
    return verbs + complete_queues(context, parameter, incomplete)
