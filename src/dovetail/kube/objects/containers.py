# SPDX-License-Identifier: Apache-2.0
"""The states of a container in the status of its pod. Rules of the structs: see `base`.

The scheduler reads less of them, of all pods of a cluster: see `pods`. Source: k8s.io/api core/v1.
"""

from __future__ import annotations

from datetime import datetime

from dovetail.kube.objects.base import Wire


class ContainerWaiting(Wire, frozen=True):
    reason: str = ""
    message: str = ""


class ContainerRunning(Wire, frozen=True):
    started_at: datetime | None = None


class ContainerTerminated(Wire, frozen=True):
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None


class AnyContainerState(Wire, frozen=True):
    """One of the three."""

    waiting: ContainerWaiting | None = None
    running: ContainerRunning | None = None
    terminated: ContainerTerminated | None = None
