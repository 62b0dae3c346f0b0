# SPDX-License-Identifier: Apache-2.0
"""What Allocate adds to a container with whole GPUs so that a distributed job finds its network.

Rules
- The kubelet does not name the container for which it calls. If several wait that the call can be for, each gets only
  what is right for all of them, and nothing if one has opted out.
- The container has the explanation in the variable DOVETAIL_NETWORK_ENVIRONMENT, and its pod an Event.
- The kubelet puts the variables of the pod after those of a device plugin, so the pod's have precedence; those of the
  image have not.
Source: Kubernetes, pkg/kubelet/kubelet_pods.go (GenerateRunContainerOptions).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dovetail.agent.cdi import Edits
from dovetail.agent.config import Config
from dovetail.agent.kubelet.allocations import BoundPod
from dovetail.agent.kubelet.container_networks import ContainerNetwork
from dovetail.agent.machine.host import Host
from dovetail.agent.plugin.nccl_conf import NcclFiles
from dovetail.agent.plugin.network_environment import PassedEnvironment, can_use_rdma, environment, summary
from dovetail.agent.publish.pod_events import PodEvent

EXPLANATION = "DOVETAIL_NETWORK_ENVIRONMENT"
REASON, WRONG_REASON = "NetworkEnvironmentSet", "NetworkEnvironmentWrong"
Askers = Sequence[tuple[BoundPod, ContainerNetwork]]


class JobNetwork:
    """`host` and `config` return those of now, `report` writes an Event."""

    def __init__(
        self,
        files: NcclFiles,
        host: Callable[[], Host],
        config: Callable[[], Config],
        report: Callable[[PodEvent], None],
    ) -> None:
        self._files, self._host, self._config, self._report = files, host, config, report

    def edits(self, uuids: Sequence[str], askers: Askers) -> Edits:
        """The edits for a container with these whole GPUs, which is one of `askers`."""
        config, host = self._config(), self._host()
        if not all(network.wanted for _, network in askers):
            return Edits()
        edits = self._files.edits(host, uuids) if config.nccl_conf else Edits()
        if not config.network_environment or not askers:
            return edits
        offered = frozenset(one.name for one in config.rdma)
        found = [
            environment(
                host, uuids, network, rdma=can_use_rdma(network, offered), interface=config.host_interface or ""
            )
            for _, network in askers
        ]
        passed = _agreed(found)
        text = summary(passed)
        pods = {pod.uid: pod for pod, _ in askers}
        if text and len(pods) == 1:
            (pod,) = pods.values()
            warns = bool(passed.wrong)
            reason = WRONG_REASON if warns else REASON
            code = ",".join(sorted(uuids))
            self._report(PodEvent(pod.namespace, pod.name, pod.uid, reason, code, text, warns, "Allocating"))
        if not passed.passed:
            return edits
        return edits + Edits(env=(*((one.name, one.value) for one in passed.passed), (EXPLANATION, text)))


def _agreed(found: Sequence[PassedEnvironment]) -> PassedEnvironment:
    """What is right for all of them."""
    first = found[0]
    if all(one == first for one in found):
        return first
    passed = tuple(one for one in first.passed if all(one in other.passed for other in found))
    return PassedEnvironment(passed, first.kept if all(one.kept == first.kept for one in found) else ())
