# SPDX-License-Identifier: Apache-2.0
"""Fabric on the wire: what decides of it. Rules of the structs: see `objects.base`.

It is ours; its schema is deploy/crds/fabric.yaml, its reference docs/reference/fabric.md. Rates are line rates, one
way, in MB/s (10^6 bytes).
"""

from __future__ import annotations

from datetime import datetime

from msgspec import field

from dovetail.kube.objects.base import ObjectMeta, Wire


class FabricLevel(Wire, frozen=True):
    """`key` is a node label key, "" between all nodes."""

    key: str = ""
    bandwidth_mbps: int | None = field(default=None, name="bandwidthMBps")
    latency_ns: int | None = None


class SlowLink(Wire, frozen=True):
    """A node (no `level`) or a domain of a level."""

    level: str = ""
    name: str = ""
    expires_at: datetime | None = None


class HeldSpares(Wire, frozen=True):
    """Of each domain of the node label `key` so many nodes are held back."""

    key: str = ""
    per_domain: int = 0


class FabricSpec(Wire, frozen=True):
    levels: tuple[FabricLevel, ...] = ()
    spares: tuple[HeldSpares, ...] = ()


class FabricStatus(Wire, frozen=True):
    slow: tuple[SlowLink, ...] = ()


class Fabric(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: FabricSpec = FabricSpec()
    status: FabricStatus = FabricStatus()
