# SPDX-License-Identifier: Apache-2.0
"""The option --file of commands that show facts which are no objects of a cluster: a snapshot in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from dovetail.kube.manifests.record import SnapshotRecord

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def snapshot_option(command: F) -> F:
    """The option; its value is `files`, empty for a live cluster."""
    return click.option(
        "-f", "--file", "files", metavar="PATH", multiple=True,
        help="Read this snapshot, as `dovetail snapshot` writes it, or - (stdin), in place of a cluster.",
    )(command)  # fmt: skip


def facts_in(files: tuple[str, ...], name: str, kind: type[T], **others: object) -> tuple[SnapshotRecord, T]:
    """The facts that a snapshot has for the command `name`. `others` are the options, by name, that choose a live
    cluster. Raises ClickException."""
    from dovetail.kube.manifests.documents import ManifestError, read_documents
    from dovetail.kube.manifests.record import NoFacts, facts

    for option, value in others.items():
        if value:
            raise click.UsageError(f"--file and --{option.replace('_', '-')} exclude each other")
    try:
        return facts(read_documents(files), name, kind)
    except ManifestError as error:
        raise click.ClickException(str(error)) from error
    except NoFacts as error:
        raise click.ClickException(f"{', '.join(files)}: {error}") from error
