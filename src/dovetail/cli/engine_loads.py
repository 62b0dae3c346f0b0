# SPDX-License-Identifier: Apache-2.0
"""The load of inference engines, for a command that prints more: without their metrics it prints the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dovetail.cli.cluster import run

if TYPE_CHECKING:
    from dovetail.kube.reading.prometheus_api import PrometheusAccess
    from dovetail.monitoring.engine_load import EngineLoad


def engine_loads(access: PrometheusAccess, namespace: str = "", matchers: str = "") -> tuple[EngineLoad, ...] | None:
    """The load now, of one namespace if it is named. None where it cannot be read; the reason is printed."""
    from dovetail.kube.reading.engines import read_engines
    from dovetail.views.engines import loads_of

    try:
        return loads_of(run(read_engines(access, namespace, matchers), access.shown, small=True))
    except click.ClickException as error:
        click.echo(f"The metrics of inference engines are not known: {error.message}", err=True)
        return None
