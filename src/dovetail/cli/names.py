# SPDX-License-Identifier: Apache-2.0
"""Completion of live names in a shell: what is offered for a pod, a job, a queue, a node, a namespace or a context.

The names are those of the cluster that the options before the word choose, --file included. A cluster that does not
answer within two seconds, or forbids the list, has no names: a shell has no place for an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from dovetail.kube.api.config import ClusterConfig
    from dovetail.kube.api.resources import Resource
    from dovetail.kube.objects.base import ObjectMeta

Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]
_GANG = "dovetail.dev/gang"


def complete_jobs(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Pods of the namespace, and the jobs that own them."""
    from dovetail.kube.api.resources import PODS

    named, slash, _ = incomplete.partition("/")
    found: set[str] = set()
    for pod in _objects(context, PODS, named if slash else _namespace(context)):
        owners = [one.name for one in pod.owner_references if one.controller]
        gang = pod.annotations.get(_GANG)
        found.update((pod.name, *owners, *([gang] if gang else [])))
    return _matching((f"{named}/{name}" if slash else name for name in found), incomplete)


def complete_queues(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Queues."""
    from dovetail.kube.api.resources import QUEUES

    return _matching((one.name for one in _objects(context, QUEUES)), incomplete)


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
    from dovetail.kube.api.resources import NODES

    return _matching((one.name for one in _objects(context, NODES)), incomplete)


def complete_namespaces(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Namespaces."""
    from dovetail.kube.api.resources import NAMESPACES

    return _matching((one.name for one in _objects(context, NAMESPACES)), incomplete)


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


def _objects(context: click.Context, resource: Resource, namespace: str = "") -> Iterable[ObjectMeta]:
    if files := context.params.get("files"):
        return _in_files(files, resource, namespace)
    config = _config(context)
    if config is None:
        return ()
    import asyncio

    from dovetail.kube.reading.names import read_names

    return asyncio.run(read_names(config, resource, namespace))


def _in_files(files: tuple[str, ...], resource: Resource, namespace: str) -> Iterable[ObjectMeta]:
    import msgspec

    from dovetail.kube.manifests.documents import ManifestError, read_documents
    from dovetail.kube.objects.base import ObjectMeta

    try:
        documents: list[Any] = [one.value for one in read_documents(files)]
    except ManifestError:
        return
    for value in documents:
        if isinstance(value, dict) and value.get("kind") == resource.kind:
            try:
                metadata = msgspec.convert(value.get("metadata", {}), ObjectMeta)
            except msgspec.ValidationError:
                continue
            if not namespace or (metadata.namespace or "default") == namespace:
                yield metadata
