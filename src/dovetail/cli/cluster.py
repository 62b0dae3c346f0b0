# SPDX-License-Identifier: Apache-2.0
"""How commands reach a cluster: the shared options, and a read of everything the core is told.

A command that looks takes `cluster_options` and is given a Source: a live cluster, or files that stand for one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from datetime import datetime
from functools import wraps
from typing import Any, TypeVar

import click
import uvloop
from msgspec import Struct
from rich.markup import escape

from dovetail.cli.console import Console
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.output import count
from dovetail.cli.scheduling import fabric_option, policy_option, scheduler_name_option
from dovetail.cli.service import first_of
from dovetail.core.cycle import tell
from dovetail.core.events import Event
from dovetail.core.placing.scores import Scoring
from dovetail.core.policy import Policy, unhurried
from dovetail.core.state import State
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.discovery import discover
from dovetail.kube.api.errors import KubeError
from dovetail.kube.manifests import cluster
from dovetail.kube.manifests.documents import ManifestError, read_documents
from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.translate.sources import read_once
from dovetail.kube.translate.translator import Translator
from dovetail.views.workloads import WorkloadError, with_pods

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class ClusterSource(Struct, frozen=True):
    """Where a command finds the cluster that it looks at, and what the time is there. `namespace` is that of names that
    have none. `schedulers` are those that pods name which are not ours, by pod, once the state was read."""

    policy: Policy
    scheduler_name: str
    files: tuple[str, ...] = ()
    config: ClusterConfig | None = None
    at_ms: int = 0
    schedulers: dict[str, str] = {}

    @property
    def namespace(self) -> str:
        return self.config.namespace if self.config is not None else "default"

    @property
    def now_ms(self) -> int:
        return self.at_ms or now_ms()

    def state(self) -> State:
        """The cluster in a state of the core that no one else uses. Raises ClickException with one clear line."""
        if self.config is not None:
            feed = Translator(self.scheduler_name)
            feed.schedulers = self.schedulers
            return run(told_by(self.config, self.policy, feed), self.config.server)
        state = State(self.policy)
        tell(state, events_of(self.files, self.scheduler_name, self.schedulers), self.now_ms)
        state.advance(self.now_ms)
        return state


def events_of(
    files: tuple[str, ...], scheduler_name: str | None, schedulers: dict[str, str] | None = None
) -> tuple[Event, ...]:
    """What manifests say. What of them cannot be used is told on standard error."""
    try:
        found = cluster.read(files, scheduler_name, schedulers)
    except ManifestError as error:
        raise click.ClickException(str(error)) from error
    tell_problems(found)
    return found.events


def submitted(files: tuple[str, ...]) -> tuple[Event, ...]:
    """What manifests say, with the pods that their workloads make; all pods are ours."""
    try:
        documents = with_pods(read_documents(files))
    except (ManifestError, WorkloadError) as error:
        raise click.ClickException(str(error)) from error
    found = cluster.of_documents(documents, whole=False)
    if not found.events and not found.problems:
        raise click.ClickException(f"{', '.join(files)}: there is nothing in it that a scheduler could be told")
    tell_problems(found)
    return found.events


def tell_problems(found: cluster.Manifests) -> None:
    """On standard error, what of manifests cannot be used, and what they name and lack."""
    console = Console(stderr=True)
    for problem in found.problems:
        console.print(f"[yellow]attention:[/yellow] {escape(str(problem))}")
    if found.missing:
        console.print(
            f"{count(found.missing, 'object is', 'objects are')} named and not in the input: `dovetail snapshot` reads "
            "from a cluster all that is needed"
        )


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say which cluster; the command is given a `source` for them."""

    @wraps(command)
    def sourced(
        kubeconfig: str | None,
        context: str | None,
        scheduler_name: str,
        fabric: tuple[str, ...],
        scoring: Scoring,
        files: tuple[str, ...],
        at_ms: int,
        **rest: Any,
    ) -> None:
        policy = unhurried(Policy(fabric=fabric, scoring=scoring))
        if files:
            for option, value in (("--kubeconfig", kubeconfig), ("--context", context)):
                if value is not None:
                    raise click.UsageError(f"--file stands for a cluster, and {option} names one: give one of them")
            source = ClusterSource(policy, scheduler_name, files, None, at_ms, {})
        elif at_ms:
            raise click.UsageError("--at is the time of what --file names")
        else:
            source = ClusterSource(policy, scheduler_name, (), config_of(kubeconfig, context), 0, {})
        command(source=source, **rest)

    at = at_option("With --file: what the time is there, as in 2026-01-31T12:00:00Z. Default: now.")
    files = click.option(
        "-f", "--file", "files", metavar="PATH", multiple=True,
        help="Files, folders or - (stdin) with manifests that stand for the cluster: what `dovetail snapshot` writes.",
    )  # fmt: skip
    return kubeconfig_options(scheduler_name_option(fabric_option(policy_option(files(at(sourced))))))


def at_option(text: str) -> Callable[[F], F]:
    """`--at`, given as epoch milliseconds, 0 where it is not given."""
    return click.option(
        "--at", "at_ms", metavar="TIME", default=None, callback=lambda _ctx, _param, value: _time_ms(value), help=text
    )


def _time_ms(value: str | None) -> int:
    if value is None:
        return 0
    try:
        moment = datetime.fromisoformat(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no time such as 2026-01-31T12:00:00Z") from error
    if moment.tzinfo is None:
        raise click.BadParameter(f"{value!r} does not say its time zone: end it with Z for UTC")
    return epoch_ms(moment)


def run(work: Coroutine[Any, Any, R], server: str) -> R:
    """Run to the end; errors of the cluster at `server` become one clear line."""
    try:
        return uvloop.run(work)
    except* KubeError as errors:
        raise click.ClickException(f"{server}: {first_of(errors)}") from None


async def snapshot(config: ClusterConfig, policy: Policy, scheduler_name: str) -> State:
    """The cluster as it is now, in a state of the core that no one else uses."""
    return await told_by(config, policy, Translator(scheduler_name))


async def told_by(config: ClusterConfig, policy: Policy, feed: Translator) -> State:
    """The same, told by this feed."""
    state = State(policy)
    async with Client(config, user_agent="dovetail") as client:
        tell(state, await read_once(client, await discover(client), feed), now_ms())
    state.advance(now_ms())
    await asyncio.sleep(0)
    return state


def now_ms() -> int:
    return time.time_ns() // 1_000_000
