# SPDX-License-Identifier: Apache-2.0
"""The options that choose the API server of a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dovetail.cli.names import complete_contexts
from dovetail.kube.api.errors import KubeError

if TYPE_CHECKING:
    from dovetail.kube.api.config import ClusterConfig

F = TypeVar("F", bound=Callable[..., Any])


def kubeconfig_options(command: F) -> F:
    """--kubeconfig and --context, as kubectl has them."""
    command = click.option(
        "--context", metavar="NAME", help="Context of the kubeconfig to use.", shell_complete=complete_contexts
    )(command)
    return click.option(
        "--kubeconfig",
        type=click.Path(exists=True, dir_okay=False),
        help="Kubeconfig file. Default: $KUBECONFIG, the pod's service account, ~/.kube/config.",
    )(command)


def config_of(kubeconfig: str | None, context: str | None) -> ClusterConfig:
    """The configuration that these options choose. Raises ClickException."""
    from dovetail.kube.api.config import load_config

    try:
        return load_config(kubeconfig, context)
    except KubeError as error:
        raise click.ClickException(str(error)) from error
