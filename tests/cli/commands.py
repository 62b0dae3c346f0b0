# SPDX-License-Identifier: Apache-2.0
"""All commands of `dovetail`, as the words that name them."""

from __future__ import annotations

from collections.abc import Iterator

import click

from dovetail.cli import cli


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Each command below a group, groups too."""
    context = click.Context(group)
    for name in group.list_commands(context):
        yield (*path, name)
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
