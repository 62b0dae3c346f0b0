# SPDX-License-Identifier: Apache-2.0
"""A small ResourceClaim controller: claims from templates, and the end of reservations.

A pod gets a claim of its own for each template that it names. A reservation ends with its pod; the last one takes the
allocation along, and then nothing protects the claim from being deleted. Claims that were made for a pod go when it has
run. Not simulated: claims of PodGroups, and pods without a node. Source:
k8s.io/kubernetes/pkg/controller/resourceclaim/controller.go.
"""

from __future__ import annotations

from collections import defaultdict

from dovetail.apiserver.changes import StoreChange
from dovetail.apiserver.claims import names_of
from dovetail.apiserver.deletions import Deletions, finalizers_of
from dovetail.apiserver.objects import (
    Key,
    Object,
    key_of,
    object_at,
    objects_at,
    text_at,
    value_at,
    with_metadata,
    with_status,
)
from dovetail.apiserver.pods import is_finished
from dovetail.apiserver.resources import BUILT_IN
from dovetail.apiserver.store import Store
from dovetail.apiserver.writes import Writes

FINALIZER = "resource.kubernetes.io/delete-protection"
POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
_CLAIMS = next(resource for resource in BUILT_IN if resource.plural == "resourceclaims")
_TEMPLATES = "resourceclaimtemplates.resource.k8s.io"


class ClaimController:
    """The claims of one store."""

    def __init__(self, store: Store, writes: Writes, deletions: Deletions) -> None:
        self._store = store
        self._writes = writes
        self._deletions = deletions
        self._pods: dict[Key, None] = {}
        self._claims: dict[Key, None] = {}
        self._waiting: defaultdict[Key, set[Key]] = defaultdict(set)
        """Template -> pods that wait for it."""

    def note_pod(self, change: StoreChange) -> None:
        pod = change.object
        if not names_of(pod):
            return
        self._pods[key_of(pod)] = None
        if change.removed or is_finished(pod):
            namespace = text_at(pod, "metadata.namespace")
            self._claims |= {(namespace, name): None for name in names_of(pod) if name}

    def note_claim(self, change: StoreChange) -> None:
        self._claims[key_of(change.object)] = None

    def note_template(self, change: StoreChange) -> None:
        self._pods |= dict.fromkeys(sorted(self._waiting.pop(key_of(change.object), ())))

    def step(self) -> None:
        """Handles what was noted."""
        pods, self._pods = self._pods, {}
        for key in pods:
            pod = self._store.get("pods", *key)
            if pod is not None and not is_finished(pod) and not text_at(pod, "metadata.deletionTimestamp"):
                self._make_claims(pod)
        claims, self._claims = self._claims, {}
        for key in claims:
            claim = self._store.get(_CLAIMS.collection, *key)
            if claim is not None:
                self._end_reservations(claim)

    def _make_claims(self, pod: Object) -> None:
        namespace = text_at(pod, "metadata.namespace")
        statuses = objects_at(pod, "status.resourceClaimStatuses")
        made = {text_at(status, "name") for status in statuses}
        new = []
        for named in objects_at(pod, "spec.resourceClaims"):
            name, template_name = text_at(named, "name"), text_at(named, "resourceClaimTemplateName")
            if not template_name or name in made:
                continue
            template = self._store.get(_TEMPLATES, namespace, template_name)
            if template is None:
                self._waiting[namespace, template_name].add(key_of(pod))
                continue
            claim = self._writes.create(_CLAIMS, namespace, _claim(pod, name, template))
            new.append({"name": name, "resourceClaimName": text_at(claim, "metadata.name")})
        if new:
            self._store.put_raw("pods", with_status(pod, resourceClaimStatuses=[*statuses, *new]))

    def _end_reservations(self, claim: Object) -> None:
        consumers = objects_at(claim, "status.reservedFor")
        valid = [consumer for consumer in consumers if not self._ended(claim, consumer)]
        deleting = bool(text_at(claim, "metadata.deletionTimestamp"))
        finalizers = finalizers_of(claim)
        if not valid and FINALIZER in finalizers and (consumers or deleting):
            claim = with_status(claim, reservedFor=None, allocation=None, devices=None)
            kept = [name for name in finalizers if name != FINALIZER]
            claim = with_metadata(claim, finalizers=kept or None)
            if deleting and not kept:
                self._deletions.remove(_CLAIMS, key_of(claim))
                return
            self._deletions.commit(_CLAIMS, claim)
        elif len(valid) < len(consumers):
            self._deletions.commit(_CLAIMS, with_status(claim, reservedFor=valid or None))
        if not deleting and any(self._has_run(claim, o) for o in objects_at(claim, "metadata.ownerReferences")):
            self._deletions.delete(_CLAIMS, key_of(claim), {})

    def _ended(self, claim: Object, consumer: Object) -> bool:
        if consumer.get("resource") != "pods":
            return False
        pod = self._store.get("pods", text_at(claim, "metadata.namespace"), text_at(consumer, "name"))
        return pod is None or value_at(pod, "metadata.uid") != consumer.get("uid") or is_finished(pod)

    def _has_run(self, claim: Object, owner: Object) -> bool:
        pod = self._store.get("pods", text_at(claim, "metadata.namespace"), text_at(owner, "name"))
        return owner.get("kind") == "Pod" and value_at(pod, "metadata.uid") == owner.get("uid") and is_finished(pod)


def _claim(pod: Object, name: str, template: Object) -> Object:
    owner = {
        "apiVersion": "v1", "kind": "Pod", "name": text_at(pod, "metadata.name"), "uid": text_at(pod, "metadata.uid"),
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    metadata = {
        "generateName": f"{text_at(pod, 'metadata.name')}-{name}-",
        "labels": object_at(template, "spec.metadata.labels"),
        "annotations": object_at(template, "spec.metadata.annotations") | {POD_CLAIM_NAME: name},
        "ownerReferences": [owner],
    }
    return {"metadata": metadata, "spec": object_at(template, "spec.spec")}
