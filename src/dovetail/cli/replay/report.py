# SPDX-License-Identifier: Apache-2.0
"""What `dovetail replay` prints of whole runs."""

from __future__ import annotations

import click
from msgspec import Struct

from dovetail import __version__
from dovetail.cli.console import Console, Table
from dovetail.cli.markup import escape
from dovetail.recording.reader import BadRecording
from dovetail.recording.replay import Difference, Replay

_COLOURS = {"equal": "green", "differs": "red", "unusable": "yellow"}
_SHOWN = 10


class ReplayReport(Struct, frozen=True):
    """The JSON answer. `dovetail` is the version that replayed; `problems` are files that belong to no run, and why."""

    dovetail: str
    runs: list[Replay]
    problems: list[str]


class ReplayDifference(Struct, frozen=True):
    """The JSON answer about one decision, where the steps before it differ."""

    dovetail: str
    difference: Difference


def show_runs(replays: list[Replay], wrong: list[BadRecording], console: Console) -> None:
    table = Table("run", "started", "segments", "steps", "events", "decisions", "seconds", "verdict")
    for done in replays:
        counts = (done.segments, done.steps, done.events, done.decisions)
        verdict = f"[{_COLOURS[done.verdict]}]{done.verdict}[/]"
        table.add_row(
            escape(done.run), done.started[:16].replace("T", " "), *map(str, counts), f"{done.seconds:.1f}", verdict
        )
    if replays:
        console.print(table)
    for done in replays:
        difference = [] if done.difference is None else difference_lines(done.difference, done.recorded_by)
        lines = [*done.notes, *([done.problem] if done.problem else []), *difference]
        for line in lines:
            click.echo(line if line.startswith(" ") else f"run {done.run}: {line}")
    for error in wrong:
        click.echo(str(error))


def difference_lines(found: Difference, recorded_by: str) -> list[str]:
    """The lines about the first step that differs."""
    what = f"step {found.step}" if found.step else "the state"
    lines = [f"{what} at {found.now_ms} ms differs ({found.file}, line {found.line})"]
    for title, decisions in (("recorded", found.recorded), ("replayed", found.replayed)):
        more = [f"    and {len(decisions) - _SHOWN} more"] if len(decisions) > _SHOWN else []
        lines += [f"  only {title}:", *(f"    {words}" for words in decisions[:_SHOWN] or ("nothing",)), *more]
    if recorded_by != __version__:
        lines.append(f"  recorded by dovetail {recorded_by}, replayed by {__version__}: the change may be intended")
    return lines
