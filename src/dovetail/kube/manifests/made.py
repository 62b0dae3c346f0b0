# SPDX-License-Identifier: Apache-2.0
"""What controllers make of workload objects: the terms of `workloads` and `serving_workloads`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from dovetail.kube.manifests.parts import MOST_PODS, ManifestPart, WrongField

Manifest = dict[str, Any]


class WorkloadObject(Struct, frozen=True):
    """An object of a kind that makes pods."""

    name: str
    namespace: str
    api_version: str
    kind: str
    whole: ManifestPart
    spec: ManifestPart

    @property
    def itself(self) -> tuple[str, str, str]:
        return self.api_version, self.kind, self.name

    def made(self, api_version: str, kind: str, name: str, spec: Mapping[str, Any], **metadata: Any) -> Manifest:
        """Another object of its namespace, which its controller makes."""
        meta = {"name": name, "namespace": self.namespace, **metadata}
        return {"apiVersion": api_version, "kind": kind, "metadata": meta, "spec": dict(spec)}


class MadePod(Struct, frozen=True):
    """`controller` is (apiVersion, kind, name). `spec` has fields that the template does not have."""

    name: str
    controller: tuple[str, str, str]
    labels: Mapping[str, str]
    annotations: Mapping[str, str] = {}
    spec: Mapping[str, Any] = {}


class MadePods(Struct, frozen=True):
    """`count` pods of one template; `field` is the path of their number."""

    field: str
    count: int
    template: ManifestPart
    pod: Callable[[int], MadePod]


Maker = Callable[[WorkloadObject], Iterator[MadePods | Manifest]]
"""Yields what a controller makes: pods, and other objects, those before the pods that need them."""


def at_most(field: str, count: int) -> int:
    """The count, of what makes pods. Raises WrongField where it is more than pods may be."""
    if count > MOST_PODS:
        raise WrongField(field, f"makes {count}, and {MOST_PODS} pods are the most that one input may make")
    return count
