# SPDX-License-Identifier: Apache-2.0
"""Completion of live names in a shell: what is offered for a pod, a job, a queue, a node, a namespace or a context.

The names are those of the cluster that the options before the word choose, --file included. A cluster that does not
answer within two seconds, or forbids the list, has no names: a shell has no place for an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from dovetail.kube.api.config import ClusterConfig
    from dovetail.kube.reading.names import Named

Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]
_KINDS = ("job/", "pod/")


def complete_jobs(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Pods of the namespace, and the jobs that own them; all of a kind or a namespace that stands before them."""
    before, namespace, rest = "", _namespace(context), incomplete
    if rest.startswith(_KINDS):
        kind, _, rest = rest.partition("/")
        before = f"{kind}/"
    if "/" in rest:
        namespace, _, rest = rest.partition("/")
        before += f"{namespace}/"
    found: set[str] = set()
    for pod in _objects(context, "pods", namespace):
        found.update((pod.name, *pod.jobs))
    return _matching((before + name for name in found), incomplete)


def complete_queues(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Queues."""
    return _matching((one.name for one in _objects(context, "queues")), incomplete)


def complete_jobs_and_queues(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Both; queues also as queue/NAME."""
    if incomplete.startswith("queue/"):
        inside = complete_queues(context, parameter, incomplete.removeprefix("queue/"))
        return _matching((f"queue/{one.value}" for one in inside), incomplete)
    return complete_jobs(context, parameter, incomplete) + complete_queues(context, parameter, incomplete)


def complete_nodes(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Nodes."""
    return _matching((one.name for one in _objects(context, "nodes")), incomplete)


def complete_namespaces(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Namespaces."""
    return _matching((one.name for one in _objects(context, "namespaces")), incomplete)


def complete_contexts(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The contexts of the kubeconfig."""
    from dovetail.kube.api.config import context_names
    from dovetail.kube.api.errors import KubeError

    try:
        return _matching(context_names(context.params.get("kubeconfig")), incomplete)
    except KubeError:
        return []


def _matching(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(name) for name in sorted(set(names)) if name.startswith(incomplete) and name]


def _namespace(context: click.Context) -> str:
    config = _config(context)
    return context.params.get("namespace") or (config.namespace if config is not None else "default")


def _config(context: click.Context) -> ClusterConfig | None:
    """None where there is no cluster."""
    from dovetail.kube.api.config import load_config
    from dovetail.kube.api.errors import KubeError

    try:
        return load_config(context.params.get("kubeconfig"), context.params.get("context"))
    except KubeError:
        return None


def _objects(context: click.Context, plural: str, namespace: str = "") -> Iterable[Named]:
    from dovetail.kube.reading.names import names_in, read_names

    if files := context.params.get("files"):
        return names_in(files, plural, namespace)
    config = _config(context)
    if config is None:
        return ()
    import asyncio

    return asyncio.run(read_names(config, plural, namespace))
