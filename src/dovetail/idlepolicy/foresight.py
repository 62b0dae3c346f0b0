# SPDX-License-Identifier: Apache-2.0
"""What the policy of a cluster will do about idle pods, and when: by the decisions of its own process, on what that
reads. Nothing is written.

Rules
- Times are the earliest: the policy acts at its next pass, and only so many times an hour. They hold while no GPU is
  used, and the reports of the nodes stay fresh.
- What the asker may not read is not known (`policy` or `step` ""); all else is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from dovetail.idlepolicy.decision import IdlePolicy, act_ms, notice_ms
from dovetail.idlepolicy.reading import ClusterReader, PodsOwner, Reports
from dovetail.idlepolicy.records import consequence
from dovetail.idlepolicy.stoppable import NOTHING, SUSPEND
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import Forbidden, KubeError, NotFound
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.resources import GPU_STACKS, PODS
from dovetail.kube.api.rights import missing_right
from dovetail.kube.objects.holding import HoldingPod
from dovetail.kube.objects.stack import GPUStack, IdleSpec
from dovetail.kube.translate.annotations import PREFIX, WHEN_IDLE, options_of
from dovetail.kube.translate.durations import duration_ms

_AT_ONCE = 16
MOST_PODS = 500
"""Pods about which the cluster is asked; of more nothing is known."""
Installed = Literal["", "on", "off"]
NextStep = Literal["", "none", "notice", "suspend", "scale-to-zero"]


class AskedPod(Struct, frozen=True):
    namespace: str
    name: str
    uid: str


class Foreseen(Struct, frozen=True):
    """The last step that the policy will take about a pod, "" if that is not known; when at the earliest, in epoch ms,
    0 for a step that is none; and why, as a sentence."""

    step: NextStep
    at_ms: int = 0
    note: str = ""


class Foresight(Struct, frozen=True):
    """`policy`: whether a GPUStack of the cluster has the policy on; "" is not known, and `note` is why. `pods` are by
    uid."""

    policy: Installed
    note: str = ""
    pods: Mapping[str, Foreseen] = {}


async def foresee(config: ClusterConfig, pods: Sequence[AskedPod], now_ms: int) -> Foresight:
    """What will become of these pods. Raises KubeError where the API server cannot be reached."""
    async with Client(config, user_agent="dovetail") as client:
        try:
            stacks = await list_all(client, GPU_STACKS, GPUStack)
            installed = [one.spec.idle for one in stacks.objects.values() if one.spec.idle.enabled]
            if not installed:
                return Foresight("off")
            reports = await ClusterReader(client).reports(now_ms)
        except NotFound:
            return Foresight("off")
        except Forbidden as error:
            return Foresight("", missing_right(error))
        cluster = _Asked(client, installed[0], reports, now_ms)
        some = pods[:MOST_PODS]
        found = await asyncio.gather(*(cluster.about(pod) for pod in some))
        return Foresight("on", "", dict(zip((pod.uid for pod in some), found, strict=True)))


class _Asked:
    def __init__(self, client: Client, spec: IdleSpec, reports: Reports, now_ms: int) -> None:
        self._client, self._reports, self._now_ms = client, reports, now_ms
        self._reader = ClusterReader(client)
        self._exempt = frozenset(spec.exempt_namespaces)
        self._policy = policy_of(spec)
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def about(self, asked: AskedPod) -> Foreseen:
        if asked.namespace in self._exempt:
            return Foreseen("none", note=f"Namespace {asked.namespace} is exempt.")
        async with self._turns:
            try:
                path = PODS.path(asked.namespace, asked.name)
                pod = await self._client.request("GET", path, decode=HoldingPod)
                if pod.metadata.uid != asked.uid:
                    return Foreseen("none", note="It is gone.")
                workload = await self._reader.workload_of(pod, self._reports)
            except NotFound:
                return Foreseen("none", note="It is gone.")
            except KubeError as error:
                return Foreseen("", note=f"{error}.")
        return foreseen(pod, workload, self._policy, self._now_ms)


def policy_of(spec: IdleSpec) -> IdlePolicy:
    """The policy that a GPUStack installs. Raises ValueError."""
    return IdlePolicy(
        duration_ms(spec.notify_after), duration_ms(spec.act_after), duration_ms(spec.grace), spec.acts_per_hour
    )


def foreseen(pod: HoldingPod, workload: PodsOwner, policy: IdlePolicy, now_ms: int) -> Foreseen:
    """What will become of the pod, with its workload as it is now. Pure."""
    since_ms = workload.since_ms[pod.metadata.uid]
    if workload.when_idle == NOTHING:
        return Foreseen("none", note=f"Its annotation {PREFIX}{WHEN_IDLE} is {NOTHING}.")
    if not since_ms:
        return Foreseen("none", note="Its node does not report it as idle: it is used again, or shares its GPU.")
    facts, note = workload.facts(now_ms), consequence(workload, policy, now_ms)
    if facts.consents and facts.since_ms:
        assert workload.kind is not None and workload.kind.way is not None
        due_ms = act_ms(facts.since_ms, notice_ms(facts, policy, now_ms), policy)
        step: NextStep = "suspend" if workload.kind.way.consent == SUSPEND else "scale-to-zero"
        return Foreseen(step, max(now_ms, due_ms), note)
    if options_of(pod.metadata).when_idle == NOTHING:
        return Foreseen("none", note=f"Its annotation {PREFIX}{WHEN_IDLE} is {NOTHING}.")
    return Foreseen("notice", since_ms + policy.notify_after_ms, note)
