# SPDX-License-Identifier: Apache-2.0
"""What a simulation is about: a cluster, and jobs that arrive one after another.

Rules: records only, as the core knows them; times are milliseconds of the trace's own clock. A job is a lone pod or a
gang; its pods arrive together and, once they run, run for the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.core.events import Event, PodChanged
from dovetail.core.model import Gang, Pod


@dataclass(frozen=True, slots=True)
class Job:
    """`gang` is None for a lone pod. `duration_ms` counts from the start of the job; None runs until the end of the
    simulation. The pods' `created_ms` is `at_ms`."""

    at_ms: int
    pods: tuple[Pod, ...]
    gang: Gang | None = None
    duration_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """`cluster` tells what is there before the first arrival, nodes first; `jobs` are in the order of the trace.
    `name` is for people: which list this is."""

    name: str
    cluster: tuple[Event, ...]
    jobs: tuple[Job, ...]


def snapshot(name: str, events: Sequence[Event]) -> Workload:
    """A cluster as it is: the pods that wait for this scheduler arrive at once, in the order of the events."""
    waiting = [e.pod for e in events if isinstance(e, PodChanged) and e.pod.managed and not e.pod.node]
    uids = {pod.uid for pod in waiting}
    cluster = tuple(e for e in events if not (isinstance(e, PodChanged) and e.pod.uid in uids))
    return Workload(name, cluster, tuple(Job(0, (pod,)) for pod in waiting))
