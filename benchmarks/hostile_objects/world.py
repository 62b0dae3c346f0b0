# SPDX-License-Identifier: Apache-2.0
"""A cluster of ordinary nodes and pods, from which hostile objects are watched."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from benchmarks.hostile_objects.objects import BY_USER, Document, pod
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind
from dovetail.core.events import Event
from dovetail.core.state import State
from dovetail.kube.api import resources as kinds
from dovetail.kube.api.decoding import Reader
from dovetail.kube.api.decoding import WatchEvent as Line
from dovetail.kube.api.errors import BadReply
from dovetail.kube.api.reflector import Change, whole
from dovetail.kube.gangs.dialects import COMPOSITE, COSCHEDULING, NATIVE, VOLCANO, Dialect
from dovetail.kube.objects import base, claims, queues, storage
from dovetail.kube.objects.pods import Pod
from dovetail.kube.translate.sources import claim_outline, outline, owner_document
from dovetail.kube.translate.translator import Translator

NODES, ORDINARY = 64, 200
_KEPT: dict[str, Callable[[Any], Any]] = {"pods": outline, "resource_claims": claim_outline}


class World:
    """A cluster of ordinary nodes and pods that processes further watch lines."""

    def __init__(self) -> None:
        self.feed = Translator()
        self.state = State()
        self.known: dict[tuple[str, str], object] = {}
        """The objects that the reflectors cache."""
        self._now_ms = 1_800_000_000_000
        records = self.feed.records
        rows: dict[str, tuple[kinds.Resource, type[Any], Callable[[Any], list[Event]]]] = {
            "pods": (kinds.PODS, Pod, self.feed.pods),
            "nodes": (kinds.NODES, base.Node, self.feed.node_records.nodes),
            "claims": (kinds.PVCS, storage.PersistentVolumeClaim, records.claims),
            "volumes": (kinds.PVS, storage.PersistentVolume, records.volumes),
            "classes": (kinds.STORAGE_CLASSES, storage.StorageClass, records.storage_classes),
            "resource_claims": (kinds.RESOURCE_CLAIMS, claims.ResourceClaim, records.resource_claims),
            "device_classes": (kinds.DEVICE_CLASSES, claims.DeviceClass, records.device_classes),
            "budgets": (kinds.PDBS, base.PodDisruptionBudget, records.budgets),
            "queues": (kinds.QUEUES, queues.Queue, records.queues),
        }
        dialects: dict[str, Dialect[Any]] = {
            "native": NATIVE, "composite": COMPOSITE, "coscheduling": COSCHEDULING, "volcano": VOLCANO,
        }  # fmt: skip
        for name, dialect in dialects.items():
            rows[name] = dialect.resources[0], dialect.kind, partial(self.feed.gangs.pod_groups, dialect)
        self._rows = {name: (Reader(where, kind), feed) for name, (where, kind, feed) in rows.items()}
        for n in range(NODES):
            amounts = {"cpu": "128", "memory": "2Ti", "pods": 250, "nvidia.com/gpu": 8}
            labels = {"kubernetes.io/hostname": f"node-{n}", "topology.kubernetes.io/zone": f"z{n % 4}", "rank": str(n)}
            self.send(
                "nodes", {"metadata": {"name": f"node-{n}", "labels": labels}, "status": {"allocatable": amounts}}
            )
        for tag in range(8):
            policy = {"gang": {"minGroupCount": 1_000_000}}
            self.send("composite", {
                "metadata": {"name": f"root-r{tag}", "namespace": "tenant"}, "spec": {"schedulingPolicy": policy},
            })  # fmt: skip
        self.send("queues", {"metadata": {"name": BY_USER, "uid": BY_USER}, "spec": {"byUser": True}})
        self.send("device_classes", {"metadata": {"name": "gpu"}, "spec": {}})
        self.send("classes", {
            "metadata": {"name": "fast"}, "provisioner": "x.example", "volumeBindingMode": "WaitForFirstConsumer",
        })  # fmt: skip
        for n in range(ORDINARY):
            self.send("pods", pod(f"ordinary-{n}", node=f"node-{n % NODES}"))
        self.run()

    def send(self, source: str, document: Document, kind: str = "ADDED") -> None:
        self.read(source, msgspec.json.encode({"type": kind, "object": document}))

    def read(self, source: str, line: bytes) -> None:
        """Process a watch line, or an object that pods name as their owner."""
        if source == "owner":
            with suppress(BadReply):
                read = owner_document(line, "/")
                gangs = self.feed.gangs
                self.run([event for ref in gangs.wanted_owners() for event in gangs.owner(ref, read)])
            return
        reader, feed = self._rows[source]
        event = reader.line(line)
        if not isinstance(event, Line):
            # The object is invalid and is reported.
            return
        meta = event.object.metadata
        key = source, f"{meta.namespace}/{meta.name}"
        if event.type == "DELETED":
            self.known.pop(key, None)
        else:
            self.known[key] = _KEPT.get(source, whole)(event.object)
        self.run(feed([Change("deleted" if event.type == "DELETED" else "added", event.object)]))

    def run(self, events: list[Event] | None = None) -> int:
        """Run steps until no attempt remains. Returns the number of bound pods."""
        self._now_ms += 1_000
        decisions = step(self.state, events or [], self._now_ms)
        while self.state.busy:
            decisions += step(self.state, [], self._now_ms)
        return sum(isinstance(one, Bind) for one in decisions)

    def ordinary_ms(self, tag: str) -> float:
        """CPU time of an ordinary pod that is added, bound and removed."""
        took = []
        for n in range(20):
            document = pod(f"probe-{tag}-{n}", metadata={"namespace": "other", "labels": {"app": "serve", "n": str(n)}})
            started = time.process_time()
            self.send("pods", document)
            took.append(time.process_time() - started)
            self.send("pods", document, "DELETED")
        return 1_000 * sorted(took)[len(took) // 2]
