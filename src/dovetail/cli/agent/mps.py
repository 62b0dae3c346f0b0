# SPDX-License-Identifier: Apache-2.0
"""`dovetail agent mps`."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from dovetail.cli.extras import needs
from dovetail.cli.log import log_options, start_log
from dovetail.cli.service import serve

_log = logging.getLogger("dovetail.agent")


@click.command(name="mps")
@click.option(
    "--mps-folder",
    type=click.Path(file_okay=False, path_type=Path),
    default="/run/dovetail/mps",
    show_default=True,
    metavar="DIR",
    help="Folder that MPS daemons, their clients and the agent share.",
)
@log_options
def command(mps_folder: Path, log_level: str, log_format: str) -> None:
    """Run the MPS control daemons that the agent of this machine requests.

    The daemons keep running when the agent restarts. When this process ends, they and their clients end. Runs until it
    gets SIGTERM or SIGINT (exit code 0).
    """
    needs("agent")
    from dovetail.agent.mps.daemons import MpsDaemons
    from dovetail.agent.mps.keeper import Keeper

    start_log(log_level, log_format)
    try:
        serve(Keeper(mps_folder, MpsDaemons(mps_folder, shm=mps_folder / "shm")).run(), _log)
    except OSError as error:
        raise click.ClickException(f"cannot listen in {mps_folder}: {error.strerror}") from error
