# SPDX-License-Identifier: Apache-2.0
"""What Allocate adds to a container with whole GPUs so that a distributed job finds its network.

Rules
- The kubelet does not name the container for which it calls. If several wait that the call can be for, each gets only
  what is right for all of them, and nothing if one has opted out. Where no pod is known that it can be for, the
  container gets no variables.
- The container has the explanation in the variable DOVETAIL_NETWORK_ENVIRONMENT, and its pod an Event. A pod that was
  not certain has it once the kubelet lists the devices as its own.
- The kubelet puts the variables of the pod, also those of `envFrom`, after those of a device plugin, so the pod's have
  precedence; those of the image have not.
Source: Kubernetes, pkg/kubelet/kubelet_pods.go (GenerateRunContainerOptions).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from msgspec import Struct

from dovetail.agent.cdi import Edits
from dovetail.agent.config import Config
from dovetail.agent.kubelet.bound_pods import BoundPod
from dovetail.agent.kubelet.container_networks import ContainerNetwork
from dovetail.agent.machine.host import Host
from dovetail.agent.plugin.nccl_conf import NcclFiles
from dovetail.agent.plugin.network_environment import PassedEnvironment, can_use_rdma, environment, summary
from dovetail.agent.publish.pod_events import PodEvent

log = logging.getLogger(__name__)

EXPLANATION = "DOVETAIL_NETWORK_ENVIRONMENT"
REASON, WRONG_REASON, LACKING_REASON = "NetworkEnvironmentSet", "NetworkEnvironmentWrong", "NetworkEnvironmentLacking"
_UNKNOWN = "no variables for its network were set: the agent did not know the pod when the kubelet asked for its GPUs"
Askers = Sequence[tuple[BoundPod, ContainerNetwork]]


class Unreported(Struct, frozen=True):
    """What the container with these GPUs got, while it was not certain of which pod it is."""

    uuids: tuple[str, ...]
    reason: str
    text: str


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
        self._unreported: dict[str, Unreported] = {}
        """By the uuid of each GPU."""

    @property
    def wanted(self) -> bool:
        """Whether the configuration asks for any of it."""
        config = self._config()
        return config.nccl_conf or config.network_environment

    def edits(self, uuids: Sequence[str], askers: Askers) -> Edits:
        """The edits for a container with these whole GPUs, which is one of `askers`."""
        config, host = self._config(), self._host()
        for uuid in uuids:
            self._unreported.pop(uuid, None)
        if not all(network.wanted for _, network in askers):
            if any(network.wanted for _, network in askers):
                why = "another container that waited for GPUs at the same time has opted out"
                self._keep(uuids, LACKING_REASON, f"nothing for its network was set: {why}")
            return Edits()
        edits = self._files.edits(host, uuids) if config.nccl_conf else Edits()
        if not config.network_environment:
            return edits
        if not askers:
            log.warning("a container with %s gets no network variables: its pod is not known", ", ".join(uuids))
            self._keep(uuids, LACKING_REASON, _UNKNOWN)
            return edits
        offered = frozenset(one.name for one in config.rdma)
        found = [
            environment(
                host, uuids, network, rdma=can_use_rdma(network, offered), interface=config.host_interface or ""
            )
            for _, network in askers
        ]
        passed, complete = _agreed(found)
        text = summary(passed)
        pods = {pod.uid: pod for pod, _ in askers}
        if not complete:
            text = f"{text or 'no variables for its network were set'}; left out what is not right for each of the "
            text += f"{len(askers)} containers that waited for GPUs at the same time"
        reason = LACKING_REASON if not complete else WRONG_REASON if passed.wrong else REASON
        if text and len(pods) == 1:
            self._put(next(iter(pods.values())), Unreported((*uuids,), reason, text))
        elif text:
            self._keep(uuids, reason, text)
        if not passed.passed:
            return edits
        return edits + Edits(env=(*((one.name, one.value) for one in passed.passed), (EXPLANATION, text)))

    def confirmed(self, pod: BoundPod, ids: Collection[str]) -> None:
        """The kubelet lists these devices as those of the pod: write the Events that were not written before."""
        kept = {one.uuids: one for id in ids if (one := self._unreported.pop(id, None))}
        if any(network.wanted for network in pod.networks.values()):
            for one in kept.values():
                self._put(pod, one)

    def _keep(self, uuids: Sequence[str], reason: str, text: str) -> None:
        one = Unreported((*uuids,), reason, text)
        self._unreported |= dict.fromkeys(uuids, one)

    def _put(self, pod: BoundPod, one: Unreported) -> None:
        warns = one.reason != REASON
        code = ",".join(sorted(one.uuids))
        self._report(PodEvent(pod.namespace, pod.name, pod.uid, one.reason, code, one.text, warns, "Allocating"))


def _agreed(found: Sequence[PassedEnvironment]) -> tuple[PassedEnvironment, bool]:
    """What is right for all of them, and whether that is all."""
    first = found[0]
    if all(one == first for one in found):
        return first, True
    passed = tuple(one for one in first.passed if all(one in other.passed for other in found))
    kept = first.kept if all(one.kept == first.kept for one in found) else ()
    left_out = first.left_out if all(one.left_out == first.left_out for one in found) else ()
    return PassedEnvironment(passed, kept, left_out=left_out), all(one.passed == first.passed for one in found)
