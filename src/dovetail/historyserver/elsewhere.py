# SPDX-License-Identifier: Apache-2.0
"""What a user of one namespace sees of others: their GPU time in one group, and none of their names.

Rules
- Names are taken out of what an answer is worked out from, so that no part of an answer can have them.
- Of records of the own namespace messages alone can name others: any NAME behind a slash is replaced, with what is
  before it, unless its namespace is the own one. No namespace has a dot, so `nvidia.com/gpu` stays.
- By node, model and GPU all that is not of own pods is in the one group, too: what others and nobody held.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from dovetail.cost.cells import GpuTimes
from dovetail.cost.grouping import ELSEWHERE
from dovetail.history.records import PodRecord

_TOKEN = re.compile(r"[\w.:+~-]+(?:/[\w.:+~-]+)+")


def shown_text(text: str, own: str) -> str:
    """A message about a pod of the namespace, without the names of others."""

    def shown(found: re.Match[str]) -> str:
        first, *rest = found.group().split("/")
        return found.group() if "." in first or own in (first, *rest[:-1]) else ELSEWHERE

    return _TOKEN.sub(shown, text)


class Strangers:
    """Pods as a user of the namespace `own` sees them."""

    def __init__(self, own: str) -> None:
        self.own = own
        self._jobs: dict[tuple[str, str], str] = {}

    def seen(self, pod: PodRecord) -> PodRecord:
        """The pod, or what counts of a pod of another namespace. Its job has a number, so that jobs can be counted."""
        if pod.namespace == self.own:
            return pod
        job = self._jobs.setdefault((pod.namespace, pod.job), str(len(self._jobs)))
        return PodRecord(
            pod.uid, ELSEWHERE, ELSEWHERE, job, submitted_ms=pod.submitted_ms, bound_ms=pod.bound_ms,
            started_ms=pod.started_ms, ended_ms=pod.ended_ms,
        )  # fmt: skip


def as_seen(times: GpuTimes, strangers: Strangers, by_place: bool) -> GpuTimes:
    """The GPU time with names of the namespace alone. The cells must be those of pods, or of groups of what is seen of
    pods."""
    own = strangers.own
    pods = {uid: strangers.seen(pod) for uid, pod in times.pods.items()}
    for cell in times.cells:
        pod = pods.get(cell.pod_uid) if cell.pod_uid else None
        if by_place and (pod is None or pod.namespace != own):
            cell.where = replace(cell.where, node=ELSEWHERE, model=ELSEWHERE, gpu=ELSEWHERE)
    return replace(times, pods=pods)
