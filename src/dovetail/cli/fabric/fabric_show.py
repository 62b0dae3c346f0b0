# SPDX-License-Identifier: Apache-2.0
"""`dovetail fabric show`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dovetail.cli.answer_form import AnswerForm, answer_option, write_answer
from dovetail.cli.console import Console
from dovetail.cli.extras import plot_option
from dovetail.cli.fabric.sources import SourceChoice, read_sources, recorded_of, source_options, spares_of
from dovetail.cli.output import count, printable

if TYPE_CHECKING:
    from dovetail.topology.fabric import FabricPlacement, FabricReading
    from dovetail.topology.fabric_record import RecordedFabric
    from dovetail.views.spares import DomainSpares


@click.command(name="show")
@source_options()
@plot_option("Also draw a picture.", "FILE.png")
@answer_option
def command(choice: SourceChoice, plot: Path | None, form: AnswerForm) -> None:
    """Draw the tree of switches, racks and nodes that each FILE describes.

    Without a FILE it is that of the labels of the cluster's nodes; with --cluster also that, and what the Fabric of the
    cluster has of its links and spare nodes.
    """
    from dovetail.cli.fabric.answers import trees_of

    if plot is not None and not plot.parent.is_dir():
        raise click.BadParameter(f"there is no folder {str(plot.parent)!r}", param_hint="--plot")
    sources, fabric = read_sources(choice), recorded_of(choice)
    spares = spares_of(choice, fabric)
    if form.whole:
        write_answer(form, "FabricTrees", trees_of(sources, fabric, spares))
    else:
        _show(sources)
        for line in (*record_lines(fabric), *spare_lines(spares)) if fabric is not None else ():
            Console().print(printable(line), markup=False)
    if plot is not None:
        _draw(sources, plot)


def _draw(sources: Mapping[str, FabricReading], plot: Path) -> None:
    # Imported here: matplotlib takes half a second to load.
    from dovetail.views.fabric_plot import draw

    try:
        draw(sources, plot)
    except OSError as error:
        raise click.ClickException(f"cannot write the picture: {error}") from error
    Console(stderr=True).print(f"drawn: {plot}")


def _show(sources: Mapping[str, FabricReading]) -> None:
    for source, reading in sources.items():
        console = Console()
        console.print(f"{source}: {count(len(reading.placements), 'node')}", markup=False)
        for line in tree_lines(reading.placements):
            console.print(printable(line), markup=False)


def record_lines(fabric: RecordedFabric) -> Iterator[str]:
    """How fast the levels are, the writers of labels with their times, and what is slow until when."""
    for level in fabric.spec.levels:
        known = [f"{level.bandwidth_mbps / 1000:g} GB/s"] if level.bandwidth_mbps else []
        known += [f"{level.latency_ns / 1000:g} us a hop"] if level.latency_ns else []
        yield f"speed: {level.key or 'between all nodes'}: {', '.join(known)} ({level.source or 'no source'})"
    for label in fabric.status.labels:
        since = f", last at {label.since:%Y-%m-%d %H:%M}" if label.since is not None else ""
        yield f"label: {label.key}: by {label.manager} on {count(label.nodes, 'node')}{since}"
    for one in fabric.status.measured:
        where = one.level or "between all nodes"
        results = f"slowest {one.slowest_mbps / 1000:.1f}, median {one.median_mbps / 1000:.1f} GB/s"
        yield f"measured: {where}: {results} of {count(one.groups, 'group')}, {one.measured_at:%Y-%m-%d %H:%M}"
    for slow in fabric.status.slow:
        what = f"{slow.measured_mbps / 1000:.1f} of {slow.expected_mbps / 1000:.1f} GB/s"
        where = f"{slow.level} {slow.name}" if slow.level else slow.name
        yield f"slow: {where}: {what}, {slow.measured_at:%Y-%m-%d %H:%M}; counts until {slow.expires_at:%Y-%m-%d %H:%M}"


def spare_lines(spares: Sequence[DomainSpares]) -> Iterator[str]:
    """The spare nodes of each domain."""
    from dovetail.topology.hostlist import compress

    for one in spares:
        named = f": {compress(sorted(one.spares))}" if one.spares else ""
        out = f"; out of order: {compress(sorted(one.out_of_order))}" if one.out_of_order else ""
        yield f"spares: {one.key} {one.domain}: {len(one.spares)} of {one.wanted}{named}{out}"


def tree_lines(placements: Sequence[FabricPlacement]) -> Iterator[str]:
    """The domains, each with its number of nodes, and the nodes of the narrowest as a hostlist."""
    yield from _below({one.node: one.path for one in placements}, "")


def _below(paths: Mapping[str, tuple[str, ...]], indent: str) -> Iterator[str]:
    from dovetail.topology.hostlist import compress

    domains: dict[str, dict[str, tuple[str, ...]]] = {}
    for node, path in paths.items():
        domains.setdefault(path[0], {})[node] = path[1:]
    for at, name in enumerate(sorted(domains)):
        inside = domains[name]
        last = at == len(domains) - 1
        leaf = not any(inside.values())
        shown = f": {compress(sorted(inside))}" if leaf else ""
        yield f"{indent}{'└' if last else '├'}─ {name} ({len(inside)}){shown}"
        if not leaf:
            yield from _below(inside, f"{indent}{' ' if last else '│'}  ")
