# SPDX-License-Identifier: Apache-2.0
"""How commands reach a cluster: the shared options, and a read of everything the core is told."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click
import uvloop

from dovetail.cli.service import first_of
from dovetail.core.cycle import tell
from dovetail.core.policy import Policy
from dovetail.core.state import State
from dovetail.kube.client import Client
from dovetail.kube.config import ClusterConfig
from dovetail.kube.discovery import discover
from dovetail.kube.errors import KubeError
from dovetail.kube.feed import Feed
from dovetail.kube.sources import read_once

_LABEL_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


def scheduler_name_option(command: F) -> F:
    return click.option(
        "--scheduler-name", default="dovetail", show_default=True, help="The spec.schedulerName that is ours."
    )(command)


def fabric_option(command: F) -> F:
    return click.option(
        "--fabric",
        metavar="KEY,KEY...",
        help="Node label keys of the fabric from the widest to the narrowest. Default: zone, block, rack, clique keys.",
        callback=lambda _ctx, _param, value: _fabric(value),
    )(command)


def _fabric(value: str | None) -> tuple[str, ...]:
    if value is None:
        return Policy().fabric
    keys = tuple(key.strip() for key in value.split(","))
    if not all(map(_LABEL_KEY.fullmatch, keys)) or len(set(keys)) != len(keys):
        raise click.BadParameter("needs different label keys such as example.com/rack, separated by commas")
    return keys


def run(work: Coroutine[Any, Any, R], server: str) -> R:
    """Run to the end; errors of the cluster at `server` become one clear line."""
    try:
        return uvloop.run(work)
    except* KubeError as errors:
        raise click.ClickException(f"{server}: {first_of(errors)}") from None


async def snapshot(config: ClusterConfig, policy: Policy, scheduler_name: str) -> State:
    """The cluster as it is now, in a state of the core that no one else uses."""
    return await told_by(config, policy, Feed(scheduler_name))


async def told_by(config: ClusterConfig, policy: Policy, feed: Feed) -> State:
    """The same, told by this feed."""
    state = State(policy)
    async with Client(config, user_agent="dovetail") as client:
        tell(state, await read_once(client, await discover(client), feed), now_ms())
    state.advance(now_ms())
    await asyncio.sleep(0)
    return state


def now_ms() -> int:
    return time.time_ns() // 1_000_000
