# SPDX-License-Identifier: Apache-2.0
"""`dovetail snapshot`."""

from __future__ import annotations

import sys

import click
import msgspec
import yaml
from rich.markup import escape

from dovetail.cli.cluster import run
from dovetail.cli.console import Console
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.output import INCOMPLETE, count


@click.command(name="snapshot")
@click.argument("file", required=False, default="-", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("-o", "--output", type=click.Choice(["json", "yaml"]), default="json", show_default=True)
@kubeconfig_options
def command(file: str, output: str, kubeconfig: str | None, context: str | None) -> None:
    """Save what the scheduler reads of a cluster to FILE or standard output.

    The result is a List that `dovetail simulate`, and all commands with --file, read in place of a cluster: nodes, pods
    and their owners, queues, PodGroups, volumes, claims. It has only what the scheduler reads: no environment
    variables, no commands, no Secrets. Needs only the verbs list and get; writes nothing to the cluster. Exit code 3 if
    something could not be read: it is named on standard error, and the rest is saved.
    """
    from dovetail.kube.reading.snapshot import read_snapshot

    config = config_of(kubeconfig, context)
    found = run(read_snapshot(config), config.server)
    document = {"apiVersion": "v1", "kind": "List", "items": found.objects}
    if output == "json":
        text = msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
    else:
        text = yaml.dump(msgspec.to_builtins(document), Dumper=_Dumper, encoding="utf-8", sort_keys=False)
    try:
        with click.open_file(file, "wb") as stream:
            stream.write(text)
    except OSError as error:
        raise click.ClickException(f"cannot write {file}: {error.strerror}") from error
    console = Console(stderr=True)
    if file != "-":
        console.print(escape(f"{file}: {count(len(found.objects), 'object')}"))
    for line in found.unread:
        console.print(f"[yellow]not read:[/yellow] {escape(line)}")
    if found.unread:
        sys.exit(INCOMPLETE)


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Writes no anchors, so that each object can be read by itself."""

    def ignore_aliases(self, data: object) -> bool:
        return True
