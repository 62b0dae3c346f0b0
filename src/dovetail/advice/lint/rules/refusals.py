# SPDX-License-Identifier: Apache-2.0
"""The rule about what the scheduler refuses for good: its own functions read the pod and its gang, and their problems
are the findings.

Rules
- Each template becomes a pod as its controller makes it. For a pod of another scheduler only its marks under
  `dovetail.dev/` are checked, as a guess: a webhook may name the scheduler.
- The gang is that of the PodGroup, of the name in the pods' annotation, or of the object, by the scheduler's order.
- Keys and values of single labels and annotations are for G45. What another rule reports as an error at the same place
  is not reported twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template, templates_of
from dovetail.advice.lint.rule import Facts, Rule, RuleMatch, Severity
from dovetail.advice.lint.rules.gangs import declared_by
from dovetail.core.model import Problem
from dovetail.core.queues.types import QUEUE_LABEL
from dovetail.core.reasons import Reason
from dovetail.kube.gangs.declared import Declared, Membership, lonely, named, records
from dovetail.kube.gangs.dialects import DIALECTS, Dialect, membership
from dovetail.kube.manifests.templates import group_kind
from dovetail.kube.objects.pods import Pod
from dovetail.kube.translate.annotations import NOTHING, PREFIX, WorkloadOptions, options_of
from dovetail.kube.translate.pods import problems_of

_OURS = "dovetail"
_GROUP = "schedulingGroup"
"""The only field of the spec by which a pod names a gang."""
_STEP = re.compile(r"([^.\[\]]+)|\[([^\]]*)\]")
_SHORT = {"required": "requiredDuringSchedulingIgnoredDuringExecution"}
"""Steps that the scheduler's messages shorten."""
_DIALECTS = {(one.resources[0].group, one.resources[0].kind): one for one in DIALECTS}


def _of_pod(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    ours = _is_ours(pod)
    if not ours and not _is_marked(pod.meta):
        return
    for side in ("labels", "annotations"):
        for key, value in pod.meta.at(side).entries():
            if key.startswith(PREFIX) and not isinstance(value.value, str | None):
                shown = str(value.value).lower() if isinstance(value.value, bool) else value.value
                yield RuleMatch(value, f'{key}: the API server takes only texts here: write "{shown}"')
    obj = _wire(pod)
    if obj is None:
        return
    known = set(options_of(obj.metadata).problems)
    for problem in problems_of(obj):
        if problem not in known and (ours or problem.field.startswith("metadata.")):
            yield _match(pod.field, problem, guess=not ours)


def _of_whole(whole: Field, facts: Facts) -> Iterator[RuleMatch]:
    dialect = _DIALECTS.get(group_kind(whole.value))
    if dialect is not None:
        yield from _of_group(whole, dialect, facts)
        return
    pods = [
        pod for pod in templates_of(whole) if _is_ours(pod) or _is_marked(pod.meta) or _is_marked(whole.at("metadata"))
    ]
    guess = not any(_is_ours(pod) for pod in pods)
    owned: list[WorkloadOptions] = []
    for pod in pods:
        obj = _wire(pod, _GROUP)
        if obj is None:
            continue
        own = replace(options_of(obj.metadata), problems=())
        member = membership(obj, own, None)
        if member is None:
            owned.append(own)
        elif own.gang and member.id.endswith(f"/{own.gang}") and _is_first(pod, _of_gang(facts, member)[0]):
            for problem in _problems(named(member), _of_gang(facts, member)[1]):
                yield _match(pod.field, problem, guess=guess)
    if owned:
        yield from _of_owned(whole, pods[0], owned, guess=guess)


def _is_first(pod: Template, whole: Field | None) -> bool:
    return whole is not None and whole.value == pod.whole.value


def _of_owned(whole: Field, pod: Template, owned: list[WorkloadOptions], *, guess: bool) -> Iterator[RuleMatch]:
    """The problems of an object whose pods name no gang."""
    declared = declared_by(whole)
    if declared is None or declared.alone:
        theirs = replace(declared.options, problems=()) if declared is not None else NOTHING
        for place, options in (*((pod.field, one) for one in dict.fromkeys(owned)), (whole, theirs)):
            if (problem := lonely(options)) is not None:
                yield _match(place, problem, guess=guess)
        return
    for problem in _problems(declared, owned):
        # The fields of the object's own numbers begin with its name.
        field = problem.field.rpartition(" ")[2]
        place = whole if whole.at(*_steps(field)) or not field.startswith("metadata.") else pod.field
        yield _match(place, replace(problem, field=field), guess=guess)


def _of_group(whole: Field, dialect: Dialect[Any], facts: Facts) -> Iterator[RuleMatch]:
    try:
        declared = dialect.declare(msgspec.convert(_without_nulls(whole.value), dialect.kind))
    except msgspec.ValidationError:
        return
    if not declared.gang.name:
        return
    member = Membership(declared.gang.id, declared.gang.namespace, declared.gang.name)
    _, options, ours = _of_gang(facts, member)
    if not ours and not _is_marked(whole.at("metadata")):
        return
    for problem in _problems(declared, options):
        yield _match(whole, problem, guess=not ours)


def _problems(declared: Declared, options: Sequence[WorkloadOptions]) -> Iterator[Problem]:
    """The problems of the gangs of a declared workload, each once."""
    declared = replace(declared, options=replace(declared.options, problems=()))
    yield from dict.fromkeys(gang.problem for gang in records(declared, options) if gang.problem is not None)
    queues = sorted({one.queue for one in options if one.queue})
    if len(queues) > 1:
        yield Problem(f"metadata.labels[{QUEUE_LABEL}]", " and ".join(queues), Reason.QUEUES_MIXED.text)


def _of_gang(facts: Facts, member: Membership) -> tuple[Field | None, list[WorkloadOptions], bool]:
    """Of a gang: the first object with pods of it, the options of its pods, and whether one is of this scheduler."""
    return _gangs(facts).get(member.id, (None, [], False))


@lru_cache(maxsize=4)
def _gangs(facts: Facts) -> dict[str, tuple[Field | None, list[WorkloadOptions], bool]]:
    found: dict[str, tuple[Field | None, list[WorkloadOptions], bool]] = {}
    for whole in facts.objects:
        for pod in templates_of(whole):
            obj = _wire(pod, _GROUP)
            member = membership(obj, options_of(obj.metadata), None) if obj is not None else None
            if obj is not None and member is not None:
                first, options, ours = found.get(member.id, (whole, [], False))
                options.append(options_of(obj.metadata))
                found[member.id] = first, options, ours or _is_ours(pod)
    return found


def _is_ours(pod: Template) -> bool:
    return pod.spec.at("schedulerName").text == _OURS


def _is_marked(meta: Field) -> bool:
    return any(key.startswith(PREFIX) for side in ("labels", "annotations") for key, _ in meta.at(side).entries())


def _wire(pod: Template, *fields: str) -> Pod | None:
    """The pod of a template as the scheduler decodes it, of its spec these fields alone if there are any; None if the
    API server refuses it."""
    meta = {side: {key: one.text for key, one in pod.meta.at(side).entries()} for side in ("labels", "annotations")}
    named = {key: pod.whole.at("metadata", key).text for key in ("namespace", "name")}
    spec = {key: pod.spec.at(key).value for key in fields} if fields else pod.spec.value or {}
    try:
        return msgspec.convert({"metadata": named | meta, "spec": _without_nulls(spec)}, Pod)
    except msgspec.ValidationError:
        return None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _match(below: Field, problem: Problem, *, guess: bool) -> RuleMatch:
    value = f" {problem.value!r}" if problem.value else ""
    field = below.at(*_steps(problem.field))
    return RuleMatch(field, f"{field.name}{value}: {problem.rule}", guess=guess)


def _steps(field: str) -> Iterator[str | int]:
    for key, bracketed in _STEP.findall(field):
        step = _SHORT.get(key, key) or bracketed
        yield int(step) if bracketed.isdecimal() else step


_POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: infer-0
  labels: {{team: vision}}
  annotations: {{{0}}}
spec:
  schedulerName: dovetail
  priorityClassName: batch
  restartPolicy: Never
  containers:
  - name: infer
    image: registry.example.com/infer:1.4
    resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""

RULES = (
    Rule(
        id="G46",
        level=Severity.ERROR,
        title="The scheduler refuses what the pod, or its gang, asks for",
        effect="The pod waits for good, with the reason `InvalidInput` and this message, or the API server refuses it.",
        bad=_POD.format('dovetail.dev/gpu-fraction: "0.5", dovetail.dev/gpu-memory: 8Gi'),
        good=_POD.format("dovetail.dev/gpu-memory: 8Gi"),
        template=_of_pod,
        whole=_of_whole,
        backstop=True,
        source="docs/reference/annotations.md, docs/reference/gangs.md",
    ),
)
