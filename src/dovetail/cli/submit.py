# SPDX-License-Identifier: Apache-2.0
"""`dovetail submit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dovetail.cli.named_jobs import JobSource, job_options

if TYPE_CHECKING:
    from dovetail.cli.manifest_files import File
    from dovetail.jobs.changes import Created
    from dovetail.jobs.cluster import JobCluster


@click.command(name="submit")
@click.argument("paths", metavar="FILE...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Have the API server check the objects; create none.")
@click.option("--force", is_flag=True, help="Create the objects although the linter finds errors in them.")
@job_options
def command(source: JobSource, paths: tuple[str, ...], dry_run: bool, force: bool) -> None:
    """Create the objects of FILE..., after `dovetail lint` has examined them.

    FILE is a file, a folder, or - for standard input. Findings are shown; an error stops it before anything is created.
    Objects without a namespace get that of --namespace, else of the context.
    """
    from dovetail.cli.manifest_files import names, read
    from dovetail.cli.submission import cluster_facts, findings, report
    from dovetail.kube.manifests.documents import STDIN

    if paths.count(STDIN) > 1:
        raise click.UsageError("- is standard input, which can be read once")
    files = [read(name) for name in names(paths)]
    _readable(files)
    found = [field.value for file in files for one in file.documents for field in one.objects()]
    if not found:
        raise click.ClickException(f"{', '.join(paths)}: no object found")
    _nameable(found)
    facts = cluster_facts(source.config)
    report(findings([one for file in files for one in file.documents], facts), force=force)

    async def create(cluster: JobCluster) -> tuple[Created, ...]:
        return await cluster.create(found, source.namespace, dry_run=dry_run)

    for one in source.run(create):
        click.echo(f"{one}: {'would be created' if dry_run else 'created'}.")


def _readable(files: list[File]) -> None:
    """Raises ClickException for what cannot be read."""
    from dovetail.advice.lint.engine import unreadable

    broken = [unreadable(file.name, file.error) for file in files if file.error is not None]
    broken += [unreadable(one.file, one.error) for file in files for one in file.documents if one.error is not None]
    if broken:
        place = f"{broken[0].file}:{broken[0].line}" if broken[0].line else broken[0].file
        raise click.ClickException(f"{place}: {broken[0].message}")


def _nameable(found: list[Any]) -> None:
    """Raises ClickException for what is no object of Kubernetes."""
    for one in found:
        meta = one.get("metadata") if isinstance(one, dict) else None
        named = isinstance(meta, dict) and (meta.get("name") or meta.get("generateName"))
        if not named or not one.get("apiVersion") or not one.get("kind"):
            raise click.ClickException("an object has no apiVersion, kind or metadata.name: it cannot be created")
