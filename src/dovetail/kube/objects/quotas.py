# SPDX-License-Identifier: Apache-2.0
"""ResourceQuota, as it is read. Rules of the structs: see `base`. Source: k8s.io/api core/v1."""

from __future__ import annotations

from msgspec import field

from dovetail.kube.objects.base import ObjectMeta, Quantities, Wire


class ScopedRequirement(Wire, frozen=True):
    """A requirement over the class of priority, for one scope."""

    scope_name: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class ScopeSelector(Wire, frozen=True):
    match_expressions: tuple[ScopedRequirement, ...] = ()


class ResourceQuotaSpec(Wire, frozen=True):
    hard: Quantities = field(default_factory=dict)
    scopes: tuple[str, ...] = ()
    scope_selector: ScopeSelector | None = None


class ResourceQuotaStatus(Wire, frozen=True):
    hard: Quantities | None = None
    used: Quantities = field(default_factory=dict)


class ResourceQuota(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()
