# SPDX-License-Identifier: Apache-2.0
"""An object of which only name and labels count."""

from __future__ import annotations

from msgspec import field

from dovetail.kube.objects.base import Wire


class OutlineMeta(Wire, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = field(default_factory=dict)


class Outline(Wire, frozen=True):
    metadata: OutlineMeta = OutlineMeta()
