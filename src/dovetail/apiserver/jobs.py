# SPDX-License-Identifier: Apache-2.0
"""A small Job controller: pods for batch/v1 Jobs, and the Jobs' status.

Knows parallelism, completions, Indexed and NonIndexed completion, suspend and backoffLimit, which counts the failed
pods of the whole job; the next try comes without delay. Pods that are deleted are forgotten, also if they had
succeeded. A job for whose pods there is no room waits until something is deleted. Does not know success and failure
policies, deadlines, per-index limits, or time to live.
Source: k8s.io/kubernetes/pkg/controller/job/job_controller.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice, repeat

from dovetail.apiserver.deletions import Deletions
from dovetail.apiserver.failures import Failure, QuotaExceeded
from dovetail.apiserver.objects import (
    Clock,
    Key,
    Object,
    condition_of,
    key_of,
    object_at,
    objects_at,
    text_at,
    timestamp,
    value_at,
    with_condition,
    with_status,
)
from dovetail.apiserver.owned import Owned
from dovetail.apiserver.pods import is_finished
from dovetail.apiserver.resources import PODS
from dovetail.apiserver.store import Store
from dovetail.apiserver.writes import Writes

JOBS = "jobs.batch"
REFUSED = "dovetail.dev/PodsRefused"
"""The condition of a job for whose pods there is no room. Upstream reports that in Events alone."""
MOST_AT_ONCE = 500
"""Pods that one reconciliation creates; each of them brings about the next one. Source: MaxPodCreateDeletePerSync."""
_INDEX = "batch.kubernetes.io/job-completion-index"


class Jobs:
    """The jobs of one store."""

    def __init__(self, store: Store, writes: Writes, deletions: Deletions, clock: Clock) -> None:
        self._store = store
        self._writes = writes
        self._deletions = deletions
        self._clock = clock
        self._owned = Owned("Job")
        self._waiting: set[Key] = set()

    def note_pod(self, pod: Object, *, removed: bool) -> Key | None:
        """Record the owner of the pod. Returns the key of the job to reconcile."""
        return self._owned.note(pod, removed=removed)

    def reconcile(self, key: Key) -> None:
        """Create and delete pods for the job, and write the job's status."""
        job = self._store.get(JOBS, *key)
        if job is None or text_at(job, "metadata.deletionTimestamp") or _over(job):
            return
        pods = [p for k in self._owned.of(job) if (p := self._store.get("pods", *k))]
        active, now_s = [pod for pod in pods if _active(pod)], self._clock()
        suspended = value_at(job, "spec.suspend") is True
        verdict = _verdict(job, pods)
        counted = with_status(
            job,
            active=len(active),
            ready=sum(condition_of(pod, "Ready").get("status") == "True" for pod in active),
            succeeded=len(_in_phase(pods, "Succeeded")),
            failed=len(_in_phase(pods, "Failed")),
            startTime=None if suspended else text_at(job, "status.startTime") or timestamp(now_s),
            completionTime=timestamp(now_s) if verdict and verdict[0] == "Complete" else None,
        )
        if verdict:
            kind, reason, message = verdict
            counted = with_condition(counted, kind, "True", now_s, reason, message)
        if suspended or condition_of(counted, "Suspended"):
            reason = "JobSuspended" if suspended else "JobResumed"
            counted = with_condition(counted, "Suspended", str(suspended), now_s, reason)
        if condition_of(job, REFUSED) and len(active) >= _number(job, "parallelism", 1):
            counted = with_condition(counted, REFUSED, "False", now_s, "PodsCreated")
        if counted != job:
            job = self._store.put_raw(JOBS, counted)
        if verdict or suspended:
            for pod in active:
                self._deletions.delete(PODS, key_of(pod), {})
        else:
            self._create_missing(job, pods, active)

    def _create_missing(self, job: Object, pods: Sequence[Object], active: Sequence[Object]) -> None:
        done = len(_in_phase(pods, "Succeeded"))
        parallelism, completions = _number(job, "parallelism", 1), _number(job, "completions", 0)
        if value_at(job, "spec.completionMode") == "Indexed":
            taken = {_index(pod) for pod in [*_in_phase(pods, "Succeeded"), *active]}
            indexes: Iterable[int | None] = (n for n in range(completions) if str(n) not in taken)
        else:
            # Without completions any success ends the job: no pod starts after the first one.
            missing = completions - done - len(active) if completions else 0 if done else parallelism
            indexes = repeat(None, max(0, missing))
        for index in islice(indexes, min(MOST_AT_ONCE, max(0, parallelism - len(active)))):
            try:
                self._writes.create(PODS, text_at(job, "metadata.namespace"), _pod(job, index))
            except QuotaExceeded as refusal:
                self._wait(job, str(refusal))
                return
            except Failure as failure:
                reason = with_condition(job, "FailureTarget", "True", self._clock(), "FailedCreate", str(failure))
                self._store.put_raw(JOBS, reason)
                return
        self._waiting.discard(key_of(job))

    def _wait(self, job: Object, why: str) -> None:
        """Notes that there is no room for the job's next pod, in its status as well."""
        self._waiting.add(key_of(job))
        if condition_of(job, REFUSED).get("message") != why:
            self._store.put_raw(JOBS, with_condition(job, REFUSED, "True", self._clock(), "FailedCreate", why))

    def without_room(self) -> set[Key]:
        """The jobs that wait for room for a pod, from now on forgotten: each is to be reconciled."""
        waiting, self._waiting = self._waiting, set()
        return waiting


def _verdict(job: Object, pods: Sequence[Object]) -> tuple[str, str, str] | None:
    """Condition, reason and message if the job is over."""
    succeeded, failed = _in_phase(pods, "Succeeded"), _in_phase(pods, "Failed")
    if len(failed) > _number(job, "backoffLimit", 6):
        return "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    indexed = value_at(job, "spec.completionMode") == "Indexed"
    done = len({_index(pod) for pod in succeeded}) if indexed else len(succeeded)
    # Without completions the first success decides, once the other pods have ended.
    complete = done >= (_number(job, "completions", 0) or 1)
    if complete and (_number(job, "completions", 0) or not any(_active(pod) for pod in pods)):
        return "Complete", "CompletionsReached", "Reached expected number of succeeded pods"
    return None


def _over(job: Object) -> bool:
    return any(condition_of(job, kind).get("status") == "True" for kind in ("Complete", "Failed", "FailureTarget"))


def _pod(job: Object, index: int | None) -> Object:
    name, uid = text_at(job, "metadata.name"), text_at(job, "metadata.uid")
    template = object_at(job, "spec.template")
    labels = object_at(template, "metadata.labels") | {
        "batch.kubernetes.io/job-name": name, "batch.kubernetes.io/controller-uid": uid, "job-name": name,
    }  # fmt: skip
    annotations, spec = object_at(template, "metadata.annotations"), object_at(template, "spec")
    if index is not None:
        labels, annotations = labels | {_INDEX: str(index)}, annotations | {_INDEX: str(index)}
        variable = {"name": "JOB_COMPLETION_INDEX", "value": str(index)}
        containers = [c | {"env": [*objects_at(c, "env"), variable]} for c in objects_at(spec, "containers")]
        spec = spec | {"containers": containers}
    owner = {
        "apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid,
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    prefix = f"{name}-" if index is None else f"{name}-{index}-"
    metadata = {"generateName": prefix, "labels": labels, "annotations": annotations, "ownerReferences": [owner]}
    return {"metadata": metadata, "spec": spec}


def _in_phase(pods: Sequence[Object], phase: str) -> list[Object]:
    return [pod for pod in pods if text_at(pod, "status.phase") == phase]


def _active(pod: Object) -> bool:
    return not text_at(pod, "metadata.deletionTimestamp") and not is_finished(pod)


def _index(pod: Object) -> str:
    return str(object_at(pod, "metadata.annotations").get(_INDEX, ""))


def _number(job: Object, field: str, default: int) -> int:
    value = value_at(job, f"spec.{field}")
    return value if isinstance(value, int) else default
