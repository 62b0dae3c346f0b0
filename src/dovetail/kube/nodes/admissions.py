# SPDX-License-Identifier: Apache-2.0
"""The pods that are on their way into a node, bound to it and not yet admitted by its kubelet, and the pods that leave.

The kubelet's call to a device plugin names a resource and a number of devices, not the pod. While at most one pod is on
its way for each resource and number, the call is for that pod. A kubelet has admitted a pod that has a start time.
Source: k8s.io/kubernetes pkg/kubelet/status/status_manager.go (startTime), pkg/apis/deviceplugin/v1beta1.
"""

from __future__ import annotations

from typing import Protocol

from dovetail.core.bounded_cache import Remembered, same
from dovetail.core.devices.mig.geometry import RESOURCE_PREFIX
from dovetail.core.model import GPU, SHARED_GPU
from dovetail.kube.objects.pods import Pod as PodObject

Sizes = frozenset[tuple[str, str]]
"""Resources with the amounts that some container asks for, as written."""
_NONE: Sizes = frozenset()
_MOST = 128
_shared = Remembered[Sizes](1024, same)


class Listener(Protocol):
    """Receives the admissions and ends of pods that request GPUs; node "" is none."""

    def admitted(self, uid: str, node: str) -> None:
        """The kubelet of the node has admitted the pod."""

    def gone(self, uid: str, node: str) -> None:
        """The pod is finished, deleted or rejected."""


class _Nobody:
    def admitted(self, uid: str, node: str) -> None: ...

    def gone(self, uid: str, node: str) -> None: ...


class Admissions:
    def __init__(self) -> None:
        self.listener: Listener = _Nobody()
        self._sizes: dict[str, Sizes] = {}
        self._node_of: dict[str, str] = {}
        self._coming: dict[str, dict[str, Sizes]] = {}

    def put(self, obj: PodObject) -> None:
        """A pod that is not finished."""
        uid, node = obj.metadata.uid, obj.spec.node_name
        if uid not in self._sizes:
            found = [
                (name, str(amount))
                for container in (*obj.spec.init_containers, *obj.spec.containers)
                for name, amount in container.resources.limits.items()
                if name in (GPU, SHARED_GPU) or name.startswith(RESOURCE_PREFIX)
            ]
            if found:
                self._sizes[uid] = _shared(frozenset(found[:_MOST]))
        if not node or uid not in self._sizes:
            return
        new = uid not in self._node_of
        self._node_of[uid] = node
        if not obj.status.start_time:
            self._coming.setdefault(node, {})[uid] = self._sizes[uid]
        elif self._arrived(uid, node) or new:
            self.listener.admitted(uid, node)

    def _arrived(self, uid: str, node: str) -> bool:
        coming = self._coming.get(node, {})
        if coming.pop(uid, None) is None:
            return False
        if not coming:
            del self._coming[node]
        return True

    def drop(self, uid: str) -> None:
        """It is gone."""
        if self._sizes.pop(uid, None) is not None:
            node = self._node_of.pop(uid, "")
            self._arrived(uid, node)
            self.listener.gone(uid, node)

    def sizes(self, uid: str) -> Sizes:
        """The amounts that a pod requests from device plugins of GPUs."""
        return self._sizes.get(uid, _NONE)

    def coming(self, node: str) -> dict[str, Sizes]:
        """The pods that are on their way to a node."""
        return self._coming.get(node, {})
