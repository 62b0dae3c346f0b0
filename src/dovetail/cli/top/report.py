# SPDX-License-Identifier: Apache-2.0
"""What `dovetail top --once` prints."""

from __future__ import annotations

from dovetail.cli.console import Console
from dovetail.cli.top.lines import NOTHING, Line, gpu_lines, group_lines, painted, plain, printable, summary
from dovetail.cli.top.replicas import NO_ENGINES, replica_lines, replicas_of
from dovetail.views.top import Top


def coloured(console: Console) -> bool:
    return console.is_terminal and not console.rich.no_color and console.rich.color_system is not None


def show(answer: Top, console: Console) -> None:
    """Print the answer: a line for each GPU, or for each job or team."""
    if not answer.summary.nodes and not answer.engines:
        console.print(NOTHING)
        return
    colours = coloured(console)
    lines: list[Line] = []
    if answer.by == "replica":
        replicas = replicas_of(answer)
        replica_table = replica_lines(replicas, None)
        lines = [replica_table.heading, *map(replica_table.line, replicas)] if replicas else [[(NO_ENGINES, "")]]
    elif answer.by == "node":
        table = gpu_lines(answer.gpus, None)
        lines = [table.heading, *map(table.line, answer.gpus)]
    else:
        groups = group_lines(answer.groups, answer.by, None)
        lines = [groups.heading, *map(groups.line, answer.groups)]
    lines.append([(summary(answer), "")])
    lines += [[(f"node {printable(name)}: {printable(fault)}", "red")] for name, fault in answer.faults.items()]
    lines += [[(f"attention: {printable(note)}", "yellow")] for note in answer.notes]
    shown = (painted(line, colours=True) if colours else plain(line) for line in lines)
    console.file.write("".join(f"{line.rstrip()}\n" for line in shown))
