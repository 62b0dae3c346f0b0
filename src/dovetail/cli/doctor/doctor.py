# SPDX-License-Identifier: Apache-2.0
"""`dovetail doctor`."""

from __future__ import annotations

import sys

import click

from dovetail.cli.cluster import run
from dovetail.cli.console import Console
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.output import INCOMPLETE, output_option, write_json
from dovetail.cli.scheduling import fabric_option, scheduler_name_option


@click.command(name="doctor")
@kubeconfig_options
@scheduler_name_option
@fabric_option
@output_option
def command(
    kubeconfig: str | None, context: str | None, scheduler_name: str, fabric: tuple[str, ...], output: str
) -> None:
    """Find faults in the GPU setup of a cluster, and show how to fix each.

    Only lists objects, writes nothing. Exit code 1: there is a finding of level error. 3: there is none, but some
    objects could not be read, so that checks were left out. 0: else.
    """
    from dovetail.cli.doctor.answer import UNKNOWN, look, show

    config = config_of(kubeconfig, context)
    answer = run(look(config, scheduler_name, fabric), config.server)
    if output == "json":
        write_json(answer)
    else:
        show(answer, Console())
    levels = {one.level for one in answer.findings}
    if "error" in levels:
        sys.exit(1)
    if UNKNOWN in levels:
        sys.exit(INCOMPLETE)
