# SPDX-License-Identifier: Apache-2.0
"""Since when pods use none of their GPUs, as the agents of their nodes measure it.

Rules: only the GPUNode of the pod's own node counts, for as long as the pod is there. A time before the bind counts as
the bind, and one in the future as now; both are for the core to decide.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.core.model import Pod
from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.objects.topology import GPUNode


class IdlePods:
    """What GPUNodes report, by node and uid of the pod."""

    def __init__(self) -> None:
        self._since_ms: dict[str, dict[str, int]] = {}

    def put(self, obj: GPUNode, deleted: bool) -> Iterable[str]:
        """The uids of the pods of which it reports something else than before."""
        name = obj.metadata.name
        before = self._since_ms.pop(name, {})
        now = {} if deleted else {one.uid: epoch_ms(one.since) for one in obj.status.idle_pods}
        if now:
            self._since_ms[name] = now
        return [uid for uid in before | now if before.get(uid) != now.get(uid)]

    def since_ms(self, pod: Pod) -> int:
        """Since when the pod is idle, in epoch ms; 0 if it is not."""
        return self._since_ms.get(pod.node, {}).get(pod.uid, 0)
