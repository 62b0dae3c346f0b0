# SPDX-License-Identifier: Apache-2.0
"""The commands that do one thing to the inference engine of one pod: `dovetail serve sleep` and `serve wake`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.output import foreign, namespace_option

if TYPE_CHECKING:
    from dovetail.kube.api.config import ClusterConfig


class EngineAct(Struct, frozen=True):
    """`carry_out` takes the cluster, a namespace and a pod. `done` follows the name of the pod; `help` is the text of
    `--help`."""

    carry_out: Callable[[ClusterConfig, str, str], Coroutine[Any, Any, None]]
    done: str
    help: str


async def _sleep(config: ClusterConfig, namespace: str, pod: str) -> None:
    from dovetail.sleeping.run import put_to_sleep

    await put_to_sleep(config, namespace, pod)


async def _wake(config: ClusterConfig, namespace: str, pod: str) -> None:
    from dovetail.sleeping.run import ask_to_wake

    await ask_to_wake(config, namespace, pod)


ACTS = {
    "sleep": EngineAct(_sleep, "sleeps", """\
Put an inference engine to sleep now.

Calls the engine of POD through the API server's proxy, whether its turn is over or not; running requests are
answered first where the engine can do that. It withdraws the request to be awake.

Exit code 0: the engine sleeps. 1: it refuses, does not answer, or POD takes no turns. 2: wrong usage.
"""),
    "wake": EngineAct(_wake, "wants to be awake", """\
Ask for the turn of an inference engine that sleeps.

Writes the annotation dovetail.dev/wake-wanted on POD. `dovetail serve turns --give` wakes it when it is its turn:
those that asked before come first.

Exit code 0. 1: the pod takes no turns, or cannot be read or written. 2: wrong usage.
"""),
}  # fmt: skip


def engine_command(name: str) -> click.Command:
    """The command of this name in `ACTS`."""
    act = ACTS[name]

    @click.command(name=name, help=act.help)
    @click.argument("pod")
    @namespace_option
    @kubeconfig_options
    def command(pod: str, namespace: str | None, kubeconfig: str | None, context: str | None) -> None:
        from dovetail.cli.cluster import run
        from dovetail.sleeping.calls import EngineRefuses
        from dovetail.sleeping.run import NoInstance

        config = config_of(kubeconfig, context)
        own = namespace or config.namespace
        try:
            run(act.carry_out(config, own, pod), config.server)
        except* (EngineRefuses, NoInstance) as errors:
            raise click.ClickException(str(errors.exceptions[0])) from None
        click.echo(f"{foreign(own)}/{foreign(pod)} {act.done}")

    return command
