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

    from dovetail.kube.reading.names import Named

Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]
_KINDS = ("job/", "pod/")


def complete_jobs(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Pods of the namespace, and the jobs that own them; all of a kind or a namespace that stands before them."""
    before, namespace = _before(incomplete)
    (pods,) = _read(context, ["pods"], namespace)
    return _matching(_jobs(before, pods), incomplete)


def complete_queues(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Queues."""
    return _matching(_names(context, "queues"), incomplete)


def complete_jobs_and_queues(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Both; queues also as queue/NAME."""
    if incomplete.startswith("queue/"):
        return _matching((f"queue/{name}" for name in _names(context, "queues")), incomplete)
    before, namespace = _before(incomplete)
    pods, queues = _read(context, ["pods", "queues"], namespace)
    return _matching(_jobs(before, pods), incomplete) + _matching((one.name for one in queues), incomplete)


def complete_nodes(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Nodes."""
    return _matching(_names(context, "nodes"), incomplete)


def complete_namespaces(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Namespaces."""
    return _matching(_names(context, "namespaces"), incomplete)


def complete_contexts(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The contexts of the kubeconfig."""
    from dovetail.kube.api.config import context_names
    from dovetail.kube.api.errors import KubeError

    try:
        return _matching(context_names(context.params.get("kubeconfig")), incomplete)
    except KubeError:
        return []


def complete_list(known: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """The last of words that are separated by commas."""
    before, comma, _ = incomplete.rpartition(",")
    return _matching((f"{before}{comma}{word}" for word in known), incomplete)


def _matching(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(name) for name in sorted(set(names)) if name.startswith(incomplete) and name]


def _before(incomplete: str) -> tuple[str, str]:
    """The kind and the namespace that stand before a name, as they are written; and the namespace, "" for none."""
    kind, _, rest = incomplete.rpartition("/")[0].partition("/")
    if f"{kind}/" not in _KINDS:
        kind, rest = "", kind
    return "".join(f"{part}/" for part in (kind, rest) if part), rest


def _jobs(before: str, pods: Iterable[Named]) -> set[str]:
    return {before + name for pod in pods for name in (pod.name, *pod.jobs)}


def _names(context: click.Context, plural: str) -> list[str]:
    (found,) = _read(context, [plural])
    return [one.name for one in found]


def _read(context: click.Context, plurals: list[str], namespace: str = "") -> list[list[Named]]:
    """The objects of each; of pods those of the namespace, or of the one that the options choose."""
    from dovetail.kube.api.config import load_config
    from dovetail.kube.api.errors import KubeError
    from dovetail.kube.reading.names import names_in, read_names

    try:
        config = load_config(context.params.get("kubeconfig"), context.params.get("context"))
    except KubeError:
        config = None
    default = config.namespace if config is not None else "default"
    namespace = namespace or context.params.get("namespace") or default
    if files := context.params.get("files"):
        return names_in(files, plurals, namespace)
    if config is None:
        return [[] for _ in plurals]
    import asyncio

    return asyncio.run(read_names(config, plurals, namespace))
