# SPDX-License-Identifier: Apache-2.0
"""The cluster of a command: the shared options that choose it, and its state.

A command that reads a cluster uses `cluster_options` and gets a ClusterSource: a live cluster, or files in its place.
The core, the client and YAML are imported when the cluster is read, not when the options are declared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec
from msgspec import Struct

from dovetail.cli.console import Console
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.markup import escape
from dovetail.cli.output import count, span
from dovetail.cli.scheduling import SCHEDULER_NAME, PolicyChoice, fabric_option, policy_option, scheduler_name_option
from dovetail.cli.service import first_of
from dovetail.kube.api.errors import Forbidden, KubeError

if TYPE_CHECKING:
    from dovetail.core.policy import Policy
    from dovetail.core.state import State
    from dovetail.kube.api.config import ClusterConfig
    from dovetail.kube.manifests.cluster import Manifests
    from dovetail.kube.manifests.documents import Document
    from dovetail.kube.reading.live_cluster import LiveCluster
    from dovetail.kube.reading.views import ViewRequest

R = TypeVar("R")
_OLD_MS = 90_000
F = TypeVar("F", bound=Callable[..., Any])


class Noted(Struct):
    """What a command has learned of its input: by pod, the schedulerName of the pods of other schedulers, the epoch
    time of a snapshot, 0 for other input, and why there are no views."""

    schedulers: dict[str, str] = {}
    taken_ms: int = 0
    no_views: str = ""


class ClusterSource(Struct, frozen=True):
    """The cluster that a command reads, and the time of that cluster.

    `files` are manifests in place of a live cluster. `at_ms` is the epoch time that they describe, 0 for that of the
    snapshot, or now.
    `quarantine_budget` is used in place of the scheduler's, if it is not "".
    `noted` is filled when the state is read.
    """

    choice: PolicyChoice
    scheduler_name: str
    files: tuple[str, ...] = ()
    config: ClusterConfig | None = None
    at_ms: int = 0
    noted: Noted = msgspec.field(default_factory=Noted)
    quarantine_budget: str = ""

    def check_again(self) -> None:
        """Raise UsageError if the cluster cannot be read again and again."""
        if "-" in self.files:
            raise click.UsageError("--watch reads again and again: name a file in place of - (standard input)")

    @property
    def namespace(self) -> str:
        """The namespace of names without one."""
        return self.config.namespace if self.config is not None else "default"

    @property
    def now_ms(self) -> int:
        """Epoch milliseconds. That of a snapshot is known when it was read."""
        return self.at_ms or self.noted.taken_ms or now_ms()

    @property
    def policy(self) -> Policy:
        """The policy of its state."""
        return self.choice.for_queries()

    @property
    def schedulers(self) -> dict[str, str]:
        """By pod, the schedulerName of the pods of other schedulers, as far as the state was read."""
        return self.noted.schedulers

    def ask(self, request: ViewRequest, kind: type[R]) -> R | None:
        """The answer of the running scheduler as a `kind`; None where the cluster has to be read. The reason is printed
        on standard error: where there are no views, only if the cluster cannot be read either. Options that describe
        another scheduler, and files, need no answer of this one. Raises ClickException."""
        if self.config is None or self.scheduler_name != SCHEDULER_NAME or self.choice != PolicyChoice():
            return None
        from dovetail.core.json_text import JsonError, decode_json
        from dovetail.kube.reading.views import NoSuchObject, NotServed, NoView, read_view

        try:
            document = run(read_view(self.config, request), self.config.server, small=True)
            found = decode_json(document.answer, kind)
        except NoSuchObject as error:
            raise click.ClickException(str(error)) from error
        except (NoView, JsonError) as error:
            note = f"note: {escape(str(error))}; reading the cluster itself"
            if isinstance(error, NotServed):
                self.noted.no_views = note
            else:
                Console(stderr=True).print(note)
            return None
        age_ms = self.now_ms - document.as_of_ms
        if age_ms > _OLD_MS:
            Console(stderr=True).print(f"note: the scheduler answered this {span(age_ms)} ago")
        return found

    def state(self) -> State:
        """The cluster as a new state of the core. Raises ClickException with a one-line message."""
        return self.read().state

    def read(self, *, ended: bool = False) -> LiveCluster:
        """The same, with the translator of its objects, and with `ended` its finished pods. Raises ClickException."""
        from dovetail.kube.translate.quarantine_budget import with_budget

        if self.config is not None:
            from dovetail.kube.reading.state import read_cluster

            work = read_cluster(self.config, self.policy, self.scheduler_name, self.quarantine_budget, ended=ended)
            try:
                live = run(work, self.config.server)
            except click.ClickException:
                if self.noted.no_views:
                    Console(stderr=True).print(self.noted.no_views)
                raise
            self.schedulers.update(live.schedulers)
            return live
        from dovetail.core.cycle import enter
        from dovetail.core.state import State
        from dovetail.kube.reading.live_cluster import LiveCluster

        budget = self.quarantine_budget
        state = State(with_budget(self.policy, budget) if budget else self.policy)
        found = _manifests(self.files, self.scheduler_name, self.schedulers)
        self.noted.taken_ms = found.record.taken_ms if found.record is not None else 0
        enter(state, found.events, self.now_ms)
        return LiveCluster(state, found.feed, budget)


def _manifests(
    files: tuple[str, ...], scheduler_name: str | None, schedulers: dict[str, str] | None = None
) -> Manifests:
    from dovetail.kube.manifests import cluster
    from dovetail.kube.manifests.documents import ManifestError

    try:
        found = cluster.read(files, scheduler_name, schedulers)
    except ManifestError as error:
        raise click.ClickException(str(error)) from error
    print_problems(found)
    return found


def manifests_of(files: tuple[str, ...]) -> tuple[dict[str, Any], ...]:
    """The objects of manifests. Parts that cannot be used are listed on standard error. Raises ClickException."""
    from dovetail.kube.manifests.documents import ManifestError, read_documents

    try:
        return _usable(list(read_documents(files)), files)
    except ManifestError as error:
        raise click.ClickException(str(error)) from error


def submitted(files: tuple[str, ...], namespace: str) -> tuple[dict[str, Any], ...]:
    """The objects of manifests, with the pods that controllers would make of their workloads; all pods are ours. Those
    without a namespace are in this one. Raises ClickException."""
    from dovetail.kube.manifests.documents import ManifestError, read_documents
    from dovetail.kube.manifests.workloads import expanded
    from dovetail.views.whatif_changes import inside

    try:
        found = expanded(inside(read_documents(files), namespace))
    except ManifestError as error:
        raise click.ClickException(str(error)) from error
    for fault in found.faults:
        raise click.ClickException(str(fault))
    return _usable(found.documents, files)


def _usable(documents: list[Document], files: tuple[str, ...]) -> tuple[dict[str, Any], ...]:
    from dovetail.kube.manifests import cluster

    found = cluster.of_documents(documents, whole=False)
    if not found.events and not found.problems:
        raise click.ClickException(f"{', '.join(files)}: no object in it matters to a scheduler")
    print_problems(found)
    return tuple(one.value for one in documents if isinstance(one.value, dict))


def print_problems(found: Manifests) -> None:
    """Print to standard error the parts of manifests that cannot be used, and the number of missing objects."""
    console = Console(stderr=True)
    for problem in found.problems:
        console.print(f"[yellow]attention:[/yellow] {escape(str(problem))}")
    if found.missing:
        console.print(
            f"{count(found.missing, 'object')} that the input names {'is' if found.missing == 1 else 'are'} not in it: "
            "`dovetail snapshot` saves all that is needed of a cluster"
        )


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that choose the cluster; the command gets a `source` in their place."""

    @wraps(command)
    def sourced(cluster: Callable[[], ClusterSource], **rest: Any) -> None:
        command(source=cluster(), **rest)

    return late_cluster_options(sourced)


def late_cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """The same for a command that may need no cluster: it gets the function `cluster`, which raises ClickException."""

    @wraps(command)
    def sourced(
        kubeconfig: str | None,
        context: str | None,
        scheduler_name: str,
        fabric: tuple[str, ...],
        scoring: str,
        files: tuple[str, ...],
        at_ms: int,
        **rest: Any,
    ) -> None:
        def cluster() -> ClusterSource:
            choice = PolicyChoice(fabric, scoring)
            if files:
                for option, value in (("--kubeconfig", kubeconfig), ("--context", context)):
                    if value is not None:
                        raise click.UsageError(f"--file and {option} both choose the cluster: use one of them")
                return ClusterSource(choice, scheduler_name, files, None, at_ms)
            if at_ms:
                raise click.UsageError("--at needs --file: a live cluster has its own time")
            return ClusterSource(choice, scheduler_name, (), config_of(kubeconfig, context))

        command(cluster=cluster, **rest)

    at = at_option(
        "With --file: the time that the files describe, such as 2026-01-31T12:00:00Z. Default: of the snapshot, or now."
    )
    files = click.option(
        "-f", "--file", "files", metavar="PATH", multiple=True,
        help="Read the cluster from files, folders or - (stdin), as `dovetail snapshot` writes them.",
    )  # fmt: skip
    return kubeconfig_options(scheduler_name_option(fabric_option(policy_option(files(at(sourced))))))


def at_option(text: str, option: str = "--at", name: str = "at_ms") -> Callable[[F], F]:
    """The option for a time; its value is in epoch milliseconds, 0 without the option."""
    return click.option(
        option, name, metavar="TIME", default=None, callback=lambda _ctx, _param, value: _time_ms(value), help=text
    )


def _time_ms(value: str | None) -> int:
    if value is None:
        return 0
    try:
        moment = datetime.fromisoformat(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a time such as 2026-01-31T12:00:00Z") from error
    if moment.tzinfo is None:
        raise click.BadParameter(f"{value!r} has no time zone: end it with Z for UTC")
    return max(0, round(moment.timestamp() * 1000))


def run(work: Coroutine[Any, Any, R], server: str, *, small: bool = False) -> R:
    """Run `work` to its end. An error of the API server at `server` becomes a ClickException of one line. `small`: it
    is a request or two, for which uvloop takes longer to import than it saves."""
    if small:
        from asyncio import run as run_loop
    else:
        from uvloop import run as run_loop

    try:
        return run_loop(work)
    except* KubeError as errors:
        from dovetail.kube.api.rights import missing_right

        error = first_of(errors)
        text = missing_right(error) if isinstance(error, Forbidden) else str(error)
        raise click.ClickException(f"{server}: {text}") from None


def now_ms() -> int:
    return time.time_ns() // 1_000_000
