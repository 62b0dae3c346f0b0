# SPDX-License-Identifier: Apache-2.0
"""A playground with GPUStacks, and operators on it whose objects a test chooses."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from msgspec import convert

from dovetail.core.model import Problem
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.objects.stack import GPUStack
from dovetail.operator import manifest_objects
from dovetail.operator.found import Found
from dovetail.operator.rendering.stack_objects import AGENT_NAMESPACE, MANAGED_BY, PART_OF, STACK_LABEL, Desired
from dovetail.operator.rollout.record import revision_id
from dovetail.operator.run import OperatorOptions, PartsOf, Render, parts, run
from dovetail.playground import Playground
from tests.patience import PATIENCE_S

Document = dict[str, Any]
STACKS = "gpustacks.dovetail.dev"


def stamped(stack: GPUStack, *documents: Document) -> Desired:
    """The documents with what marks them as made for the stack."""
    labels = dict((MANAGED_BY, PART_OF)) | {STACK_LABEL: stack.metadata.name}
    owner = {
        "apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUStack", "name": stack.metadata.name,
        "uid": stack.metadata.uid, "controller": True,
    }  # fmt: skip
    marks = {"labels": labels, "ownerReferences": [owner]}
    return Desired(tuple(one | {"metadata": one["metadata"] | marks} for one in documents))


def workload(kind: str, name: str, image: str, **spec: Any) -> Document:
    """A Deployment or DaemonSet in the namespace of the agents."""
    labels = {"app.kubernetes.io/name": name}
    container = {
        "name": "main", "image": image, "args": ["run"], "ports": [{"name": "metrics", "containerPort": 9400}],
        "resources": {"requests": {"cpu": "1000m", "memory": "64Mi"}},
    }  # fmt: skip
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    return {
        "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": AGENT_NAMESPACE},
        "spec": {"selector": {"matchLabels": labels}, "template": template, **spec},
    }  # fmt: skip


_TIMES = re.compile(r'"(started|canary)_ms":\d+,?')
"""In the record of a rollout."""
_VARYING = {"started", "uid", "resourceVersion", "creationTimestamp", "time", "lastTransitionTime", "managedFields"}


def comparable(value: Any) -> Any:
    if isinstance(value, str):
        return _TIMES.sub("", value) if '_ms":' in value else value
    if isinstance(value, dict):
        return {name: comparable(one) for name, one in value.items() if name not in _VARYING}
    return [comparable(one) for one in value] if isinstance(value, list) else value


def small(stack: GPUStack, _found: Found, image: str) -> Desired:
    """Some objects of every sort, which depend on the spec: the image, the pools, the fabric, metrics."""
    image = f"{stack.spec.image.repository}:{stack.spec.image.tag}" if stack.spec.image.repository else image
    if stack.spec.driver.mode == "Container" and not stack.spec.driver.image:
        return Desired(problems=(Problem("spec.driver.image", "", "is required in mode Container"),))
    pools = [pool.name for pool in stack.spec.agent.pools] or ["default"]
    config = {"fabric": " ".join(stack.spec.scheduler.fabric)}
    return stamped(
        stack,
        {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "dovetail-agent"},
            "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}],
        },
        {
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "config", "namespace": AGENT_NAMESPACE},
            "data": {key: value for key, value in config.items() if value},
        },
        workload("Deployment", "dovetail-scheduler", image, replicas=stack.spec.scheduler.replicas),
        *(
            workload(
                "DaemonSet", "dovetail-agent" + ("" if pool == "default" else f"-{pool}"), image,
                updateStrategy={"type": "OnDelete"},
            )
            for pool in pools
        ),
    )  # fmt: skip


class World:
    """One playground. `operator` runs on it meanwhile."""

    def __init__(self, playground: Playground, every_s: float = 0.01) -> None:
        """`every_s`: how often `until` looks."""
        self.playground = playground
        self._every_s = every_s
        self._contents: tuple[int, dict[str, Document]] = (-1, {})
        self.running: list[asyncio.Task[None]] = []
        for definition in manifest_objects.definitions():
            playground.put(definition)
        for name in ("dovetail-system", AGENT_NAMESPACE):
            playground.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    def stack(self, name: str = "gpus", **spec: Any) -> Document:
        """Makes a GPUStack, or changes its spec."""
        document = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUStack", "metadata": {"name": name}, "spec": spec}
        old = self.playground.store.get(STACKS, "", name)
        if old is not None:
            document["metadata"] = old["metadata"]
        return self.playground.put(document)

    def get(self, collection: str, namespace: str, name: str) -> Document | None:
        return self.playground.store.get(collection, namespace, name)

    def condition(self, kind: str, name: str = "gpus") -> tuple[str, str, str]:
        """Status, reason and message of a condition of a stack; all "" before it is written."""
        stack = self.get(STACKS, "", name) or {}
        for one in stack.get("status", {}).get("conditions", ()):
            if one["type"] == kind and one["observedGeneration"] == stack["metadata"]["generation"]:
                return one["status"], one["reason"], one.get("message", "")
        return "", "", ""

    async def until(self, condition: Callable[[], object], within_s: float = PATIENCE_S) -> None:
        """Wait for what nothing announces."""
        async with asyncio.timeout(within_s):
            while not condition():
                for task in self.running:
                    if task.done():
                        task.result()
                await asyncio.sleep(self._every_s)

    async def applied(self, name: str = "gpus", reason: str = "Applied") -> None:
        await self.until(lambda: self.condition("Applied", name)[1] == reason)

    async def quiet(self, for_s: float = 0.15) -> None:
        """Wait until nothing has been written for so long."""
        version, since_s = -1, time.monotonic()
        async with asyncio.timeout(PATIENCE_S):
            while time.monotonic() - since_s < for_s:
                if self.playground.store.version != version:
                    version, since_s = self.playground.store.version, time.monotonic()
                await asyncio.sleep(0.01)

    def rolled_out(self, name: str = "gpus") -> bool:
        """Whether a stack has come to all of its nodes."""
        stack = convert(self.get(STACKS, "", name), GPUStack)
        rollout = stack.status.rollout
        return rollout is not None and (rollout.revision, rollout.phase) == (revision_id(stack.spec), "Done")

    def contents(self) -> dict[str, Document]:
        """All objects without what differs from run to run. Of pods only their owners and images are left."""
        store = self.playground.store
        if store.version != self._contents[0]:
            self._contents = store.version, self._contents_now()
        return self._contents[1]

    def _contents_now(self) -> dict[str, Document]:
        found: dict[str, Document] = {}
        for collection in self.playground.store.collections:
            for key, one in collection.objects.items():
                if collection.name == "pods":
                    owner, image = one["metadata"]["ownerReferences"][0]["name"], one["spec"]["containers"][0]["image"]
                    found[f"pod of {owner} on {one['spec'].get('nodeName')}"] = {"image": image}
                else:
                    found[f"{collection.name} {'/'.join(key)}"] = comparable(one)
        return found

    @contextlib.asynccontextmanager
    async def operator(
        self, render: Render = small, *, parts_of: PartsOf = parts, leader_elect: bool = False
    ) -> AsyncIterator[asyncio.Task[None]]:  # fmt: skip
        config = ClusterConfig(server=self.playground.url)
        options = OperatorOptions(leader_elect=leader_elect, listen="", image="dovetail:1")
        task = asyncio.create_task(run(config, options, render=render, parts_of=parts_of))
        self.running.append(task)
        try:
            yield task
        finally:
            self.running.remove(task)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
