# SPDX-License-Identifier: Apache-2.0
"""Simulated kubelets: one loop that moves the pods of all nodes through their lives.

A pod that is bound to a node is admitted when it is first seen: its node selector must match, and what it requests must
fit beside the pods that were admitted before, or it fails with the reason a kubelet gives (OutOfcpu,
OutOfnvidia.com/gpu, NodeAffinity). `reject` makes a kubelet admit no pod, for a reason of the caller's. Then it runs
after `start_delay_s`, and

- succeeds after the seconds in the annotation `playground.dovetail.dev/run-seconds`, or fails if the annotation
  `playground.dovetail.dev/exit-code` is not 0; without run-seconds it runs on;
- when deleted, is gone after `stop_delay_s` or at the end of its grace period, whichever is first.

A pod waits to be started for its ResourceClaims to be reserved for it, with devices that its node can use.

A resource that the node does not declare, or that the pod has by a claim, is not checked. Pods on a node that does not
exist, or whose kubelet is silenced, stay as they are. Not simulated: topology and device managers, images, probes,
restarts of containers, heartbeats.

Sources: k8s.io/kubernetes/pkg/kubelet/lifecycle/predicate.go, pkg/kubelet/kubelet_pods.go.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import re
from collections import deque

from msgspec import Struct

from dovetail.apiserver.changes import StoreChange
from dovetail.apiserver.claims import by_claim, names_of, usable_by
from dovetail.apiserver.deletions import Deletions
from dovetail.apiserver.objects import (
    Clock,
    Key,
    Object,
    key_of,
    labels_of,
    object_at,
    objects_at,
    seconds_of,
    text_at,
    timestamp,
    value_at,
    with_condition,
    with_status,
)
from dovetail.apiserver.pods import is_finished, requests_of
from dovetail.apiserver.resources import PODS
from dovetail.apiserver.store import Store
from dovetail.core.quantities import QuantityError, amount

RUN_SECONDS = "playground.dovetail.dev/run-seconds"
EXIT_CODE = "playground.dovetail.dev/exit-code"
_CLAIMS = "resourceclaims.resource.k8s.io"
_NUMBER = re.compile(r"\d+(\.\d+)?")
_RUNNING_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
_NO_AFFINITY = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"


class _Seat(Struct):
    """The resources of its node that an admitted pod holds, and since when."""

    node: str
    requests: dict[str, int]
    admitted_s: float
    running_s: float


class PlaygroundKubelets:
    """The kubelets of all nodes in a store."""

    def __init__(
        self, store: Store, deletions: Deletions, clock: Clock, *, start_delay_s: float, stop_delay_s: float
    ) -> None:  # fmt: skip
        self.start_delay_s = start_delay_s
        self.stop_delay_s = stop_delay_s
        self._store = store
        self._deletions = deletions
        self._clock = clock
        self._seats: dict[str, _Seat] = {}
        """Pod uid -> seat."""
        self._used: dict[str, dict[str, int]] = {}
        """Node -> resource -> amount taken by admitted pods."""
        self._due: list[tuple[float, Key]] = []
        self._silent: set[str] = set()
        self._rejecting: dict[str, str] = {}
        self._next_address = 0
        self._changed = asyncio.Event()
        self._changed_pods: deque[StoreChange] = deque()
        self._new_nodes: set[str] = set()
        self._waiting_pods: deque[Key] = deque()
        """Pods that may have got what they claim."""
        store.collection("pods").listeners.append(self._note_pod)
        store.collection("nodes").listeners.append(self._note_node)
        store.collection(_CLAIMS).listeners.append(self._note_claim)

    def _note_pod(self, change: StoreChange) -> None:
        self._changed_pods.append(change)
        self._changed.set()

    def _note_claim(self, change: StoreChange) -> None:
        namespace = text_at(change.object, "metadata.namespace")
        for consumer in objects_at(change.object, "status.reservedFor"):
            self._waiting_pods.append((namespace, text_at(consumer, "name")))
            self._changed.set()

    def _note_node(self, change: StoreChange) -> None:
        if change.previous is None:
            self._new_nodes.add(text_at(change.object, "metadata.name"))
            self._changed.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self.step()
            delay_s = self._due[0][0] - self._clock() if self._due else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(None if delay_s is None else loop.time() + max(0.0, delay_s)):
                    await self._changed.wait()

    def step(self) -> None:
        """Do all that is due now."""
        self._changed.clear()
        if self._new_nodes:
            nodes, self._new_nodes = self._new_nodes, set()
            self._consider_pods_of(nodes)
        while self._changed_pods:
            change = self._changed_pods.popleft()
            if change.removed:
                self._leave(text_at(change.object, "metadata.uid"))
            else:
                self._consider(key_of(change.object))
        while self._waiting_pods:
            self._consider(self._waiting_pods.popleft())
        while self._due and self._due[0][0] <= self._clock():
            self._consider(heapq.heappop(self._due)[1])

    def silence(self, node: str) -> None:
        """Stop the node's kubelet: it reports nothing and does nothing; the node turns NotReady."""
        self._silent.add(node)
        self._set_ready(node, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")

    def reject(self, node: str, reason: str) -> None:
        """The node's kubelet admits no more pods, for this reason (TopologyAffinityError ...); "" ends that."""
        self._rejecting[node] = reason

    def revive(self, node: str) -> None:
        """End `silence`: the node's kubelet continues."""
        self._silent.discard(node)
        self._set_ready(node, "True", "KubeletReady", "kubelet is posting ready status")
        self._consider_pods_of({node})

    def _set_ready(self, name: str, status: str, reason: str, message: str) -> None:
        node = self._store.get("nodes", "", name)
        if node is not None:
            self._store.put_raw("nodes", with_condition(node, "Ready", status, self._clock(), reason, message))

    def _consider_pods_of(self, nodes: set[str]) -> None:
        for pod in self._store.list("pods"):
            if text_at(pod, "spec.nodeName") in nodes:
                self._consider(key_of(pod))

    def _consider(self, key: Key) -> None:
        """Takes the pod's next step if it is time, or notes when it will be."""
        pod = self._store.get("pods", *key)
        if pod is None:
            return
        node = self._store.get("nodes", "", text_at(pod, "spec.nodeName"))
        if node is None or text_at(node, "metadata.name") in self._silent:
            return
        uid = text_at(pod, "metadata.uid")
        if is_finished(pod):
            self._leave(uid)
        elif uid not in self._seats and (refusal := self._admit(pod, node)):
            self._end(pod, "Failed", *refusal)
            return
        due_s = self._due_s(pod)
        if due_s is None:
            return
        if due_s > self._clock():
            heapq.heappush(self._due, (due_s, key))
        elif text_at(pod, "metadata.deletionTimestamp"):
            self._vanish(pod)
        elif text_at(pod, "status.phase") == "Running":
            self._end(pod, "Failed" if _exit_code(pod) else "Succeeded")
        elif all(usable_by(self._store.get(_CLAIMS, key[0], name), pod) for name in names_of(pod)):
            self._start(pod, node)

    def _due_s(self, pod: Object) -> float | None:
        """When the pod takes its next step, if it takes one by itself."""
        end_s = seconds_of(text_at(pod, "metadata.deletionTimestamp"))
        if end_s is not None:
            grace_s = value_at(pod, "metadata.deletionGracePeriodSeconds") or 0
            return min(end_s, end_s - grace_s + self.stop_delay_s)
        seat = self._seats.get(text_at(pod, "metadata.uid"))
        if seat is None:
            return None
        if text_at(pod, "status.phase") != "Running":
            return seat.admitted_s + self.start_delay_s
        run_s = _run_seconds(pod)
        return None if run_s is None else seat.running_s + run_s

    def _admit(self, pod: Object, node: Object) -> tuple[str, str] | None:
        """Admit the pod, or return the reason and message with which its node refuses it. Running pods stay
        admitted."""
        name, now_s = text_at(node, "metadata.name"), self._clock()
        running = text_at(pod, "status.phase") == "Running"
        used = self._used.setdefault(name, {})
        try:
            claimed = by_claim(pod)
            requests = {name: n for name, n in requests_of(pod).items() if name not in claimed} | {"pods": 1}
            refusal = None if running else self._rejection(name) or _refusal(pod, node, requests, used)
        except QuantityError as error:
            requests, refusal = {}, ("UnexpectedAdmissionError", str(error))
        if refusal is None:
            for resource, wanted in requests.items():
                used[resource] = used.get(resource, 0) + wanted
            started_s = seconds_of(text_at(pod, "status.startTime")) or now_s
            self._seats[text_at(pod, "metadata.uid")] = _Seat(name, requests, now_s, started_s)
        return refusal

    def _rejection(self, node: str) -> tuple[str, str] | None:
        reason = self._rejecting.get(node)
        return (reason, "Pod was rejected: a fault of this test") if reason else None

    def _leave(self, uid: str) -> None:
        seat = self._seats.pop(uid, None)
        if seat is not None:
            for resource, amount_used in seat.requests.items():
                self._used[seat.node][resource] -= amount_used

    def _start(self, pod: Object, node: Object) -> None:
        now_s = self._clock()
        self._seats[text_at(pod, "metadata.uid")].running_s = now_s
        now = timestamp(now_s)
        self._next_address += 1
        address = f"10.{self._next_address >> 16 & 255}.{self._next_address >> 8 & 255}.{self._next_address & 255}"
        host = next((text_at(a, "address") for a in objects_at(node, "status.addresses")), None)
        running = with_status(
            pod, phase="Running", startTime=now, podIP=address, podIPs=[{"ip": address}], hostIP=host,
            containerStatuses=_container_statuses(pod, {"running": {"startedAt": now}}, ready=True),
        )  # fmt: skip
        for condition in _RUNNING_CONDITIONS:
            running = with_condition(running, condition, "True", now_s)
        self._store.put_raw("pods", running)

    def _end(self, pod: Object, phase: str, reason: str = "", message: str = "") -> None:
        now_s = self._clock()
        code = 0 if phase == "Succeeded" else _exit_code(pod) or 1
        seat = self._seats.get(text_at(pod, "metadata.uid"))
        started = {"startedAt": timestamp(seat.running_s)} if seat is not None and seat.running_s else {}
        terminated = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": timestamp(now_s)}
        terminated |= started
        statuses = None if reason else _container_statuses(pod, {"terminated": terminated}, ready=False)
        outcome = {"reason": reason or None, "message": message or None}
        ended = with_status(pod, phase=phase, containerStatuses=statuses, **outcome)
        for condition in ("ContainersReady", "Ready"):
            ended = with_condition(ended, condition, "False", now_s, "PodFailed" if code else "PodCompleted")
        self._store.put_raw("pods", ended)

    def _vanish(self, pod: Object) -> None:
        self._deletions.delete(PODS, key_of(pod), {"gracePeriodSeconds": 0})


def _refusal(pod: Object, node: Object, requests: dict[str, int], used: dict[str, int]) -> tuple[str, str] | None:
    """Raises QuantityError for an allocatable amount that cannot be read."""
    for annotation, what in ((RUN_SECONDS, "number of seconds"), (EXIT_CODE, "exit code")):
        if (text := _annotation(pod, annotation)) and not _NUMBER.fullmatch(text):
            return "UnexpectedAdmissionError", f"annotation {annotation}: {text!r} is no {what}"
    labels = labels_of(node)
    if any(labels.get(label) != value for label, value in object_at(pod, "spec.nodeSelector").items()):
        return "NodeAffinity", f"Pod was rejected: {_NO_AFFINITY}"
    for resource, text in object_at(node, "status.allocatable").items():
        capacity, wanted, taken = amount(resource, str(text)), requests.get(resource, 0), used.get(resource, 0)
        if wanted and taken + wanted > capacity:
            numbers = f"requested: {wanted}, used: {taken}, capacity: {capacity}"
            return f"OutOf{resource}", f"Pod was rejected: Node didn't have enough resource: {resource}, {numbers}"
    return None


def _annotation(pod: Object, name: str) -> str:
    value = object_at(pod, "metadata.annotations").get(name)
    return value if isinstance(value, str) else ""


def _run_seconds(pod: Object) -> float | None:
    text = _annotation(pod, RUN_SECONDS)
    return float(text) if _NUMBER.fullmatch(text) else None


def _exit_code(pod: Object) -> int:
    text = _annotation(pod, EXIT_CODE)
    return int(text) if text.isdecimal() else 0


def _container_statuses(pod: Object, state: Object, *, ready: bool) -> list[Object]:
    return [
        {
            "name": text_at(container, "name"), "image": text_at(container, "image"), "imageID": "", "restartCount": 0,
            "ready": ready, "started": ready, "state": state,
        }
        for container in objects_at(pod, "spec.containers")
    ]  # fmt: skip
