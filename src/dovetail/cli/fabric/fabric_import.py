# SPDX-License-Identifier: Apache-2.0
"""`dovetail fabric import`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from dovetail.cli.console import Console, Table
from dovetail.cli.fabric.sources import SourceChoice, print_findings, read_sources, source_options
from dovetail.cli.output import foreign

if TYPE_CHECKING:
    from dovetail.topology.fabric import FabricReading, Labels

_OUTPUTS = ("table", "yaml", "topology.conf", "topology.yaml")
_MOST_ROWS = 40


@click.command(name="import")
@source_options(required=True)
@click.option("--keys", metavar="KEY,...", help="The label keys of the levels, the widest first.")
@click.option("-o", "--output", type=click.Choice(_OUTPUTS), default="table", show_default=True)
@click.option("--apply", "apply", is_flag=True, help="Write the labels and the Fabric of the cluster.")
@click.option("--dry-run", is_flag=True, help="With --apply: the API server tries it; nothing is written.")
def command(choice: SourceChoice, keys: str | None, output: str, apply: bool, dry_run: bool) -> None:
    """Write the node labels that follow from files to standard output, or with --apply into the cluster.

    The first FILE is imported; further ones have to agree with it. --cluster names the nodes, as --nodes does. `yaml`
    is for `kubectl apply --server-side -f -`, `topology.conf` and `topology.yaml` are the same places for Slurm.
    --apply writes the labels, and into the Fabric which source has each node where. The API server tries all of it
    first. Findings go to standard error. Exit code 1: there are errors, and nothing is written.
    """
    import yaml

    from dovetail.topology.fabric import FabricError, labels_of
    from dovetail.topology.fabric_check import findings_of
    from dovetail.topology.slurm_topology import conf_of, yaml_value_of

    if output == "yaml" and choice.nodes is None and not choice.live:
        raise click.UsageError(
            "-o yaml needs --cluster or --nodes: kubectl apply would create a Node for each host that is none"
        )
    if dry_run and not apply:
        raise click.UsageError("--dry-run is for --apply: without it nothing is written anyhow")
    if apply and (output != "table" or choice.nodes is not None):
        raise click.UsageError("--apply writes into the cluster: it needs no --output and no --nodes")
    if apply:
        choice = replace(choice, cluster=True)
    sources = read_sources(choice, labels=False)
    found = findings_of(sources)
    for source, findings in found.items():
        print_findings(source, findings, Console(stderr=True))
    if any(one.kind.is_error for findings in found.values() for one in findings):
        raise click.ClickException("nothing is imported: correct the errors above")
    first = choice.files[0]
    reading = sources[first]
    try:
        if apply:
            from dovetail.cli.fabric.application import apply_import

            apply_import(choice, sources, found, keys.split(",") if keys else None, dry_run=dry_run)
        elif output == "topology.conf":
            click.echo(conf_of(reading), nl=False)
        elif output == "topology.yaml":
            click.echo(yaml.safe_dump(yaml_value_of(reading), sort_keys=False, width=1 << 20), nl=False)
        else:
            labels = labels_of(reading, keys.split(",") if keys else None)
            _write(reading, labels, output)
    except FabricError as error:
        raise click.ClickException(f"{first}: {error}") from error


def _write(reading: FabricReading, labels: dict[str, Labels], output: str) -> None:
    import yaml

    if output == "yaml":
        objects = (
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": found}}
            for node, found in labels.items()
        )
        click.echo(yaml.dump_all(objects, Dumper=yaml.CSafeDumper, sort_keys=False), nl=False)
        return
    table = Table("node", *next(iter(labels.values()), {}))
    Console().print_rows(table, [[foreign(node), *found.values()] for node, found in labels.items()], _MOST_ROWS)
