# SPDX-License-Identifier: Apache-2.0
"""One screen about an installation: what runs, in which versions, which replica leads, what is broken, and what to do.

Rules
- Everything comes from objects; no process is asked. What could not be listed is in `unread`: its faults are not known.
- A problem has its object, what is wrong, and the next step. A rollout under way and a node in maintenance are none.
- Versions are tags of images, and what agents report; an image that is named by its digest has none.
- Which versions work together is the caller's table (`Skew`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.objects.installed import HeldLease, InstalledPod, InstalledWorkload
from dovetail.kube.objects.stack import BlockedNode, ForeignComponent, GPUStack, NodeCounts, RolloutStatus
from dovetail.kube.objects.topology import GPUNode
from dovetail.views.installation import OPERATOR, SCHEDULER, InstallationFacts

RELEASE_ANNOTATION = "dovetail.dev/release"
POOL_LABEL = "dovetail.dev/pool"
WAITS_FOR = "operator.dovetail.dev/waits-for"
"""Annotation of a Lease: what its candidates wait for."""
_KINDS = ("agentcontrolplanes", "fabrics", "gpuleases", "gpunodes", "gpustacks", "leaserequests", "queues")
_READY = "ready"
_STALE_LEASES = 4
"""A lease that was not renewed for so many times its duration has no holder. (Its times are of another clock.)"""
_FAILED = ("Failed", "RolledBack")
_BACKING_OFF = {
    *("CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "InvalidImageName"),
    *("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
}
"""Reasons for which a kubelet does not run a container."""


class StatusProblem(Struct, frozen=True):
    """What is wrong with an object, and the next step."""

    object: str
    wrong: str
    next: str


_NOT_INSTALLED = StatusProblem("Dovetail", "neither operator nor scheduler is installed", "dovetail install")


class ComponentView(Struct, frozen=True):
    """`pool` is of agents. `message`: why pods are not ready."""

    name: str
    kind: str
    namespace: str
    pool: str
    image: str
    version: str
    desired: int
    ready: int
    message: str


class LeaderView(Struct, frozen=True):
    """`holder` is "" where no replica leads. `renewed_ms` is epoch time, 0 where it is not known."""

    lease: str
    holder: str
    renewed_ms: int


class ConditionView(Struct, frozen=True):
    type: str
    status: str
    reason: str
    message: str
    since_ms: int


class StackView(Struct, frozen=True):
    """`current`: the operator has seen the newest spec. `deleting`: it is being uninstalled."""

    name: str
    version: str
    current: bool
    deleting: bool
    conditions: tuple[ConditionView, ...]

    def condition(self, kind: str) -> ConditionView:
        """The condition of this type; one of status Unknown where it is not written yet."""
        unknown = ConditionView(kind, "Unknown", "", "", 0)
        return next((one for one in self.conditions if one.type == kind), unknown)


class StatusView(Struct, frozen=True):
    """`versions`: by part (definitions, operator, scheduler, agent) how many of each version there are. `drivers`:
    nodes by driver version. `evidence`: by blocked node the line of a log or an event that shows why. `unread`: what
    could not be listed, and why."""

    problems: tuple[StatusProblem, ...] = ()
    stack: StackView | None = None
    components: tuple[ComponentView, ...] = ()
    leaders: tuple[LeaderView, ...] = ()
    versions: dict[str, dict[str, int]] = {}
    drivers: dict[str, int] = {}
    nodes: NodeCounts = NodeCounts()
    blocked: tuple[BlockedNode, ...] = ()
    evidence: dict[str, str] = {}
    foreign: tuple[ForeignComponent, ...] = ()
    rollout: RolloutStatus | None = None
    unread: tuple[str, ...] = ()

    @property
    def installed(self) -> bool:
        """Whether there is an operator or a scheduler, as far as that is known."""
        return _NOT_INSTALLED not in self.problems

    def why(self, node: BlockedNode) -> str:
        """Why a node is blocked, with what shows it."""
        line = self.evidence.get(node.name)
        return f"{node.reason}: {node.message}".rstrip(": ") + (f" ({line})" if line else "")


class SkewProblem(Struct, frozen=True):
    """Versions that do not work together, and what to do."""

    text: str
    remedy: str


Skew = Callable[[Mapping[str, Iterable[str]]], Iterable[SkewProblem]]
"""Finds, by part, the versions that do not work together."""


def status(facts: InstallationFacts, now_ms: int, skew: Skew) -> StatusView:
    """The view of an installation."""
    stack = min(
        facts.stacks, key=lambda one: (epoch_ms(one.metadata.creation_timestamp), one.metadata.name), default=None
    )
    components = (
        *(_replicated(one, "Deployment", facts.pods) for one in facts.deployments),
        *(_replicated(one, "StatefulSet", facts.pods) for one in facts.stateful_sets),
        *(_daemon_set(one) for one in facts.daemon_sets),
    )
    installed = {one.metadata.name for one in facts.deployments}
    leases = {one.metadata.name: one for one in facts.leases}
    own = stack.status if stack is not None else None
    blocked = (own.blocked if own is not None else ()) or tuple(_blocked(facts.gpu_nodes))
    view = StatusView(
        stack=None if stack is None else _stack(stack),
        components=components,
        leaders=tuple(_leader(name, leases.get(name), now_ms) for name in (OPERATOR, SCHEDULER) if name in installed),
        versions=_versions(components, facts),
        drivers=_counted(one.status.driver_version for one in facts.gpu_nodes),
        nodes=own.nodes if own is not None and own.nodes.nodes else _node_counts(facts.gpu_nodes),
        blocked=blocked,
        evidence=_evidence(blocked, facts.gpu_nodes),
        foreign=own.foreign if own is not None else (),
        rollout=own.rollout if own is not None else None,
        unread=facts.unread,
    )
    problems = (
        *_of_installation(view, facts),
        *_of_stack(view),
        *_of_components(view, facts),
        *(StatusProblem("versions", one.text, one.remedy) for one in skew(view.versions)),
        *_of_nodes(view),
    )
    return replace(view, problems=problems)


def _stack(stack: GPUStack) -> StackView:
    meta, own = stack.metadata, stack.status
    conditions = tuple(
        ConditionView(one.type, one.status, one.reason, one.message, epoch_ms(one.last_transition_time))
        for one in own.conditions
    )
    current = own.observed_generation >= meta.generation
    return StackView(meta.name, own.version, current, meta.deletion_timestamp is not None, conditions)


def _replicated(one: InstalledWorkload, kind: str, pods: Iterable[InstalledPod]) -> ComponentView:
    name = one.metadata.name
    failing = [text for pod in pods if pod.metadata.labels.get("app.kubernetes.io/name") == name
               if (text := _failure(pod))]  # fmt: skip
    stuck = [each.message for each in one.status.conditions if each.type == "ReplicaFailure" and each.status == "True"]
    return _component(one, kind, (one.spec.replicas, one.status.ready_replicas), (*failing, *stuck))


def _daemon_set(one: InstalledWorkload) -> ComponentView:
    return _component(one, "DaemonSet", (one.status.desired_number_scheduled, one.status.number_ready), ())


def _component(one: InstalledWorkload, kind: str, pods: tuple[int, int], failures: tuple[str, ...]) -> ComponentView:
    desired, ready = pods
    image = next((each.image for each in one.spec.template.spec.containers), "")
    message = ""
    if one.metadata.generation > one.status.observed_generation:
        message = "its controller has not seen the newest spec yet"
    elif ready < desired:
        message = next(iter(failures), f"{desired - ready} of {desired} pods are not ready")
    meta = one.metadata
    pool = meta.labels.get(POOL_LABEL, "")
    return ComponentView(meta.name, kind, meta.namespace, pool, image, _tag(image), desired, ready, message)


def _failure(pod: InstalledPod) -> str:
    """Why a pod does not get ready, where that is known; "" else."""
    for container in pod.status.container_statuses:
        waiting = container.state.waiting
        if waiting is not None and waiting.reason in _BACKING_OFF:
            text = f": {waiting.message}" if waiting.message else ""
            return f"pod {pod.metadata.name}, container {container.name}: {waiting.reason}{text}"
    for one in pod.status.conditions:
        if one.type == "PodScheduled" and one.status == "False":
            return f"pod {pod.metadata.name}: {one.message or one.reason}"
    return ""


def _tag(image: str) -> str:
    """The tag of an image; "" where it has none."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[2]


def _leader(name: str, lease: HeldLease | None, now_ms: int) -> LeaderView:
    if lease is None:
        return LeaderView(name, "", 0)
    renewed_ms = epoch_ms(lease.spec.renew_time)
    stale = now_ms - renewed_ms > _STALE_LEASES * 1000 * max(1, lease.spec.lease_duration_seconds)
    return LeaderView(name, "" if stale else lease.spec.holder_identity, renewed_ms)


def _versions(components: Iterable[ComponentView], facts: InstallationFacts) -> dict[str, dict[str, int]]:
    tags: dict[str, dict[str, int]] = {}
    for part, name in (("operator", OPERATOR), ("scheduler", SCHEDULER)):
        tags[part] = _counted(one.version for one in components if one.name == name)
    agents = _counted(one.status.agent.version for one in facts.gpu_nodes if one.status.agent is not None)
    releases = _counted(one.metadata.annotations.get(RELEASE_ANNOTATION, "") for one in facts.definitions)
    return {"definitions": releases, **tags, "agent": agents}


def _counted(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(value for value in values if value).items()))


def _node_counts(gpu_nodes: Iterable[GPUNode]) -> NodeCounts:
    """Where no operator counts them."""
    nodes = list(gpu_nodes)
    ready = [one for one in nodes if one.status.readiness is None or one.status.readiness.step == _READY]
    repair = [one for one in nodes if one.status.quarantine is not None]
    bad = sum(not gpu.healthy for one in nodes for gpu in one.status.gpus)
    return NodeCounts(
        nodes=len(nodes),
        ready=len(ready),
        maintenance=sum(one.spec.maintenance is not None for one in nodes),
        repair=len(repair),
        gpus=sum(len(one.status.gpus) for one in nodes),
        gpus_ready=sum(gpu.healthy for one in ready for gpu in one.status.gpus),
        gpus_in_repair=bad,
    )


def _blocked(gpu_nodes: Iterable[GPUNode]) -> Iterator[BlockedNode]:
    for one in gpu_nodes:
        state = one.status.readiness
        if state is not None and state.step not in ("", _READY) and state.reason:
            yield BlockedNode(
                one.metadata.name, state.pool, state.step, state.reason, state.message, state.action, state.since
            )


def _evidence(blocked: Iterable[BlockedNode], gpu_nodes: Iterable[GPUNode]) -> dict[str, str]:
    shown = {}
    for one in gpu_nodes:
        state = one.status.readiness
        if state is not None and state.evidence is not None and state.evidence.line:
            shown[one.metadata.name, state.reason] = state.evidence.line
    # The list of the GPUStack may be older than the GPUNode.
    return {one.name: shown[key] for one in blocked if (key := (one.name, one.reason)) in shown}


def _of_installation(view: StatusView, facts: InstallationFacts) -> Iterator[StatusProblem]:
    installed = {one.name for one in view.components}
    if "deployments" not in facts.absent and not installed & {OPERATOR, SCHEDULER}:
        yield _NOT_INSTALLED
        return
    if view.stack is not None and OPERATOR not in installed and "deployments" not in facts.absent:
        yield StatusProblem(
            f"GPUStack {view.stack.name}", "no operator is installed that would keep it", "dovetail install"
        )
    if OPERATOR in installed and view.stack is None and "stacks" not in facts.absent:
        yield StatusProblem("GPUStack", "there is none, so the operator installs nothing", "dovetail install")
    found = {one.spec.names.plural for one in facts.definitions}
    wanted = _KINDS if OPERATOR in installed else tuple(one for one in _KINDS if one != "gpustacks")
    if "definitions" not in facts.absent and (lacking := [one for one in wanted if one not in found]):
        text = f"the definitions of {', '.join(lacking)} are missing, or from before release 0.1.0"
        yield StatusProblem("definitions", text, "dovetail install")
    for other in facts.stacks:
        if view.stack is not None and other.metadata.name != view.stack.name:
            text = f"GPUStack {view.stack.name} is older and counts"
            yield StatusProblem(
                f"GPUStack {other.metadata.name}", text, f"kubectl delete gpustack {other.metadata.name}"
            )


_UNANSWERED = (
    ("ViewsAvailable", "let the API server reach the leader at its port for views, or set spec.scheduler.views: false"),
    ("HistoryAvailable", "let the API server reach the pod dovetail-collector-0 at port 10356"),
)
"""What to do where nothing answers an API."""


def _of_stack(view: StatusView) -> Iterator[StatusProblem]:
    stack = view.stack
    if stack is None:
        return
    named = f"GPUStack {stack.name}"
    for kind, step in (("Accepted", "correct the spec"), ("Applied", "see the message; the operator tries again")):
        one = stack.condition(kind)
        if one.status == "False" and not stack.deleting:
            yield StatusProblem(named, f"{one.reason}: {one.message}" if one.message else one.reason, step)
    for kind, step in _UNANSWERED:
        one = stack.condition(kind)
        if one.reason == "NotAnswered" and not stack.deleting:
            yield StatusProblem(named, f"{one.reason}: {one.message}", step)
    rollout = view.rollout
    if rollout is not None and rollout.phase in _FAILED:
        where = f" on {', '.join(rollout.failed)}" if rollout.failed else ""
        text = f"the rollout of {rollout.revision} has failed{where}: {rollout.reason}"
        yield StatusProblem(named, text, "correct the spec, or the nodes; a changed spec starts the next rollout")


def _of_components(view: StatusView, facts: InstallationFacts) -> Iterator[StatusProblem]:
    for one in view.components:
        if one.ready < one.desired or one.message:
            where = f"kubectl -n {one.namespace} describe pods -l app.kubernetes.io/name={one.name}"
            yield StatusProblem(f"{one.kind} {one.namespace}/{one.name}", one.message, where)
    up = {one.name for one in view.components if one.ready}
    notes = {one.metadata.name: one.metadata.annotations.get(WAITS_FOR, "") for one in facts.leases}
    for leader in view.leaders:
        if not leader.holder and (note := notes.get(leader.lease)):
            yield StatusProblem(f"Lease {leader.lease}", f"no replica leads: {note}", "dovetail install")
        elif not leader.holder and leader.lease in up and "leases" not in facts.absent:
            logs = f"kubectl -n dovetail-system logs deploy/{leader.lease}"
            yield StatusProblem(f"Lease {leader.lease}", "no replica leads", logs)


def _of_nodes(view: StatusView) -> Iterator[StatusProblem]:
    for one in view.blocked:
        yield StatusProblem(f"Node {one.name}", f"{one.step}: {view.why(one)}", one.action)


def age_ms(moment: datetime | None, now_ms: int) -> int:
    """The milliseconds since then; 0 where it is not known, or in the future."""
    return max(0, now_ms - epoch_ms(moment)) if moment is not None else 0
