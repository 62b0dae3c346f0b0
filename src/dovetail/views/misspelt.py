# SPDX-License-Identifier: Apache-2.0
"""Hints on misspelt names of a scheduler, a queue or a gang: the most similar name that exists. (Misspelt labels and
annotations are reported where they are read.)"""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.core.model import Pod
from dovetail.core.reasons import Reason, Refusal
from dovetail.core.state import State
from dovetail.kube.translate.problems import nearest, shown


def of_scheduler(state: State, pod: Pod, schedulers: Mapping[str, str], ours: str) -> tuple[str, ...]:
    """For a pod of another scheduler: whether that scheduler has bound any pod of the cluster, else a similar name."""
    named = schedulers.get(pod.key, "")
    if not named:
        return ()
    binding = {schedulers.get(one.key, "") for one in state.workloads.pods.values() if one.node and not one.managed}
    if named in binding:
        return (f"its scheduler is {shown(named)!r}, which has bound other pods here; Dovetail's is {ours!r}",)
    known = sorted((binding | {ours}) - {""})
    return (f"its scheduler is {shown(named)!r}, which has bound no pod here: similar is {nearest(named, known)!r}",)


def of_refusal(state: State, pod: Pod, refusal: Refusal) -> tuple[str, ...]:
    """For a pod whose queue or gang does not exist: a similar name."""
    if refusal.reason is Reason.QUEUE_MISSING:
        queue = state.shares.pod_queues.of(pod)
        near = nearest(queue, sorted(state.shares.tree.queues))
        return (f"there is no queue {shown(queue)!r}: similar is {near!r}",)
    if refusal.reason is Reason.GANG_MISSING and pod.gang not in state.workloads.gangs:
        gangs = sorted(gang.id for gang in state.workloads.gangs.values() if gang.namespace == pod.namespace)
        near = nearest(pod.gang, gangs)
        return (f"there is no gang {shown(pod.gang)!r}: similar is {near!r}",) if near else ()
    return ()
