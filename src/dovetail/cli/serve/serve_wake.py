# SPDX-License-Identifier: Apache-2.0
"""`dovetail serve wake`."""

from __future__ import annotations

import click

from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.output import foreign, namespace_option


@click.command(name="wake")
@click.argument("pod")
@namespace_option
@kubeconfig_options
def command(pod: str, namespace: str | None, kubeconfig: str | None, context: str | None) -> None:
    """Ask for the turn of an inference engine that sleeps.

    Writes the annotation dovetail.dev/wake-wanted on POD. `dovetail serve turns --give` wakes it when it is its turn:
    those that asked before come first.

    Exit code 0. 1: the pod takes no turns, or cannot be read or written. 2: wrong usage.
    """
    from dovetail.cli.cluster import run
    from dovetail.sleeping.run import NoInstance, ask_to_wake

    config = config_of(kubeconfig, context)
    own = namespace or config.namespace
    try:
        run(ask_to_wake(config, own, pod), config.server)
    except* NoInstance as errors:
        raise click.ClickException(str(errors.exceptions[0])) from None
    click.echo(f"{foreign(own)}/{foreign(pod)} wants to be awake")
