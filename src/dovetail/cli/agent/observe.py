# SPDX-License-Identifier: Apache-2.0
"""`dovetail agent observe`."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from dovetail.cli.extras import needs
from dovetail.cli.log import log_options, start_log
from dovetail.cli.service import serve

_log = logging.getLogger("dovetail.agent")


@click.command(name="observe")
@click.option(
    "--socket",
    type=click.Path(path_type=Path),
    default="/run/dovetail/observer/mig.sock",
    show_default=True,
    metavar="SOCKET",
    help="Socket on which to report.",
)
@log_options
def command(socket: Path, log_level: str, log_format: str) -> None:
    """Report the MIG instances of this machine to each client of a socket.

    NVML reads MIG instances only for privileged users (CAP_SYS_ADMIN). This process has that privilege and does nothing
    else; `dovetail agent run --mig-observer` does the rest without it. Runs until it gets SIGTERM or SIGINT (exit code
    0).
    """
    needs("agent")
    from dovetail.agent.mig.observer import observe

    start_log(log_level, log_format)
    try:
        serve(observe(socket), _log)
    except OSError as error:
        raise click.ClickException(f"cannot listen at {socket}: {error.strerror}") from error
