# SPDX-License-Identifier: Apache-2.0
"""`dovetail agent find`."""

from __future__ import annotations

from pathlib import Path

import click

from dovetail.agent.machine.sysfs import Sysfs, SysfsError


@click.command(name="find")
@click.option(
    "--sysfs-root",
    type=click.Path(file_okay=False, path_type=Path),
    default="/sys",
    show_default=True,
    metavar="DIR",
    help="Where sysfs is mounted.",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write the result into this file, as a container's termination message.",
)
def command(sysfs_root: Path, report: Path | None) -> None:
    """Count the NVIDIA GPUs on the PCI bus of this machine; this needs neither a driver nor a privilege.

    The operator runs it on nodes of which no label reports whether they have GPUs.
    """
    from dovetail.operator.gpu_search.search_pod import FOUND

    try:
        devices = Sysfs(sysfs_root).pci.values()
    except SysfsError as error:
        raise click.ClickException(str(error)) from error
    text = f"{FOUND}{sum(one.is_gpu and not one.virtual for one in devices)}"
    click.echo(text)
    if report is not None:
        try:
            report.write_text(f"{text}\n")
        except OSError as error:
            raise click.ClickException(f"{report} cannot be written: {error.strerror}") from error
