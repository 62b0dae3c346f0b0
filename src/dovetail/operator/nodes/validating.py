# SPDX-License-Identifier: Apache-2.0
"""Carries out validations: which nodes are validated now, with what pods, and again when one failed.

Rules
- At most AT_ONCE validation pods are there at a time.
- After a failure the next pod follows after a minute, then twice as long each time up to half an hour. Meanwhile, and
  while the next one is under way, the failure is what is reported, so that `since` is the time of the first.
- A node gets three pods at once, then one in five minutes, whatever it does.
- A pod of another key or spec.validation, or on a node that is cordoned or in maintenance, is deleted. Another
  spec.validation is tried at once.
Does not know: what is written of it.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from dovetail.kube.api.errors import ApiError, Forbidden, Invalid
from dovetail.kube.objects.stack import DRA, GPUStack
from dovetail.kube.objects.topology import Evidence
from dovetail.operator.nodes.evidence import newest, one_line, wants_events
from dovetail.operator.nodes.facts import ValidationProgress, WalkFacts, validation_digest, validation_key
from dovetail.operator.nodes.outlines import KEY_OF_VALIDATION, SPEC_OF_VALIDATION
from dovetail.operator.nodes.pace import WritePace
from dovetail.operator.nodes.reading import NodeReads
from dovetail.operator.nodes.validation import (
    Course,
    by_running,
    course_of,
    pod_name,
    request_of,
    validates_node,
    validation_pod,
)
from dovetail.operator.nodes.writer import WalkWriter
from dovetail.operator.rendering.stack_objects import SYSTEM_NAMESPACE
from dovetail.operator.watched.nodes import WatchedNode
from dovetail.operator.watched.pods import WatchedPod, requests_gpus

AT_ONCE = 32
_RETRY_MS, _RETRY_MOST_MS = 60_000, 1_800_000
_PODS_AT_ONCE, _POD_EVERY_MS = 3, 300_000
_BUSY_MS, _QUEUED_MS, _UNSEEN_MS = 60_000, 5_000, 30_000
_UNDER_WAY = frozenset({"ValidationPending", "ValidationRunning", "ValidationQueued", "ContainerCreating"})


class _Failure(Struct):
    """`uid` is that of the pod that failed, "" if none could be made; `key` what it validated, and by which spec."""

    progress: ValidationProgress
    key: tuple[str, str]
    uid: str
    count: int
    until_ms: int


class Validating:
    """`pods` has the validation pods by node and uid, `again` is called with a node and the time at which to ask
    again."""

    def __init__(
        self,
        writer: WalkWriter,
        reads: NodeReads,
        pods: dict[str, dict[str, WatchedPod]],
        again: Callable[[str, int], None],
    ) -> None:
        self._writer, self._reads, self._pods, self._again = writer, reads, pods, again
        self._failures: dict[str, _Failure] = {}
        self._begun: dict[str, int] = {}
        """Nodes whose pod was made, and is not seen yet; with the time."""
        self._pace = WritePace(_PODS_AT_ONCE, _POD_EVERY_MS)

    async def progress(self, node: WatchedNode, facts: WalkFacts, stack: GPUStack, now_ms: int) -> ValidationProgress:
        """How far the validation of the node is; begins it if it may. Raises ApiError."""
        name, key = facts.name, (validation_key(facts), validation_digest(facts))
        last = facts.before.validation if facts.before is not None else None
        if last is not None and last.key == key[0]:
            self._failures.pop(name, None)
            return ValidationProgress(passed=last)
        pod = newest(self._pods.get(name, {}).values())
        if pod is not None:
            self._begun.pop(name, None)
            return await self._of_pod(pod, facts, key, now_ms)
        failure = self._failures.get(name)
        if failure is not None and failure.key != key:
            del self._failures[name]
            failure = None
        if failure is not None and now_ms < failure.until_ms:
            self._again(name, failure.until_ms)
            return failure.progress
        if facts.maintenance or facts.cordoned:
            return ValidationProgress()
        if now_ms - self._begun.get(name, -_UNSEEN_MS) < _UNSEEN_MS:
            return _shown(ValidationProgress("ValidationPending", "the validation pod is not placed yet"), failure)
        return await self._begin(node, facts, stack, now_ms)

    async def clear(self, name: str) -> None:
        """Delete the validation pods of a node: it is validated, or not to be validated. Raises ApiError."""
        for pod in list(self._pods.get(name, {}).values()):
            if pod.metadata.deletion_timestamp is None:
                await self._writer.remove(pod)

    def forget(self, name: str) -> None:
        """The node is gone."""
        self._failures.pop(name, None)
        self._begun.pop(name, None)
        self._pace.forget(name)

    async def _of_pod(self, pod: WatchedPod, facts: WalkFacts, key: tuple[str, str], now_ms: int) -> ValidationProgress:
        name, failure = facts.name, self._failures.get(facts.name)
        if failure is not None and failure.uid == pod.metadata.uid:
            # A deletion that was not answered is repeated.
            if pod.metadata.deletion_timestamp is None:
                await self._writer.remove(pod)
            return failure.progress
        unwanted = facts.maintenance or (facts.cordoned and not pod.spec.node_name)
        marks = pod.metadata.annotations
        if (marks.get(KEY_OF_VALIDATION), marks.get(SPEC_OF_VALIDATION)) != key or unwanted:
            if pod.metadata.deletion_timestamp is None:
                await self._writer.remove(pod)
            return _shown(ValidationProgress("ValidationQueued", "an older validation pod is being deleted"), failure)
        meta = pod.metadata
        events = await self._reads.events(meta.namespace, "Pod", meta.name, meta.uid) if wants_events(pod) else ()
        course = course_of(pod, facts, now_ms, events)
        if course.again_ms:
            self._again(name, course.again_ms)
        if course.retry:
            self._fail(name, key, course, meta.uid, now_ms)
            await self._writer.remove(pod)
            return course.progress
        return _shown(course.progress, failure)

    async def _begin(self, node: WatchedNode, facts: WalkFacts, stack: GPUStack, now_ms: int) -> ValidationProgress:
        name, failure = facts.name, self._failures.get(facts.name)
        self._begun = {one: at_ms for one, at_ms in self._begun.items() if now_ms - at_ms < _UNSEEN_MS}
        if self._under_way() >= AT_ONCE:
            self._again(name, now_ms + _QUEUED_MS)
            return _shown(ValidationProgress("ValidationQueued", "other nodes are validated first"), failure)
        resource, number = request_of(facts)
        pods = [one for one in await self._reads.pods_on(name) if not validates_node(one)]
        passed = by_running(pods, facts, now_ms)
        if passed is not None:
            return ValidationProgress(passed=passed)
        held = sum(requests_gpus(pod, resource) for pod in pods)
        if resource and held + number > facts.allocatable[resource]:
            self._again(name, now_ms + _BUSY_MS)
            evidence = Evidence("Node", "", name)
            return ValidationProgress("GpusBusy", "pods hold all GPUs of the node", evidence)
        # Other nodes were served during the request.
        due_ms = max(self._pace.due_ms(name, now_ms), now_ms + _QUEUED_MS * (self._under_way() >= AT_ONCE))
        if due_ms > now_ms:
            self._again(name, due_ms)
            return _shown(ValidationProgress("ValidationQueued", "other nodes are validated first"), failure)
        self._pace.count(name, now_ms)
        self._begun[name] = now_ms
        try:
            made = validation_pod(stack, facts, node.spec.taints)
            by_claim = facts.pool is not None and facts.pool.allocation == DRA
            await self._writer.validation(made, number if by_claim else 0)
        except (Forbidden, Invalid) as error:
            del self._begun[name]
            return self._refused(name, (validation_key(facts), validation_digest(facts)), error, now_ms)
        self._again(name, now_ms + _UNSEEN_MS)
        evidence = Evidence("Pod", SYSTEM_NAMESPACE, pod_name(name))
        return _shown(
            ValidationProgress("ValidationPending", "the validation pod is not placed yet", evidence), failure
        )

    def _under_way(self) -> int:
        return len(self._pods.keys() | self._begun.keys())

    def _refused(self, name: str, key: tuple[str, str], error: ApiError, now_ms: int) -> ValidationProgress:
        evidence = Evidence("Pod", SYSTEM_NAMESPACE, pod_name(name), "", one_line(error.message))
        progress = ValidationProgress("ValidationRefused", "the API server refuses the validation pod", evidence)
        self._fail(name, key, Course(progress), "", now_ms)
        return progress

    def _fail(self, name: str, key: tuple[str, str], course: Course, uid: str, now_ms: int) -> None:
        before = self._failures.get(name)
        count = before.count + 1 if before is not None and before.key == key else 1
        pause_ms = min(_RETRY_MOST_MS, _RETRY_MS << min(count - 1, 10))
        self._failures[name] = _Failure(course.progress, key, uid, count, now_ms + pause_ms)
        self._again(name, now_ms + pause_ms)


def _shown(progress: ValidationProgress, failure: _Failure | None) -> ValidationProgress:
    """What is reported: the failure before, while another pod is only under way."""
    if failure is not None and progress.passed is None and progress.reason in _UNDER_WAY:
        return failure.progress
    return progress
