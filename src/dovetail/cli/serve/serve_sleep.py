# SPDX-License-Identifier: Apache-2.0
"""`dovetail serve sleep`."""

from __future__ import annotations

import click

from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.output import foreign, namespace_option


@click.command(name="sleep")
@click.argument("pod")
@namespace_option
@kubeconfig_options
def command(pod: str, namespace: str | None, kubeconfig: str | None, context: str | None) -> None:
    """Put an inference engine to sleep now.

    Calls the engine of POD through the API server's proxy, whether its turn is over or not; running requests are
    answered first where the engine can do that. It withdraws the request to be awake.

    Exit code 0: the engine sleeps. 1: it refuses, does not answer, or POD takes no turns. 2: wrong usage.
    """
    from dovetail.cli.cluster import run
    from dovetail.sleeping.calls import EngineRefuses
    from dovetail.sleeping.run import NoInstance, put_to_sleep

    config = config_of(kubeconfig, context)
    own = namespace or config.namespace
    try:
        run(put_to_sleep(config, own, pod), config.server)
    except* (EngineRefuses, NoInstance) as errors:
        raise click.ClickException(str(errors.exceptions[0])) from None
    click.echo(f"{foreign(own)}/{foreign(pod)} sleeps")
