# SPDX-License-Identifier: Apache-2.0
"""What is particular about a kind when it is written: defaults, first status, and what is refused.

A kind that is not in `RULES` is stored as it comes. Sources: the strategies in k8s.io/kubernetes/pkg/registry and the
validation in k8s.io/kubernetes/pkg/apis, of which only what schedulers and their tools meet is known here.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec import Struct

from dovetail.apiserver import claims, pods
from dovetail.apiserver.failures import Cause, missing, wrong
from dovetail.apiserver.objects import (
    Object,
    labels_of,
    object_at,
    objects_at,
    text_at,
    value_at,
    with_condition,
    with_metadata,
    with_status,
)

MOST_OF_A_JOB = 100_000
"""Pods of a job. Upstream has this bound for indexed jobs alone."""
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"(?=.{0,63}$)([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_QUALIFIED_NAME = re.compile(rf"({_SUBDOMAIN.pattern}/)?(?=.{{1,63}}$)[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_LONGEST_KEY = 253 + 1 + 63
_LABEL_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character"
)
_KEY_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character, after an optional DNS subdomain and '/'"
)
_NAME_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character"
)


def _unchanged(obj: Object) -> Object:
    return obj


def _born_without_status(obj: Object, _: float) -> Object:
    return {name: value for name, value in obj.items() if name != "status"}


def _no_problems(_: Object) -> list[Cause]:
    return []


def _no_update_problems(_: Object, __: Object) -> list[Cause]:
    return []


class Rules(Struct, frozen=True):
    """`born` gives a new object its first status; `problems` looks at every new or updated object."""

    defaulted: Callable[[Object], Object] = _unchanged
    born: Callable[[Object, float], Object] = _born_without_status
    problems: Callable[[Object], list[Cause]] = _no_problems
    update_problems: Callable[[Object, Object], list[Cause]] = _no_update_problems
    status_problems: Callable[[Object, Object], list[Cause]] = _no_update_problems
    prioritised: bool = False
    """Whether the spec gets its priority from a PriorityClass."""
    sticky_status: tuple[str, ...] = ()
    """Status fields that an update keeps by leaving them out."""


def metadata_problems(obj: Object) -> list[Cause]:
    """The problems of name, labels and annotations of any object."""
    name, found = text_at(obj, "metadata.name"), []
    if not name:
        found.append(missing("metadata.name", "name or generateName is required"))
    elif len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
        found.append(wrong("metadata.name", name, _NAME_RULE))
    for field in ("labels", "annotations"):
        for key in object_at(obj, f"metadata.{field}"):
            if len(key) > _LONGEST_KEY or not _QUALIFIED_NAME.fullmatch(key):
                found.append(wrong(f"metadata.{field}", key, _KEY_RULE))
    for value in labels_of(obj).values():
        if not isinstance(value, str) or not _LABEL_VALUE.fullmatch(value):
            found.append(wrong("metadata.labels", value, _LABEL_RULE))
    return found


def _named_namespace(namespace: Object) -> Object:
    labels = labels_of(namespace) | {"kubernetes.io/metadata.name": text_at(namespace, "metadata.name")}
    return with_metadata(namespace, labels=labels)


def _phase(phase: str) -> Callable[[Object, float], Object]:
    return lambda obj, _: obj | {"status": {"phase": phase}}


def _event_problems(event: Object) -> list[Cause]:
    """An event with an eventTime is a new-style one and has to name its reporter and its action."""
    namespace, about = text_at(event, "metadata.namespace"), text_at(event, "involvedObject.namespace")
    new_style = bool(text_at(event, "eventTime"))
    homes = ("default", "kube-system") if new_style else ("default",)
    found = []
    if (about != namespace and not new_style and about) or (not about and namespace not in homes):
        found.append(wrong("involvedObject.namespace", about, "does not match event.namespace"))
    if new_style:
        required = ("reportingComponent", "reportingInstance", "action", "reason")
        found += [missing(field) for field in required if not text_at(event, field)]
        if len(text_at(event, "message")) > 1024:
            found.append(wrong("message", "", "can have at most 1024 characters"))
    return found


def _lease_problems(lease: Object) -> list[Cause]:
    found = []
    for field, least, why in (
        ("leaseDurationSeconds", 1, "must be greater than 0"),
        ("leaseTransitions", 0, "must be greater than or equal to 0"),
    ):
        value = value_at(lease, f"spec.{field}")
        if isinstance(value, int) and value < least:
            found.append(wrong(f"spec.{field}", value, why))
    return found


def _defaulted_job(job: Object) -> Object:
    spec = {"parallelism": 1, "backoffLimit": 6, "completionMode": "NonIndexed", "suspend": False}
    return job | {"spec": spec | object_at(job, "spec")}


def _job_problems(job: Object) -> list[Cause]:
    found = []
    for field in ("parallelism", "completions", "backoffLimit"):
        value = value_at(job, f"spec.{field}")
        if value is not None and (not isinstance(value, int) or not 0 <= value <= MOST_OF_A_JOB):
            found.append(wrong(f"spec.{field}", value, f"must be a whole number from 0 to {MOST_OF_A_JOB}"))
    return found


def _defaulted_daemon_set(one: Object) -> Object:
    rolling = {"maxUnavailable": 1, "maxSurge": 0}
    return _with_strategy(one, "updateStrategy", rolling, {"revisionHistoryLimit": 10})


def _defaulted_deployment(one: Object) -> Object:
    rolling = {"maxUnavailable": "25%", "maxSurge": "25%"}
    return _with_strategy(one, "strategy", rolling, {"replicas": 1, "revisionHistoryLimit": 10})


def _with_strategy(one: Object, field: str, rolling: Object, defaults: Object) -> Object:
    spec = defaults | object_at(one, "spec")
    strategy: Object = {"type": "RollingUpdate"} | object_at(spec, field)
    if strategy["type"] == "RollingUpdate":
        strategy["rollingUpdate"] = rolling | object_at(strategy, "rollingUpdate")
    return one | {"spec": spec | {field: strategy}}


def _defaulted_group(group: Object) -> Object:
    return group | {"spec": {"disruptionMode": {"single": {}}} | object_at(group, "spec")}


def _definition_problems(definition: Object) -> list[Cause]:
    wanted = f"{text_at(definition, 'spec.names.plural')}.{text_at(definition, 'spec.group')}"
    name = text_at(definition, "metadata.name")
    rule = f'must be spec.names.plural+"."+spec.group: {wanted}'
    found = [] if name == wanted else [wrong("metadata.name", name, rule)]
    versions = objects_at(definition, "spec.versions")
    if sum(version.get("storage") is True for version in versions) != 1:
        found.append(wrong("spec.versions", len(versions), "must have exactly one version marked as storage version"))
    return found


def _established(definition: Object, now_s: float) -> Object:
    stored = [text_at(v, "name") for v in objects_at(definition, "spec.versions") if v.get("storage") is True]
    names = object_at(definition, "spec.names")
    new = with_status(_born_without_status(definition, now_s), acceptedNames=names, storedVersions=stored)
    accepted = with_condition(new, "NamesAccepted", "True", now_s, "NoConflicts", "no conflicts found")
    return with_condition(
        accepted, "Established", "True", now_s, "InitialNamesAccepted", "the initial names have been accepted"
    )


RULES: dict[str, Rules] = {
    "pods": Rules(
        pods.defaulted, pods.born, pods.problems, pods.update_problems, claims.extended_problems, prioritised=True,
        sticky_status=("qosClass", "resourceClaimStatuses", "extendedResourceClaimStatus"),
    ),
    "namespaces": Rules(_named_namespace, _phase("Active")),
    "persistentvolumeclaims": Rules(born=_phase("Pending")),
    "persistentvolumes": Rules(born=_phase("Available")),
    "events": Rules(problems=_event_problems),
    "leases.coordination.k8s.io": Rules(problems=_lease_problems),
    "jobs.batch": Rules(_defaulted_job, problems=_job_problems),
    "daemonsets.apps": Rules(_defaulted_daemon_set),
    "deployments.apps": Rules(_defaulted_deployment),
    "resourceclaims.resource.k8s.io": Rules(
        claims.defaulted, problems=claims.problems, update_problems=claims.update_problems,
        status_problems=claims.status_problems,
    ),
    "resourceclaimtemplates.resource.k8s.io": Rules(
        claims.defaulted_template, problems=claims.template_problems, update_problems=claims.update_problems,
    ),
    "podgroups.scheduling.k8s.io": Rules(_defaulted_group, prioritised=True),
    "compositepodgroups.scheduling.k8s.io": Rules(_defaulted_group, prioritised=True),
    "customresourcedefinitions.apiextensions.k8s.io": Rules(born=_established, problems=_definition_problems),
}  # fmt: skip
NO_RULES = Rules()
