# SPDX-License-Identifier: Apache-2.0
"""What keeps the objects of manifests from being used as they are written: invalid values, and names that nothing has.

Rules: an object that is named and not there is unknown, not wrong: it is reported once, with the first object that
names it, and the pods that need it wait.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping

from dovetail.core import events as ev
from dovetail.core.model import Gang, Node, Pod, Problem
from dovetail.core.queues.types import DEFAULT_QUEUE, QUEUE_LABEL, Queue
from dovetail.kube.api.resources import QUEUES, RESOURCE_CLAIMS
from dovetail.kube.manifests.defaults import NAMESPACE, Key, Object, key_of
from dovetail.kube.manifests.documents import Document
from dovetail.kube.translate.pods import UNMADE
from dovetail.kube.translate.translator import Translator


class ObjectChecks:
    """Of these objects and their events, which `feed` made. `owner_of` has by gang the owner that declares it. Unless
    the objects are the `whole` cluster, they may name others. `report` takes a document, the shown name of the object,
    a field, and the message."""

    def __init__(
        self,
        objects: Mapping[Key, Object],
        feed: Translator,
        owner_of: Mapping[str, Object],
        report: Callable[[Document, str, str, str], None],
        *,
        whole: bool,
    ) -> None:
        self._objects = objects
        self._feed = feed
        self._owner_of = owner_of
        self._report = report
        self._whole = whole
        self._missing: dict[tuple[str, str], list[Object]] = {}

    @property
    def missing(self) -> int:
        """The objects that are named and not there."""
        return len({name for _, name in self._missing})

    def check(self, events: Iterable[ev.Event]) -> None:
        """Report what keeps nodes, gangs and waiting pods from being used as they are written, and unused facts about
        wiring."""
        nodes: dict[str, Node] = {}
        pods: dict[str, Pod] = {}
        gangs: dict[str, Gang] = {}
        namespaces: set[str] = set()
        volumes: set[str] = set()
        queues: dict[str, Queue] = {DEFAULT_QUEUE: Queue(DEFAULT_QUEUE)}
        claims: set[str] = set()
        for event in events:
            match event:
                case ev.NodeChanged(node):
                    nodes[node.name] = node
                case ev.PodChanged(pod):
                    pods[pod.uid] = pod
                case ev.GangChanged(gang):
                    gangs[gang.id] = gang
                case ev.QueueChanged(queue):
                    queues[queue.name] = queue
                case ev.NamespaceChanged(namespace):
                    namespaces.add(namespace.name)
                case ev.VolumeClaimChanged(volume):
                    volumes.add(f"PersistentVolumeClaim {volume.key}")
                case ev.ClaimChanged(claim):
                    claims.add(claim.key)
                    self._keeps(self._objects[key_of(RESOURCE_CLAIMS, claim.namespace, claim.name)], claim.problem)
        of_uid = {obj.wire.metadata.uid: obj for obj in self._objects.values()}
        for node in nodes.values():
            self._keeps(self._objects["", "Node", "", node.name], node.problem)
        for queue in queues.values():
            obj = self._objects.get(key_of(QUEUES, "", queue.name))
            if obj is not None:
                self._keeps(obj, queue.problem)
                self._exists(obj, "spec.parent", queue.parent, queues)
        for pod in pods.values():
            obj = of_uid[pod.uid]
            if pod.node:
                self._exists(obj, "spec.nodeName", pod.node, nodes)
                continue
            self._keeps(obj, pod.problem)
            self._exists(obj, "", pod.gang, gangs)
            own = QUEUE_LABEL in obj.wire.metadata.labels
            self._exists(obj, f"metadata.labels[{QUEUE_LABEL}]" if own else "", pod.queue, queues)
            if len(queues) > 1 and not pod.queue and pod.namespace != NAMESPACE:
                self._exists(obj, "metadata.namespace", pod.namespace, namespaces)
            for name in pod.claims:
                self._exists(obj, "spec.volumes", f"PersistentVolumeClaim {pod.namespace}/{name}", volumes)
            self._claims_exist(obj, pod, claims)
        by_name = {shown_key(key): obj for key, obj in self._objects.items()}
        for finding in (one for found in self._feed.findings.values() for one in found):
            self._keeps(by_name[f"{finding.kind} {finding.name}"], finding.problem)
        first_of = {pod.gang: of_uid[pod.uid] for pod in reversed(pods.values())}
        for gang in gangs.values():
            declaring = self._declaring(gang.id) or first_of.get(gang.id)
            if declaring is not None:
                self._keeps(declaring, gang.problem)
                self._exists(declaring, "", gang.parent, gangs)
        self._report_missing()

    def _exists(self, obj: Object, field: str, name: str, known: Container[str]) -> None:
        if self._whole and name and name not in known:
            self._missing.setdefault((field, name), []).append(obj)

    def _report_missing(self) -> None:
        for (field, name), (first, *others) in self._missing.items():
            more = f"; {len(others)} more name it" if others else ""
            message = f"'{name}' is not in the input{more}"
            self._report(first.document, shown_key(first.key), field, message)

    def _claims_exist(self, obj: Object, pod: Pod, claims: Container[str]) -> None:
        templates = {c.name: c.resource_claim_template_name for c in obj.wire.spec.resource_claims}
        for key in pod.device_claims:
            name = key.partition("/")[2]
            if name.startswith(UNMADE):
                name = f"ResourceClaimTemplate {templates[name.removeprefix(UNMADE)]}"
            self._exists(obj, "spec.resourceClaims", name, (name,) if key in claims else ())

    def _declaring(self, gang_id: str) -> Object | None:
        """The PodGroup of a gang, in whatever dialect, or its owner."""
        ref = self._feed.gangs.ref(gang_id)
        if ref is None:
            return self._owner_of.get(gang_id)
        resource = ref.dialect.resources[0]
        return self._objects[resource.group, resource.kind, ref.namespace, ref.name]

    def _keeps(self, obj: Object, problem: Problem | None) -> None:
        if problem is not None:
            shown = shown_key(obj.key)
            message = f"{problem.value!r}: {problem.rule}" if problem.value else problem.rule
            self._report(obj.document, shown, problem.field if problem.field != shown else "", message)


def shown_key(key: Key) -> str:
    """Kind, namespace and name."""
    _, kind, namespace, name = key
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"
