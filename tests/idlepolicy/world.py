# SPDX-License-Identifier: Apache-2.0
"""A cluster with idle pods, and the policy about them, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import yaml

from dovetail.idlepolicy.decision import IdlePolicy
from dovetail.idlepolicy.run import IdlePasses, IdlePolicyOptions
from dovetail.kube.api.client import Client
from tests.paths import ROOT

Document = dict[str, Any]
Put = Callable[[Document], Document]
MINUTE, HOUR = 60_000, 3_600_000
QUICK = IdlePolicy(HOUR, 4 * HOUR, HOUR, acts_per_hour=60)


def definition(group: str, version: str, kind: str, plural: str) -> Document:
    """Of a kind without a schema."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }  # fmt: skip


DEFINITIONS: tuple[Document, ...] = (
    *yaml.safe_load_all((ROOT / "deploy/crds/gpunode.yaml").read_text()),
    definition("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs"),
    definition("kubeflow.org", "v1", "Notebook", "notebooks"),
    definition("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets"),
)
GPU_STACKS: Document = yaml.safe_load((ROOT / "deploy/crds/gpustack.yaml").read_text())


def text(ms: int) -> str:
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def workload(
    kind: str, name: str, spec: Document | None = None, *, when_idle: str = "", owner: Document | None = None,
    api: str = "apps/v1", labels: Document | None = None,
) -> Document:  # fmt: skip
    meta: Document = {"name": name, "namespace": "ml", "labels": labels or {}}
    if when_idle:
        meta["annotations"] = {"dovetail.dev/when-idle": when_idle}
    if owner is not None:
        meta["ownerReferences"] = [reference(owner)]
    return {"apiVersion": api, "kind": kind, "metadata": meta, "spec": spec or {}}


def reference(owner: Document) -> Document:
    meta = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"],
        "controller": True,
    }  # fmt: skip


def selected(app: str, **more: Any) -> Document:
    """The spec of something that finds its pods by `app`."""
    template = {"metadata": {"labels": {"app": app}}, "spec": {"containers": [container()]}}
    return {"selector": {"matchLabels": {"app": app}}, "template": template, **more}


def container(gpus: int = 1) -> Document:
    limits = {"nvidia.com/gpu": gpus} if gpus else {}
    return {"name": "c", "image": "none", "resources": {"limits": limits, "requests": limits}}


class World:
    """`put` creates an object or replaces it, with its status, and returns what is stored."""

    def __init__(self, put: Put, client: Client, start_ms: int, options: IdlePolicyOptions | None = None) -> None:
        self._put = put
        self.now_ms = start_ms
        self._client = client
        self._options = options or IdlePolicyOptions(QUICK)
        self.restart()

    def put(self, document: Document) -> Document:
        """What is stored, with its kind."""
        return {**self._put(document), "apiVersion": document["apiVersion"], "kind": document["kind"]}

    def restart(self) -> None:
        """Another process of the policy."""
        self.passes = IdlePasses(self._client, self._options, lambda: self.now_ms, lambda: self.now_ms / 1000)

    def pod(
        self, name: str, owner: Document | None = None, *, node: str = "n1", gpus: int = 1,
        labels: Document | None = None, annotations: Document | None = None,
    ) -> str:  # fmt: skip
        """A pod that runs on the node. Returns its uid."""
        meta: Document = {"name": name, "namespace": "ml", "labels": labels or {}, "annotations": annotations or {}}
        if owner is not None:
            meta["ownerReferences"] = [reference(owner)]
        spec = {"nodeName": node, "containers": [container(gpus)], "terminationGracePeriodSeconds": 0}
        stored = self.put({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        return str(stored["metadata"]["uid"])

    def reports(self, node: str, idle: dict[str, int], *, age_ms: int = 0) -> None:
        """What the agent of the node reports now, or did before."""
        self.put({
            "apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": node},
            "status": {
                "observedTime": text(self.now_ms - age_ms),
                "idlePods": [{"uid": uid, "since": text(since_ms)} for uid, since_ms in idle.items()],
            },
        })  # fmt: skip

    async def after(self, hours: float, *reports: tuple[str, dict[str, int]]) -> None:
        """Let time pass, with a report of each node and a pass at its end."""
        self.now_ms += round(hours * HOUR)
        for node, idle in reports:
            self.reports(node, idle)
        await self.passes.once()
