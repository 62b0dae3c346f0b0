# SPDX-License-Identifier: Apache-2.0
"""A cluster read from manifests instead of an API server: the same table of kinds, the same events.

Rules
- Output of kubectl and hand-written manifests are read in the same way. What an API server would add is added:
  namespace `default`, a uid, and the defaults of `defaults`.
- Workloads that nobody has created yet get the pods that their controllers would make (see `workloads`). Kinds that a
  scheduler does not read are counted in `skipped`; so are finished pods, and owners that no pending pod needs.
- A value that cannot be used is a problem with its place, and so is one that keeps an object pending as it is written.
- Of an object that is there twice the first counts.
Not known here: admission by LimitRange, ResourceQuota or RuntimeClass, and validation. Fields that the scheduler does
not read may hold anything.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC
from typing import Any

import msgspec
from msgspec import Struct, structs

from dovetail.core import events as ev
from dovetail.kube.api.changes import Change
from dovetail.kube.api.gc_pause import gc_paused
from dovetail.kube.api.resources import CLAIM_TEMPLATES, Resource, Served
from dovetail.kube.gangs.dialects import DIALECTS
from dovetail.kube.gangs.owners import OWNER_KINDS
from dovetail.kube.manifests import defaults
from dovetail.kube.manifests.checks import ObjectChecks, shown_key
from dovetail.kube.manifests.defaults import NAMESPACE, PRIORITY_CLASSES, Key, Object, PriorityClass, of_kind
from dovetail.kube.manifests.documents import Document, ManifestError, read_documents
from dovetail.kube.manifests.record import SnapshotRecord, is_record, record_of
from dovetail.kube.manifests.workloads import expanded
from dovetail.kube.objects.base import ObjectMeta, Wire
from dovetail.kube.objects.claims import ResourceClaimTemplate
from dovetail.kube.objects.pods import Pod as PodObject
from dovetail.kube.translate import pod_status
from dovetail.kube.translate.sources import sources
from dovetail.kube.translate.translator import Translator

_OURS = "dovetail"
_AT = re.compile(r"(.*) - at `\$\.?(.*)`", re.DOTALL)

_READ_BY_OTHERS = {
    "": "ConfigMap Endpoints Event LimitRange PodTemplate ReplicationController ResourceQuota Secret Service "
    "ServiceAccount",
    "admissionregistration.k8s.io": "MutatingWebhookConfiguration ValidatingWebhookConfiguration "
    "MutatingAdmissionPolicy MutatingAdmissionPolicyBinding ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding",
    "apiextensions.k8s.io": "CustomResourceDefinition",
    "apiregistration.k8s.io": "APIService",
    "apps": "ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet",
    "autoscaling": "HorizontalPodAutoscaler",
    "batch": "CronJob",
    "batch.volcano.sh": "Job",
    "coordination.k8s.io": "Lease",
    "discovery.k8s.io": "EndpointSlice",
    "events.k8s.io": "Event",
    "flowcontrol.apiserver.k8s.io": "FlowSchema PriorityLevelConfiguration",
    "networking.k8s.io": "Ingress IngressClass NetworkPolicy",
    "node.k8s.io": "RuntimeClass",
    "rbac.authorization.k8s.io": "ClusterRole ClusterRoleBinding Role RoleBinding",
    "scheduling.k8s.io": "Workload",
    "storage.k8s.io": "CSIDriver CSIStorageCapacity VolumeAttachment",
}
_UNUSED = {(group, kind) for group, names in _READ_BY_OTHERS.items() for kind in names.split()}


class _Named(Wire, frozen=True):
    """An object of any kind, as far as it is needed to distinguish it."""

    metadata: ObjectMeta = ObjectMeta()


class _Kind(Struct, frozen=True):
    """`versions` that are read; none: whichever there is."""

    resource: Resource
    wire: type[Any]
    versions: tuple[str, ...] = ()


class ManifestProblem(Struct, frozen=True):
    """`line` is 0 where it is not known; then `path` leads to the object, as in `items[2]`."""

    file: str
    line: int
    path: str
    object: str
    field: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else f"{self.file} {self.path}".rstrip()
        return ": ".join(part for part in (place, self.object, self.field, self.message) if part)


class Manifests(Struct, frozen=True):
    """`events` are the whole cluster, nodes first. `skipped` counts by kind the objects that decide nothing here,
    `missing` the objects that are named and not there. `feed` has translated them. `record` is that of a snapshot."""

    events: tuple[ev.Event, ...]
    problems: tuple[ManifestProblem, ...]
    skipped: dict[str, int]
    feed: Translator
    missing: int = 0
    record: SnapshotRecord | None = None


def read(
    names: Sequence[str], scheduler_name: str | None = None, schedulers: dict[str, str] | None = None
) -> Manifests:
    """The cluster that files, folders and "-" (standard input) describe. Pods of every scheduler are scheduled, or only
    those that name `scheduler_name`; `schedulers` has the other names, by pod. Raises ManifestError where a file cannot
    be read, or nothing is there."""
    with gc_paused():
        documents = list(read_documents(names))
        if not documents:
            raise ManifestError("there is no Kubernetes object in it", ", ".join(names))
        expansion = expanded(documents, of_cluster=True)
        found = of_documents(expansion.documents, scheduler_name, schedulers)
    faults = (
        ManifestProblem(
            fault.document.file, fault.document.line(fault.field), fault.document.path, fault.workload, fault.field,
            f"{fault.message}: no pods are made",
        )
        for fault in expansion.faults
    )  # fmt: skip
    return structs.replace(found, problems=(*faults, *found.problems))


def of_documents(
    documents: Iterable[Document],
    scheduler_name: str | None = None,
    schedulers: dict[str, str] | None = None,
    *,
    whole: bool = True,
) -> Manifests:
    """The same from documents. Unless they are the `whole` cluster, they may name objects that are not among them."""
    documents = list(documents)
    # A cluster has the records that it has; in manifests people write what a record would have.
    recorded = scheduler_name is not None and any(map(is_record, documents))
    reading = _Reading(scheduler_name, schedulers, believes=not recorded)
    for document in documents:
        reading.take(document)
    events = reading.events()
    checks = reading.checks(whole)
    checks.check(events)
    skipped = dict(sorted(reading.skipped.items()))
    problems = tuple(dict.fromkeys(reading.problems))
    return Manifests(tuple(events), problems, skipped, reading.feed, checks.missing, reading.record)


class _Reading:
    def __init__(self, scheduler_name: str | None, schedulers: dict[str, str] | None, *, believes: bool) -> None:
        self.problems: list[ManifestProblem] = []
        self.skipped: Counter[str] = Counter()
        self.record: SnapshotRecord | None = None
        self._all_ours = scheduler_name is None
        self.feed = Translator(scheduler_name or _OURS, believes=believes)
        self.feed.schedulers = schedulers
        self.feed.leases.follows = False
        self._sources = tuple(sources(self.feed, Served(frozenset())))
        versions = {dialect.kind: tuple(r.version for r in dialect.resources) for dialect in DIALECTS}
        known = [
            *(_Kind(owner.resource, _Named) for owner in OWNER_KINDS),
            _Kind(PRIORITY_CLASSES, PriorityClass, (PRIORITY_CLASSES.version,)),
            _Kind(CLAIM_TEMPLATES, ResourceClaimTemplate, (CLAIM_TEMPLATES.version,)),
            *(_Kind(s.resource, s.kind, versions.get(s.kind, (s.resource.version,))) for s in self._sources),
        ]
        self._kinds = {(kind.resource.group, kind.resource.kind): kind for kind in known}
        self._objects: dict[Key, Object] = {}
        self._uids: set[str] = set()
        self._owner_of: dict[str, Object] = {}

    def take(self, document: Document) -> None:
        """Add one document, or report why it cannot be used. Raises ManifestError."""
        if is_record(document):
            self.record = record_of(document)
            return
        value = document.value if isinstance(document.value, dict) else {}
        api_version, kind = value.get("apiVersion"), value.get("kind")
        if not isinstance(api_version, str) or not isinstance(kind, str):
            self._problem(document, "", "", "is no Kubernetes object: it needs apiVersion and kind")
            return
        group, _, version = api_version.rpartition("/")
        if (group, kind) in _UNUSED:
            self.skipped[kind] += 1
            return
        known = self._kinds.get((group, kind))
        if known is None:
            self._problem(
                document, _named(value), "apiVersion", f"'{api_version}' has no {kind} that is known here: not used"
            )
        elif known.versions and version not in known.versions:
            rule = f"of {kind} only {' and '.join(known.versions)} can be read: not used"
            self._problem(document, _named(value), "apiVersion", f"'{api_version}': {rule}")
        else:
            obj = self._decode(document, known)
            if obj is not None:
                self._objects[obj.key] = obj

    def _decode(self, document: Document, known: _Kind) -> Object | None:
        resource, kind = known.resource, known.resource.kind
        value = document.value
        try:
            wire = msgspec.convert(defaults.with_allocatable(value) if kind == "Node" else value, known.wire)
        except msgspec.ValidationError as error:
            match = _AT.fullmatch(str(error))
            message, field = match.groups() if match else (str(error), "")
            self._problem(document, _named(value), field, f"{message}: not used")
            return None
        meta: ObjectMeta = wire.metadata
        name, prefix = meta.name, value.get("metadata", {}).get("generateName")
        if not name and prefix and isinstance(prefix, str):
            name = f"{prefix}{len(self._objects)}"
        key = (resource.group, kind, (meta.namespace or NAMESPACE) if resource.namespaced else "", name)
        if not name:
            self._problem(document, kind, "metadata.name", "is missing: not used")
            return None
        if key in self._objects:
            first = self._objects[key].document
            where = f"{first.file}:{first.line()}" if first.line() else f"{first.file} {first.path}".rstrip()
            self._problem(document, shown_key(key), "", f"is there twice, first in {where}: not used")
            return None
        # A uid that is there already was copied along with the rest of another object.
        uid = meta.uid if meta.uid and meta.uid not in self._uids else "/".join(part for part in key if part)
        self._uids.add(uid)
        created = meta.creation_timestamp
        if created is not None and created.tzinfo is None:
            created = created.replace(tzinfo=UTC)
        meta = structs.replace(meta, name=name, namespace=key[2], uid=uid, creation_timestamp=created)
        return Object(document, key, structs.replace(wire, metadata=meta))

    def events(self) -> list[ev.Event]:
        """The events of everything, in the order of the table, owners last."""
        defaults.stamp(self._objects)
        self._drop_finished()
        for obj, field, message in defaults.complete(self._objects, _OURS if self._all_ours else None):
            self._problem(obj.document, shown_key(obj.key), field, message)
        events: list[ev.Event] = []
        for source in self._sources:
            changes = [Change("added", obj.wire) for obj in of_kind(self._objects, source.resource)]
            if changes:
                events += source.translate(changes)
        unused = {obj.key for owner in OWNER_KINDS for obj in of_kind(self._objects, owner.resource)}
        for ref in self.feed.gangs.wanted_owners():
            key = (ref.resource.group, ref.resource.kind, ref.namespace, ref.name)
            owner = self._objects.get(key)
            unused.discard(key)
            declared = self.feed.gangs.owner(ref, owner.document.value if owner is not None else None)
            if owner is not None:
                self._owner_of.update((event.gang.id, owner) for event in declared if isinstance(event, ev.GangChanged))
            events += declared
        self.skipped.update(kind for _, kind, _, _ in unused)
        return events

    def _drop_finished(self) -> None:
        """Finished pods hold nothing, and their run times are of another time than that of the files."""
        over = []
        for obj in list(self._objects.values()):
            if isinstance(obj.wire, PodObject) and pod_status.is_finished(obj.wire):
                self.skipped["finished Pod"] += 1
                over.append(obj.wire)
                del self._objects[obj.key]
        self.feed.over = over

    def checks(self, whole: bool) -> ObjectChecks:
        return ObjectChecks(self._objects, self.feed, self._owner_of, self._problem, whole=whole)

    def _problem(self, document: Document, shown: str, field: str, message: str) -> None:
        field = ".".join(part for part in (document.template, field) if part)
        shown = document.maker or shown
        line = document.line(field)
        self.problems.append(ManifestProblem(document.file, line, document.path, shown, field, message))


def _named(value: dict[str, Any]) -> str:
    """Kind and name of an object, as far as they can be read."""
    meta = value.get("metadata")
    named = {"namespace": "", "name": "", **meta} if isinstance(meta, dict) else {"namespace": "", "name": ""}
    return shown_key(("", str(value["kind"]), str(named["namespace"]), str(named["name"]))).rstrip()
