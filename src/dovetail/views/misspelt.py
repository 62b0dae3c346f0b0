# SPDX-License-Identifier: Apache-2.0
"""Names that nothing has, and what comes nearest: a scheduler, a queue, a gang. (Keys and values of labels and
annotations are told with what is wrong with them.)"""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.core.model import Pod
from dovetail.core.reasons import Reason, Refusal
from dovetail.core.state import State
from dovetail.kube.translate.problems import nearest, shown


def of_scheduler(state: State, pod: Pod, schedulers: Mapping[str, str], ours: str) -> tuple[str, ...]:
    """Of a pod that is not ours: whether the scheduler that it names has bound any pod here, and which it may mean."""
    named = schedulers.get(pod.key, "")
    if not named:
        return ()
    binding = {schedulers.get(one.key, "") for one in state.workloads.pods.values() if one.node and not one.managed}
    if named in binding:
        return (f"it names {shown(named)!r}, which has bound other pods here; ours is {ours!r}",)
    known = sorted((binding | {ours}) - {""})
    return (f"it names {shown(named)!r}, which has bound no pod here: nearest is {nearest(named, known)!r}",)


def of_refusal(state: State, pod: Pod, refusal: Refusal) -> tuple[str, ...]:
    """Of a pod that names a queue or a gang that is not there."""
    if refusal.reason is Reason.QUEUE_MISSING:
        queue = state.shares.queue_of(pod)
        near = nearest(queue, sorted(state.shares.tree.queues))
        return (f"no queue is called {shown(queue)!r}: nearest is {near!r}",)
    if refusal.reason is Reason.GANG_MISSING and pod.gang not in state.workloads.gangs:
        gangs = sorted(gang.id for gang in state.workloads.gangs.values() if gang.namespace == pod.namespace)
        near = nearest(pod.gang, gangs)
        return (f"no gang is called {shown(pod.gang)!r}: nearest is {near!r}",) if near else ()
    return ()
