# SPDX-License-Identifier: Apache-2.0
"""Small objects and cases written by hand: as little as kube-scheduler and Dovetail need."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from tests.referee.manifests import HOST, REQUIRED, SCHEDULER, Manifest

Case = dict[str, Any]
APP = {"app": "1"}


def node(name: str, labels: dict[str, str] | None = None, **spec: Any) -> Manifest:
    amounts = {"cpu": "4", "memory": "4Gi", "pods": "9"}
    return {
        "metadata": {"name": name, "labels": {HOST: name, **(labels or {})}},
        "spec": spec,
        "status": {"capacity": dict(amounts), "allocatable": dict(amounts)},
    }


def pod(name: str, on: str = "", nominated: str = "", labels: dict[str, str] | None = None, **spec: Any) -> Manifest:
    status = {"phase": "Pending"} | ({"nominatedNodeName": nominated} if nominated else {})
    return {
        "metadata": {"name": name, "namespace": "one", "uid": f"u-{name}", "labels": labels or {}},
        "spec": {"schedulerName": SCHEDULER, "containers": [container()]} | ({"nodeName": on} if on else {}) | spec,
        "status": status,
    }


def container(**parts: Any) -> Manifest:
    return {"name": "main", "image": "i"} | parts


def case(**objects: Any) -> Case:
    """One node n0 that takes the pod "new", unless the objects differ."""
    plain = {
        "id": "example",
        "question": "filter",
        "nodes": [node("n0")],
        "namespaces": [{"metadata": {"name": "one"}}],
        "storageClasses": [storage_class("slow", "kubernetes.io/no-provisioner"), storage_class("cloud", "csi.d")],
        "persistentVolumes": [],
        "persistentVolumeClaims": [],
        "csiNodes": [],
        "pods": [],
        "pod": pod("new"),
    }
    return deepcopy(plain | objects)


def storage_class(name: str, provisioner: str) -> Manifest:
    return {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}


def volume(name: str, claim: str = "", labels: dict[str, str] | None = None, mib: int = 1024, **spec: Any) -> Manifest:
    reference = {"claimRef": {"namespace": "one", "name": claim}} if claim else {}
    source = {} if "csi" in spec else {"nfs": {"server": "10.9.9.9", "path": "/"}}
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {
            "storageClassName": "slow", "capacity": {"storage": f"{mib}Mi"}, "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Filesystem",
        } | reference | source | spec,
        "status": {"phase": "Bound" if claim else "Available"},
    }  # fmt: skip


def claim(name: str, bound: str = "", phase: str = "", **spec: Any) -> Manifest:
    annotations = {"pv.kubernetes.io/bind-completed": "yes"} if bound else {}
    return {
        "metadata": {"name": name, "namespace": "one", "uid": f"u-{name}", "annotations": annotations},
        "spec": {
            "storageClassName": "slow", "resources": {"requests": {"storage": "1Gi"}},
            "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
        } | ({"volumeName": bound} if bound else {}) | spec,
        "status": {"phase": phase or ("Bound" if bound else "Pending")},
    }  # fmt: skip


def using(*claims: str) -> Manifest:
    return {"volumes": [{"name": f"v-{name}", "persistentVolumeClaim": {"claimName": name}} for name in claims]}


def scratch() -> Manifest:
    """An ephemeral volume, whose claim is called after pod and volume."""
    return {"volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]}


def csi(handle: str) -> Manifest:
    return {"csi": {"driver": "csi.d", "volumeHandle": handle}}


def csi_node(count: int) -> Manifest:
    return {
        "metadata": {"name": "n0"},
        "spec": {"drivers": [{"name": "csi.d", "nodeID": "n0", "allocatable": {"count": count}}]},
    }


def spread(**more: Any) -> list[Manifest]:
    selector = {"matchLabels": {"app": "1"}}
    plain = {"topologyKey": HOST, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
    return [plain | more]


def away_from(app: str) -> Manifest:
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": app}}}
    return {"podAntiAffinity": {REQUIRED: [term]}}


def port(ip: str) -> list[Manifest]:
    return [container(ports=[{"containerPort": 80, "hostPort": 80, "hostIP": ip, "protocol": "TCP"}])]


def reaching(**term: Any) -> Manifest:
    return {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}


def controlled(claimed: Manifest) -> Manifest:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "new", "uid": "u-new", "controller": True}
    claimed["metadata"]["ownerReferences"] = [owner]
    return claimed
