# SPDX-License-Identifier: Apache-2.0
"""The cluster of `dovetail lint --cluster`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import click

from dovetail.advice.lint.cluster import REQUESTS, NodesUnread, cluster_facts
from dovetail.advice.lint.rule import Facts
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import KubeError
from dovetail.kube.reading.lists import read_lists


def read_facts(config: ClusterConfig, failed: Callable[[str], click.ClickException]) -> Facts:
    """The facts of the cluster. A list that could not be read is named on standard error. Raises `failed` where the
    cluster, or its nodes, cannot be read."""
    try:
        facts, unread = cluster_facts(asyncio.run(read_lists(config, REQUESTS)))
    except KubeError as error:
        raise failed(f"{config.server}: {error}") from error
    except NodesUnread as error:
        raise failed(f"{error}: --cluster needs the nodes; --inventory reads them from a file") from error
    for reason in unread:
        click.echo(f"not read: {reason}", err=True)
    return facts
