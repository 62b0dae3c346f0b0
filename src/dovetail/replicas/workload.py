# SPDX-License-Identifier: Apache-2.0
"""A serving workload as the API server has it: its number of replicas, its pods, and copies of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from dovetail.kube.api.client import Client
from dovetail.kube.api.errors import ApiError
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.resources import NAME, PODS, Resource
from dovetail.kube.objects.pods import Pod

WORKLOADS: Mapping[str, Resource] = {
    "deployment": Resource("apps", "v1", "deployments", True, "Deployment"),
    "statefulset": Resource("apps", "v1", "statefulsets", True, "StatefulSet"),
    "leaderworkerset": Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", True, "LeaderWorkerSet"),
}
"""By the word before NAME."""
_ENDED = ("Succeeded", "Failed")
_TEMPLATES = (("template",), ("leaderWorkerTemplate", "leaderTemplate"), ("leaderWorkerTemplate", "workerTemplate"))
_LONGEST_NAME = 40


class WorkloadError(Exception):
    """The workload cannot be used; the message has what and why."""


class ServedWorkload(Struct, frozen=True):
    """A workload of `replicas`, of which the pods "namespace/name" `running` are on nodes. `waiting` are those whose
    pod is on none, or does not exist yet. `priority` is that of its pods, None if there are none."""

    resource: Resource
    namespace: str
    name: str
    manifest: dict[str, Any]
    replicas: int
    running: tuple[str, ...]
    waiting: int
    priority: int | None = None

    def copies(self, number: int, prefix: str) -> dict[str, Any]:
        """A manifest of so many further replicas, under a name with this prefix. Labels stay, so that rules about pods
        of the workload, as of spread, see the others."""
        meta, spec = _mapping(self.manifest.get("metadata")), _mapping(self.manifest.get("spec"))
        kept = {key: meta[key] for key in ("labels", "annotations") if key in meta}
        if self.priority is not None:
            for path in _TEMPLATES:
                spec = _with_priority(spec, path, self.priority)
        return {
            "apiVersion": self.resource.api_version, "kind": self.resource.kind,
            "metadata": kept | {"name": prefix + self.name[:_LONGEST_NAME].rstrip("-."), "namespace": self.namespace},
            "spec": spec | {"replicas": number},
        }  # fmt: skip


def named(text: str) -> tuple[Resource, str]:
    """The kind and the name in [KIND/]NAME. Raises WorkloadError."""
    kind, slash, name = text.rpartition("/")
    resource = WORKLOADS.get(kind if slash else "deployment")
    if resource is None:
        raise WorkloadError(f"{text!r}: KIND is {', '.join(WORKLOADS)}")
    if not NAME.fullmatch(name):
        raise WorkloadError(f"{name!r} is no name of an object")
    return resource, name


async def read_workload(client: Client, resource: Resource, namespace: str, name: str) -> ServedWorkload:
    """Read it. Raises WorkloadError, KubeError."""
    try:
        manifest = await client.request("GET", resource.path(namespace, name), decode=dict[str, Any])
    except ApiError as error:
        raise WorkloadError(f"{resource.kind} {namespace}/{name} cannot be read: {error}") from error
    replicas, selector = _mapping(manifest.get("spec")).get("replicas", 1), selector_of(manifest)
    if not selector or not isinstance(replicas, int):
        raise WorkloadError(f"{resource.kind} {namespace}/{name} has no selector: which pods are its is not known")
    found = await list_all(client, PODS.inside(namespace), Pod, params={"labelSelector": selector})
    pods = [
        one
        for one in found.objects.values()
        if one.status.phase not in _ENDED and one.metadata.deletion_timestamp is None
    ]
    running = tuple(sorted(f"{namespace}/{one.metadata.name}" for one in pods if one.spec.node_name))
    waiting = max(0, replicas - len(running))
    priority = next((one.spec.priority for one in pods if one.spec.priority is not None), None)
    return ServedWorkload(resource, namespace, name, manifest, replicas, running, waiting, priority)


def selector_of(manifest: dict[str, Any]) -> str:
    """The selector of one pod of each replica, as a query of the API has it."""
    status, written = _mapping(manifest.get("status")), _mapping(_mapping(manifest.get("spec")).get("selector"))
    parts = [f"{key}={value}" for key, value in _mapping(written.get("matchLabels")).items()]
    for one in written.get("matchExpressions") or ():
        key, among = one.get("key"), f"({','.join(map(str, one.get('values') or ()))})"
        parts.append(
            {"In": f"{key} in {among}", "NotIn": f"{key} notin {among}", "Exists": f"{key}"}.get(
                str(one.get("operator")), f"!{key}"
            )
        )
    # A LeaderWorkerSet has the selector of its leaders in its status.
    return str(status.get("hpaPodSelector") or "") or ",".join(parts)


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _with_priority(spec: dict[str, Any], path: tuple[str, ...], priority: int) -> dict[str, Any]:
    """The spec with this priority in the pod template at `path`, if there is one."""
    first, *rest = path
    inside = spec.get(first)
    if not isinstance(inside, dict):
        return spec
    if rest:
        return spec | {first: _with_priority(inside, tuple(rest), priority)}
    return spec | {first: inside | {"spec": _mapping(inside.get("spec")) | {"priority": priority}}}
