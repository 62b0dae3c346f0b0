# SPDX-License-Identifier: Apache-2.0
"""The options of a Prometheus that a command reads."""

from __future__ import annotations

from string import ascii_letters, digits
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

if TYPE_CHECKING:
    from dovetail.kube.reading.prometheus_api import PrometheusAccess

_OF_TENANTS = "!-_.*'()|/:" + ascii_letters + digits
"""What Mimir permits, with | between several tenants (Mimir: configure/about-tenant-ids), and what gateways add."""
_LONGEST_TENANT = 1024
token_option = click.option(
    "--prometheus-token", "token", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
    envvar="DOVETAIL_PROMETHEUS_TOKEN", help="File with the bearer token for it.",
)  # fmt: skip
authority_option = click.option(
    "--prometheus-ca", "authority", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
    envvar="DOVETAIL_PROMETHEUS_CA", help="File with the certificates of its authority.",
)  # fmt: skip


def _tenant(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """Raises BadParameter."""
    if len(value) > _LONGEST_TENANT or not all(one in _OF_TENANTS for one in value):
        raise click.BadParameter(f"{value!r} is no tenant: letters, digits, and any of {_OF_TENANTS[:10]}")
    return value


tenant_option = click.option(
    "--prometheus-tenant", "tenant", metavar="TENANT", default="", envvar="DOVETAIL_PROMETHEUS_TENANT",
    callback=_tenant, help="The tenant whose series are read, of Mimir, Cortex, or others with X-Scope-OrgID.",
)  # fmt: skip


def access_of(url: str, token: str | None, authority: str | None, tenant: str = "") -> PrometheusAccess:
    """Raises UsageError."""
    from dovetail.kube.reading.prometheus_api import PrometheusAccess

    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise click.UsageError(f"--prometheus: {url!r} is no URL such as http://prometheus.monitoring:9090")
    return PrometheusAccess(url, token or "", authority or "", tenant)
