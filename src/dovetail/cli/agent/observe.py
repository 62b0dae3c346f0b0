# SPDX-License-Identifier: Apache-2.0
"""`dovetail agent observe`."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from dovetail.agent.mig.observer import observe
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
    help="Where to tell it.",
)
@log_options
def command(socket: Path, log_level: str, log_format: str) -> None:
    """Tell whoever connects to a socket how the GPUs of this machine are divided by MIG.

    NVIDIA's library tells that to privileged users alone (CAP_SYS_ADMIN). This process has the privilege and nothing
    else; `dovetail agent run --mig-observer` has all the rest. Runs until it gets SIGTERM or SIGINT (exit code 0).
    """
    start_log(log_level, log_format)
    try:
        serve(observe(socket), _log)
    except OSError as error:
        raise click.ClickException(f"cannot listen at {socket}: {error.strerror}") from error
