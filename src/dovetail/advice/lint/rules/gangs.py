# SPDX-License-Identifier: Apache-2.0
"""Rules about gangs: their size, and the scheduler that starts them together.

`owners` has the number of pods of each kind of object. A group is not checked if that number is unknown for a member,
or if only some templates of a member are in the group. A minimum below the number of pods is an error only for work
with one rank per pod: indexed Jobs with full parallelism, and PyTorch and JAX without an elastic policy. It is a guess,
as the program may start with fewer pods.
A gang that only its pods' annotations name has as many pods as the objects with the annotation make.
Not checked: Volcano's `dependsOn`, groups of groups, and Deployments, which an autoscaler may resize.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from msgspec import Struct

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.inventory import DEFAULT_SCHEDULER
from dovetail.advice.lint.peers import job_pods
from dovetail.advice.lint.pods import Template, count, templates_of
from dovetail.advice.lint.rule import Facts, Rule, RuleMatch, Severity
from dovetail.kube.gangs.declared import Declared, Membership, OwnerRef
from dovetail.kube.gangs.owners import OWNER_KINDS, declare, read
from dovetail.kube.manifests.templates import group_kind
from dovetail.kube.translate.problems import nearest

_OWNERS = {(kind.resource.group, kind.resource.kind): kind.resource for kind in OWNER_KINDS}
_REPLICATED = {("apps", "ReplicaSet"), ("apps", "StatefulSet"), ("", "ReplicationController")}
_ALL_RANKS = {("batch", "Job"), ("kubeflow.org", "PyTorchJob"), ("kubeflow.org", "JAXJob")}
_LAUNCHER = "launcher"
_VOLCANO_JOB = ("batch.volcano.sh", "Job")


class _Group(Struct, frozen=True):
    """A dialect of PodGroup: the path of its minimum, and a function that returns the group of a pod."""

    minimum: tuple[str, ...]
    joined: Callable[[Template], str]


def _under(side: str, *keys: str) -> Callable[[Template], str]:
    return lambda pod: next((text for key in keys if (text := pod.meta.at(side, key).text)), "")


_COSCHEDULING = ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")
_VOLCANO = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
GROUPS = {
    ("scheduling.k8s.io", "PodGroup"): _Group(
        ("spec", "schedulingPolicy", "gang", "minCount"),
        lambda pod: pod.spec.at("schedulingGroup", "podGroupName").text,
    ),
    ("scheduling.x-k8s.io", "PodGroup"): _Group(("spec", "minMember"), _under("labels", *_COSCHEDULING)),
    ("scheduling.volcano.sh", "PodGroup"): _Group(("spec", "minMember"), _under("annotations", *_VOLCANO)),
}
"""The kinds of PodGroup that rules read, by API group and kind."""


def _named(pod: Template) -> str:
    """The gang that only the annotation of the pod names: a PodGroup goes before."""
    grouped = any(group.joined(pod) for group in GROUPS.values())
    return "" if grouped else pod.meta.at("annotations", "dovetail.dev/gang").text


_NAMED = _Group((), _named)


class _Size(Struct, frozen=True):
    """`pods` in all; `first` of them are created before any of them runs; `ranks`: the work needs all of them."""

    pods: int
    first: int
    ranks: bool = False


def _size(whole: Field) -> _Size | None:
    """The size of an object; None if unknown."""
    kind = group_kind(whole.value)
    if kind == ("", "Pod"):
        return _Size(1, 1)
    if kind in _REPLICATED:
        replicas = whole.at("spec", "replicas").whole
        return _Size(replicas, replicas) if replicas is not None else None
    declared = declared_by(whole)
    if declared is None or declared.gang.problem is not None:
        return None
    if declared.alone:
        pods = job_pods(whole.at("spec"))
        return _Size(pods, pods) if kind == ("batch", "Job") else None
    each = [part.pods for part in declared.parts] or [declared.pods]
    if any(pods is None for pods in each) or kind[1] == "LeaderWorkerSet":
        return None
    pods = sum(one for one in each if one is not None)
    if declared.together:
        elastic = bool(whole.at("spec", "elasticPolicy"))
        return _Size(pods, pods, kind in _ALL_RANKS and not elastic)
    late = sum(part.pods or 0 for part in declared.parts if part.name == _LAUNCHER)
    return _Size(pods, pods - late) if late and kind[0] == "kubeflow.org" else None


def declared_by(whole: Field) -> Declared | None:
    """What the object declares of its pods, as the scheduler reads it; None for a kind that declares nothing."""
    resource = _OWNERS.get(group_kind(whole.value))
    if resource is None:
        return None
    namespace, name = (whole.at("metadata", key).text for key in ("namespace", "name"))
    owner = OwnerRef(resource, namespace, name)
    member = Membership("", namespace, name, owner=owner)
    return declare(member, read(owner, whole.value))


def _minimum(whole: Field, facts: Facts) -> Iterator[RuleMatch]:
    kind = group_kind(whole.value)
    group = GROUPS.get(kind)
    yield from _of_names(whole, facts)
    if group is not None:
        yield from _of_group(whole, group, facts)
    elif kind == _VOLCANO_JOB:
        yield from _of_volcano(whole)
    elif kind[0] == "kubeflow.org":
        least, size = whole.at("spec", "runPolicy", "schedulingPolicy", "minAvailable"), _size(whole)
        if size is not None and least.whole is not None:
            yield from _compared(least, least.whole, size)


def _compared(least: Field, wanted: int, size: _Size, guess: bool = False) -> Iterator[RuleMatch]:
    if wanted > size.pods:
        message = f"{least.name} is {wanted}, and the objects create only {size.pods}: write {size.pods}"
        yield RuleMatch(least, message, guess=guess)
    elif wanted > size.first:
        message = (
            f"{least.name} is {wanted}, and the launcher is created when the other {size.first} pods run: "
            f"write {size.first}"
        )
        yield RuleMatch(least, message, guess=guess)
    elif size.ranks and 0 < wanted < size.pods:
        message = (
            f"{least.name} is {wanted} of {size.pods} pods: the first pods hold their GPUs and wait for the rest: "
            f"write {size.pods}"
        )
        yield RuleMatch(least, message, guess=True)


def _of_volcano(whole: Field) -> Iterator[RuleMatch]:
    spec = whole.at("spec")
    sizes = []
    for task in spec.at("tasks").each():
        replicas, least = task.at("replicas"), task.at("minAvailable")
        sizes.append(1 if not replicas else replicas.whole)
        if replicas.whole is not None and (least.whole or 0) > replicas.whole:
            message = f"minAvailable is {least.whole}, and the task has {replicas.whole} pods: write {replicas.whole}"
            yield RuleMatch(least, message)
    pods = sum(size or 0 for size in sizes)
    if sizes and None not in sizes:
        least = spec.at("minAvailable")
        yield from _compared(least, least.whole or 0, _Size(pods, pods))


def _of_group(whole: Field, group: _Group, facts: Facts) -> Iterator[RuleMatch]:
    least = whole.at(*group.minimum)
    name, namespace = (whole.at("metadata", key).text for key in ("name", "namespace"))
    if not name or least.whole is None:
        return
    members = _members(facts, group).get((namespace, name), [])
    together = _together(members)
    if together is not None:
        yield from _compared(least, least.whole, together, guess=_are_bare(members))


def _of_names(whole: Field, facts: Facts) -> Iterator[RuleMatch]:
    """The gangs that exist in their pods' annotations alone, each at the largest of their minimums."""
    known = _members(facts, _NAMED)
    for name in dict.fromkeys(filter(None, map(_named, templates_of(whole)))) if known else ():
        members = known.get((whole.at("metadata", "namespace").text, name), [])
        written = [
            (count(field) or 0, other, field)
            for other, _ in members
            for pod in templates_of(other)
            if (field := _gang_min(pod, name))
        ]
        wanted, other, least = max(written, key=lambda one: one[0], default=(0, whole, whole))
        together = _together(members) if wanted and other.value == whole.value else None
        if together is not None:
            yield from _compared(least, wanted, together, guess=_are_bare(members))


def _gang_min(pod: Template, gang: str) -> Field | None:
    field = pod.meta.at("annotations", "dovetail.dev/gang-min")
    return field if field and _NAMED.joined(pod) == gang else None


def _together(members: Sequence[tuple[Field, bool]]) -> _Size | None:
    """The size of a gang of these members; None if it is unknown, or no pod."""
    sizes = [_size(other) if whole_of_it else None for other, whole_of_it in members]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes) or not any(size.pods for size in known):
        return None
    return _Size(sum(size.pods for size in known), sum(size.first for size in known), all(size.ranks for size in known))


def _are_bare(members: Sequence[tuple[Field, bool]]) -> bool:
    """Whether all members are Pods of no object: more of them may be in other files."""
    return all(group_kind(other.value) == ("", "Pod") for other, _ in members)


@lru_cache(maxsize=8)
def _members(facts: Facts, group: _Group) -> dict[tuple[str, str], list[tuple[Field, bool]]]:
    """By namespace and name of a group, (object, whether all of its pods join the group) of each member."""
    found: dict[tuple[str, str], list[tuple[Field, bool]]] = {}
    for whole in facts.objects:
        joined = [group.joined(pod) for pod in templates_of(whole)]
        for name in {one for one in joined if one}:
            place = whole.at("metadata", "namespace").text, name
            found.setdefault(place, []).append((whole, joined.count(name) == len(joined)))
    return found


class _Mark(Struct, frozen=True):
    """Labels or annotations of a pod that only the schedulers `readers` (default names) read. `meant` is the scheduler
    that such a pod without a schedulerName most likely means; no webhook fills it in."""

    side: str
    keys: tuple[str, ...]
    readers: frozenset[str]
    meant: str = ""


_DOVETAIL, _KAI, _YUNIKORN = "dovetail", "kai-scheduler", "yunikorn"
MARKS = (
    _Mark("labels", _COSCHEDULING, frozenset({"scheduler-plugins-scheduler", DEFAULT_SCHEDULER, _DOVETAIL})),
    _Mark("annotations", _VOLCANO, frozenset({"volcano", _DOVETAIL}), "volcano"),
    _Mark(
        "annotations",
        tuple(f"yunikorn.apache.org/{name}" for name in ("task-group-name", "task-groups")),
        frozenset({_YUNIKORN}),
    ),
    _Mark("annotations", ("dovetail.dev/gang",), frozenset({_DOVETAIL}), _DOVETAIL),
)
_SIMILARITY = 0.8
KNOWN = frozenset({_KAI, "runai-scheduler", "hami-scheduler", *(name for mark in MARKS for name in mark.readers)})


def _scheduler(pod: Template, facts: Facts) -> Iterator[RuleMatch]:
    if not pod.uses_gpu:
        return
    named = pod.spec.at("schedulerName")
    if named.text and facts.schedulers is not None and named.text not in facts.schedulers:
        near = nearest(named.text, sorted(facts.schedulers), _SIMILARITY)
        meant = f"did you mean {near}?" if near else f"the schedulers are {', '.join(sorted(facts.schedulers))}"
        yield RuleMatch(named, f"no scheduler {named.text} is installed: {meant}")
        return
    if named.text and facts.schedulers is None and named.text not in KNOWN:
        near = nearest(named.text, sorted(KNOWN), _SIMILARITY)
        if near:
            yield RuleMatch(named, f"no known scheduler has the name {named.text}: did you mean {near}?", guess=True)
            return
    for mark in MARKS:
        for key in mark.keys:
            carried = pod.meta.at(mark.side, key)
            if carried and named.text in KNOWN - mark.readers:
                readers = " or ".join(sorted(mark.readers))
                yield RuleMatch(named, f"{named.text} does not read {key} of the pod: write {readers}, or remove {key}")
            elif carried and not named.text and mark.meant and not pod.partial:
                reader = mark.meant
                missing = facts.schedulers is not None and reader not in facts.schedulers
                what = f"no {reader} is installed" if missing else f"write schedulerName: {reader}"
                message = f"the default scheduler does not read {key}, and binds the pods one by one: {what}"
                yield RuleMatch(carried, message, guess=facts.schedulers is None)


_GANG = """\
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {{name: train, labels: {{team: vision}}}}
spec:
  launcherCreationPolicy: WaitForWorkersReady
  runPolicy: {{schedulingPolicy: {{minAvailable: {0}}}}}
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      template:
        spec: {{containers: [{{name: launcher, image: registry.example.com/train:1.4}}]}}
    Worker:
      replicas: 4
      template:
        spec:
          priorityClassName: batch
          containers:
          - name: worker
            image: registry.example.com/train:1.4
            resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""
_MARKED = """\
apiVersion: v1
kind: Pod
metadata:
  name: train-0
  labels: {{team: vision}}
  annotations: {{scheduling.k8s.io/group-name: train}}
spec:
  schedulerName: {0}
  priorityClassName: batch
  restartPolicy: Never
  containers:
  - name: train
    image: registry.example.com/train:1.4
    resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""

RULES = (
    Rule(
        id="G12",
        level=Severity.ERROR,
        title="The minimum of a gang is larger or smaller than its number of pods",
        effect=(
            "If it is larger, the gang never starts: pods wait for pods that do not exist. If it is smaller, the first "
            "pods hold their GPUs and wait. Volcano refuses its Job: `job 'minAvailable' should not be greater than "
            "total replicas in tasks`."
        ),
        bad=_GANG.format(5),
        good=_GANG.format(4),
        whole=_minimum,
        source="https://github.com/kubeflow/mpi-operator: pkg/controller/podgroup.go",
    ),
    Rule(
        id="G13",
        level=Severity.ERROR,
        title="No scheduler of this name runs, or it does not know the gang of the pod",
        effect=(
            "Without its scheduler the pod stays Pending, without an event. A scheduler that does not know the gang "
            "binds its pods one by one."
        ),
        bad=_MARKED.format("yunikorn"),
        good=_MARKED.format("volcano"),
        template=_scheduler,
        source="https://kubernetes.io/docs/tasks/extend-kubernetes/configure-multiple-schedulers/",
    ),
)
