# SPDX-License-Identifier: Apache-2.0
"""How long a job takes to return the room that it has, once it is evicted.

Rules
- That is its longest grace period, since a kubelet kills what runs after that: whatever a job does to save its work, it
  does within it. A lease has its notice before, and its pods 30 s at most after that. To each comes what the API server
  and the kubelet need.
- A least run time that an admin has set (`minRuntime`) counts before all that. The one of 10 minutes that queues have
  without it does not, nor does the time for which a job is left alone after an eviction: a job in headroom has it on
  these terms.
- A job that must not be preempted, or that a disruption budget covers, returns nothing in any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dovetail.core import labels
from dovetail.core.bargaining.leases import Leases
from dovetail.core.bargaining.types import ServiceClass
from dovetail.core.model import Pod
from dovetail.core.queues.shares import Shares
from dovetail.core.queues.types import Budget

ENDING_MS = 1000
"""What the API server and the kubelet may need to end a pod beyond its grace period. An assumption: neither promises a
time."""
LEASED_MS = 30_000
"""The longest grace period of a pod within a lease that is over (see `bargaining.terms`)."""


class Lending:
    def __init__(self, shares: Shares, leases: Leases) -> None:
        self._shares, self._leases = shares, leases
        self._budgets: dict[str, list[Budget]] = {}

    def renew(self, budgets: Iterable[Budget]) -> None:
        """These are the disruption budgets now."""
        self._budgets = {}
        for budget in budgets:
            self._budgets.setdefault(budget.namespace, []).append(budget)

    def budgeted(self, namespace: str) -> bool:
        """Whether pods of the namespace may differ in what covers them."""
        return namespace in self._budgets

    def return_ms(self, pods: Sequence[Pod], queue: str) -> int | None:
        """How long the pods of a job take at most to return their room to a workload of this queue; None where they
        may not be evicted for it."""
        longest_ms = 0
        for pod in pods:
            one_ms = self._pod_ms(pod, queue)
            if one_ms is None:
                return None
            longest_ms = max(longest_ms, one_ms)
        return longest_ms if pods else None

    def _pod_ms(self, pod: Pod, queue: str) -> int | None:
        shares = self._shares
        name = shares.pod_queues.of(pod)
        record = shares.tree.queues.get(name)
        live = self._leases.live.get(pod.lease) if pod.lease else None
        if live is not None:
            kept = live.lease.alternative.service is ServiceClass.GUARANTEED
        else:
            kept = not pod.managed or not shares.pod_queues.preemptible(pod)
        if record is None or kept or self._covered(pod):
            return None
        least_ms = record.preempt_min_runtime_ms if name == queue else record.reclaim_min_runtime_ms or 0
        if not pod.lease:
            return least_ms + pod.work.grace_ms + ENDING_MS
        notice_ms = live.lease.grace_ms if live is not None else pod.work.grace_ms
        return least_ms + notice_ms + LEASED_MS + ENDING_MS

    def _covered(self, pod: Pod) -> bool:
        """Whether a disruption budget covers the pod: what it allows at the time is not known."""
        budgets = self._budgets.get(pod.namespace)
        if budgets is None:
            return False
        own = dict(pod.labels)
        return any(labels.matches(budget.selector, own) for budget in budgets)
