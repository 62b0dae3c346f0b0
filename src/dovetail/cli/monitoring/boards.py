# SPDX-License-Identifier: Apache-2.0
"""`dovetail monitoring boards`."""

from __future__ import annotations

import json
from pathlib import Path

import click
import yaml

from dovetail.monitoring.boards import config_maps, documents


@click.command(name="boards")
@click.option(
    "-o", "--output", type=click.Choice(["json", "configmaps"]), default="json", show_default=True,
    help="Documents of Grafana, or ConfigMaps for its sidecar.",
)  # fmt: skip
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write a file for each board here.",
)
@click.option("--namespace", default="dovetail-system", show_default=True, help="Namespace of the ConfigMaps.")
def command(output: str, folder: Path | None, namespace: str) -> None:
    """Write the boards for Grafana: fleet, node, job, team, health and scheduler.

    Without --folder all boards go to standard output: a JSON object by uid, or YAML documents.
    """
    found = documents()
    if folder is not None:
        texts = (
            {f"{uid}.json": text(document) for uid, document in found.items()}
            if output == "json"
            else {f"{one['metadata']['name']}.yaml": yaml.safe_dump(one) for one in config_maps(namespace)}
        )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in texts.items():
                (folder / name).write_text(content)
        except OSError as error:
            raise click.ClickException(f"cannot write to {folder}: {error.strerror}") from error
    elif output == "json":
        click.echo(json.dumps(found, indent=1))
    else:
        click.echo(yaml.safe_dump_all(config_maps(namespace), sort_keys=False), nl=False)


def text(document: dict[str, object]) -> str:
    """A document of Grafana as it is written to a file."""
    return json.dumps(document, indent=1) + "\n"
