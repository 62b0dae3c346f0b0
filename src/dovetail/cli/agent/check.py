# SPDX-License-Identifier: Apache-2.0
"""`dovetail agent check`."""

from __future__ import annotations

from pathlib import Path

import click

from dovetail.cli.extras import needs
from dovetail.cli.output import count


@click.command(name="check")
@click.option("--gpus", type=click.IntRange(min=1), default=1, show_default=True, help="How many devices to expect.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write the result into this file, as a container's termination message.",
)
def command(gpus: int, report: Path | None) -> None:
    """Check in a container that NVIDIA's driver answers there, and that so many GPUs or MIG instances are visible.

    The operator runs it in the pods that validate nodes. Exit code 1: the driver does not answer, or another number of
    devices is visible.
    """
    needs("agent")
    from dovetail.agent.machine.nvml import Nvml, NvmlError
    from dovetail.agent.machine.visible import visible_devices
    from dovetail.operator.nodes.validation import VISIBLE

    try:
        with Nvml() as nvml:
            devices = visible_devices(nvml)
    except NvmlError as error:
        _write(report, str(error))
        raise click.ClickException(str(error)) from error
    seen = f"{VISIBLE}{','.join(devices)}"
    if len(devices) != gpus:
        found = f"{count(len(devices), 'device')} {'is' if len(devices) == 1 else 'are'} visible, and not {gpus}"
        _write(report, f"{found}; {seen}")
        raise click.ClickException(f"{found}; {seen}")
    _write(report, seen)
    click.echo(seen)


def _write(report: Path | None, text: str) -> None:
    if report is not None:
        try:
            report.write_text(f"{text}\n")
        except OSError as error:
            raise click.ClickException(f"{report} cannot be written: {error.strerror}") from error
