# SPDX-License-Identifier: Apache-2.0
"""The options of a Prometheus that a command reads."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

if TYPE_CHECKING:
    from dovetail.kube.reading.prometheus_api import PrometheusAccess

token_option = click.option(
    "--prometheus-token", "token", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
    envvar="DOVETAIL_PROMETHEUS_TOKEN", help="File with the bearer token for it.",
)  # fmt: skip
authority_option = click.option(
    "--prometheus-ca", "authority", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
    envvar="DOVETAIL_PROMETHEUS_CA", help="File with the certificates of its authority.",
)  # fmt: skip


def access_of(url: str, token: str | None, authority: str | None) -> PrometheusAccess:
    """Raises UsageError."""
    from dovetail.kube.reading.prometheus_api import PrometheusAccess

    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise click.UsageError(f"--prometheus: {url!r} is no URL such as http://prometheus.monitoring:9090")
    return PrometheusAccess(url, token or "", authority or "")
