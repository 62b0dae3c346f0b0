# SPDX-License-Identifier: Apache-2.0
"""What a container with whole GPUs gets so that a distributed job finds its network: at Allocate, or by its claim.

Rules
- The kubelet does not name the container for which it calls. If several wait that the call can be for, each gets only
  what is right for all of them, and nothing if one has opted out. Where no pod is known that it can be for, the
  container gets no variables.
- The container has the explanation in the variable DOVETAIL_NETWORK_ENVIRONMENT, and its pod an Event. A pod that was
  not certain has it once the kubelet lists the devices as its own.
- The kubelet puts the variables of the pod, also those of `envFrom`, after those of a device plugin, so the pod's have
  precedence; those of the image have not. For devices by claims it is the other way round: what a CDI specification
  sets replaces variables of the pod. So there nothing is set where the pod may have variables that are not known.
Sources: Kubernetes, pkg/kubelet/kubelet_pods.go (GenerateRunContainerOptions); containerd, internal/cri/server
(WithCDI is the last of specOpts); container-device-interface, pkg/cdi/container-edits.go (Apply).
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
Containers = Sequence[tuple[ContainerNetwork, Sequence[str]]]
"""Containers with the uuids of their GPUs."""
_AT_ONCE, _OF_CLAIM = "waited for GPUs at the same time", "have the same devices by a claim"


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
        env, reason, text = self._environment([(network, uuids) for _, network in askers], _AT_ONCE, replaces=False)
        pods = {pod.uid: pod for pod, _ in askers}
        if text and len(pods) == 1:
            self._put(next(iter(pods.values())), Unreported((*uuids,), reason, text))
        elif text:
            self._keep(uuids, reason, text)
        return edits + env

    def edits_by_claim(self, pod: BoundPod, containers: Containers) -> Edits:
        """The edits for devices that these containers of the pod, and no others, have by a claim."""
        config, host = self._config(), self._host()
        if not all(network.wanted for network, _ in containers):
            return Edits()
        files = {self._files.edits(host, uuids) for _, uuids in containers} if config.nccl_conf else set()
        edits = files.pop() if len(files) == 1 else Edits()
        if not config.network_environment:
            return edits
        env, reason, text = self._environment(containers, _OF_CLAIM, replaces=True)
        if text:
            self._put(pod, Unreported(tuple({uuid for _, uuids in containers for uuid in uuids}), reason, text))
        return edits + env

    def lacks(self, pod: BoundPod, uuids: Sequence[str], why: str) -> None:
        """The containers of the pod that have these GPUs get nothing."""
        if self.wanted and any(network.wanted for network in pod.networks.values()):
            self._put(pod, Unreported((*uuids,), LACKING_REASON, f"nothing for its network was set: {why}"))

    def _environment(self, containers: Containers, which: str, *, replaces: bool) -> tuple[Edits, str, str]:
        """The variables that are right for each of the containers; the reason and the text of the Event. `which` are
        these containers in words."""
        config = self._config()
        offered = frozenset(one.name for one in config.rdma)
        found = [
            environment(
                self._host(), uuids, network, rdma=can_use_rdma(network, offered),
                interface=config.host_interface or "", replaces=replaces,
            )
            for network, uuids in containers
        ]  # fmt: skip
        passed, complete = _agreed(found)
        text = summary(passed)
        if not complete:
            text = f"{text or 'no variables for its network were set'}; left out what is not right for each of the "
            text += f"{len(containers)} containers that {which}"
        reason = LACKING_REASON if not complete else WRONG_REASON if passed.wrong else REASON
        env = [(one.name, one.value) for one in passed.passed]
        return Edits(env=(*env, (EXPLANATION, text)) if env else ()), reason, text

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
