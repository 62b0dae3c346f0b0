# SPDX-License-Identifier: Apache-2.0
"""What `dovetail install` prints of the objects that it writes."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from dovetail.cli.console import Console, Table, prose
from dovetail.cli.markup import escape
from dovetail.operator.installation.installer import InstallAction, InstalledObject

_SUMMARY = {
    InstallAction.CREATE: ("created", "to create"),
    InstallAction.UPDATE: ("updated", "to update"),
    InstallAction.UNCHANGED: ("unchanged", "unchanged"),
    InstallAction.KEEP: ("kept", "to keep"),
}
"""What was done, and what a dry run would do."""


class InstallAnswer(Struct, frozen=True):
    """`objects`: what was done, or would be. `missing`: what was still missing at the end; empty also where it was not
    waited for."""

    objects: tuple[InstalledObject, ...]
    missing: tuple[str, ...] = ()


def show(done: tuple[InstalledObject, ...], console: Console, *, dry_run: bool) -> None:
    """Print what was done to each object; what is unchanged is counted."""
    changed = [one for one in done if one.action is not InstallAction.UNCHANGED]
    if changed:
        table = Table("object", "action", prose("why"))
        for one in changed:
            place = f"{one.namespace}/{one.name}" if one.namespace else one.name
            table.add_row(f"{one.kind} {place}", one.action, escape(one.text) or "-")
        console.print(table)
    counts = Counter(one.action for one in done)
    text = ", ".join(f"{counts[action]} {_SUMMARY[action][dry_run]}" for action in InstallAction if counts[action])
    console.print(f"Objects: {text}.")
