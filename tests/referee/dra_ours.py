# SPDX-License-Identifier: Apache-2.0
"""Our side of a case of claims: its objects through the tables and translations of the live scheduler into the core,
and what the core grants as the live scheduler would write it into the claims."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.dra.types import Allocation
from dovetail.core.event_handlers import apply
from dovetail.core.state import State
from dovetail.kube.api import resources as kinds
from dovetail.kube.api.decoding import Reader
from dovetail.kube.api.discovery import Served
from dovetail.kube.api.reflector import Change
from dovetail.kube.api.resources import Resource
from dovetail.kube.translate.sources import sources
from dovetail.kube.translate.translator import Translator
from dovetail.scheduler import wire_claims
from tests.referee.dra_devices import Manifest
from tests.referee.manifests import SCHEDULER

OBJECTS: dict[Resource, str] = {
    kinds.NODES: "nodes",
    kinds.RESOURCE_SLICES: "slices",
    kinds.DEVICE_CLASSES: "classes",
    kinds.RESOURCE_CLAIMS: "claims",
    kinds.PODS: "pods",
}

_SERVED = Served(frozenset((kind.api_version, kind.plural) for kind in OBJECTS))
_reader = lru_cache(Reader)


class Verdict(Struct):
    """What the core answers of the pod on the node. `error` is what would keep it from every node, "" for nothing, and
    `detail` why it does not fit; `allocations` are what would be written into each claim where it does."""

    fits: bool
    error: str = ""
    detail: str = ""
    allocations: tuple[Manifest, ...] = ()


class World:
    """What the live scheduler knows: nothing at first."""

    def __init__(self) -> None:
        self._feed, self._state = Translator(SCHEDULER), State()
        self._sources = [source for source in sources(self._feed, _SERVED) if source.resource in OBJECTS]
        self._objects: dict[str, dict[str, Any]] = {field: {} for field in OBJECTS.values()}
        self._pod = ""

    def become(self, asked: Manifest) -> None:
        """Hear of all that is not yet so."""
        self._pod = "-".join(claim["metadata"]["uid"] for claim in asked["claims"])
        reported = {
            "nodes": [asked["node"]],
            "slices": asked["slices"],
            "classes": asked["classes"],
            "claims": [*asked["allocated"], *asked["claims"]],
            "pods": [self._pod_of([claim["metadata"]["name"] for claim in asked["claims"]])],
        }
        for source in self._sources:
            field = OBJECTS[source.resource]
            body = msgspec.json.encode({"metadata": {}, "items": reported[field]})
            page, bad = _reader(source.resource, source.kind).page(body)
            assert not bad, bad
            before, now = self._objects[field], {item.metadata.name: item for item in page.items or ()}
            gone = {
                name for name, old in before.items() if name not in now or old.metadata.uid != now[name].metadata.uid
            }
            changes = [Change("deleted", before[name]) for name in sorted(gone)]
            for name, item in now.items():
                if name in gone or name not in before:
                    changes.append(Change("added", item))
                elif item != before[name]:
                    changes.append(Change("modified", item))
            self._objects[field] = now
            for event in source.translate(changes):
                apply(self._state, event)

    def _pod_of(self, claims: list[str]) -> Manifest:
        return {
            "metadata": {"name": "new", "namespace": "default", "uid": self._pod},
            "spec": {
                "schedulerName": SCHEDULER,
                "containers": [{"name": "main", "image": "i"}],
                "resourceClaims": [{"name": name, "resourceClaimName": name} for name in claims],
            },
            "status": {"phase": "Pending"},
        }

    def verdict(self) -> Verdict:
        cluster, pod = self._state.cluster, self._state.workloads.pods[self._pod]
        refusal = cluster.claims.refusal(pod)
        if refusal is not None:
            return Verdict(False, refusal.detail, refusal.detail)
        [name] = self._objects["nodes"]
        slot, shape = cluster.nodes.slots[name], cluster.shape_of(pod)
        answer = cluster.claims.answers.of(slot, shape)
        if not answer.fits:
            return Verdict(False, answer.detail if answer.error else "", answer.detail)
        grants = {grant.claim: grant.allocation for grant in cluster.claims.hold(slot, pod, shape)}
        return Verdict(True, allocations=tuple(self._written(key, grants[key]) for key in pod.device_claims))

    def audit(self) -> list[str]:
        """The faults in the accounts of claims."""
        return self._state.cluster.claims.check()

    def _written(self, key: str, granted: Allocation) -> Manifest:
        claim, classes = self._objects["claims"][key.partition("/")[2]], self._objects["classes"]
        body = wire_claims.allocation(claim, granted, classes.get, 0)
        written: Manifest = msgspec.json.decode(msgspec.json.encode(body))
        return written


def ask(asked: Manifest) -> Verdict:
    world = World()
    world.become(asked)
    return world.verdict()
