# SPDX-License-Identifier: Apache-2.0
"""Apache YuniKorn: queues and task groups by labels and annotations of pods.

Sources: https://yunikorn.apache.org/docs: user_guide/labels_and_annotations_in_yunikorn, user_guide/gang_scheduling,
user_guide/queue_config.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from dovetail.advice.lint.edits import drop
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template, templates_of
from dovetail.advice.migrate.dialects.pods import annotated, lost_of, moved, scheduled
from dovetail.advice.migrate.step import MigrationStep, SourceDialect, World, left
from dovetail.kube.translate.annotation_values import NAME

_PREFIX = "yunikorn.apache.org/"
_QUEUE, _APP = _PREFIX + "queue", _PREFIX + "app-id"
_OLD_APP, _OLD_QUEUE = "applicationId", "queue"
_APPS = (_APP, _OLD_APP, "spark-app-selector")
_GROUPS, _GROUP, _POLICY = (_PREFIX + name for name in ("task-groups", "task-group-name", "schedulingPolicyParameters"))
_NO_EQUAL = {
    _POLICY: "a waiting gang holds no resources, and starts as a whole or not at all: drop it",
    _PREFIX + "allow-preemption": "dovetail.dev/preemptible: false keeps pods within the guarantee of their queue",
    _PREFIX + "user.info": "the label dovetail.dev/user names the user of a pod",
    _PREFIX + "namespace.quota": "write a Queue with a limit, and the label dovetail.dev/queue on the namespace",
    _PREFIX
    + "namespace.guaranteed": "write a Queue with a guarantee, and the label dovetail.dev/queue on the namespace",
    _PREFIX + "parentqueue": "write a Queue with a parent",
    _PREFIX + "namespace.max.cpu": "write a Queue with a limit, and the label dovetail.dev/queue on the namespace",
    _PREFIX + "namespace.max.memory": "write a Queue with a limit, and the label dovetail.dev/queue on the namespace",
    _PREFIX + "namespace.enableYuniKorn": "pods choose their scheduler: write schedulerName in their templates",
    _PREFIX + "namespace.generateAppId": "dovetail.dev/gang names the pods that start together",
    _PREFIX + "username": "the label dovetail.dev/user names the user of a pod",
    _PREFIX + "originator": "no pod of a gang is preempted before the others: drop it",
    _PREFIX + "ignore-application": "pods choose their scheduler: write schedulerName in their templates",
    _PREFIX + "placeholder": "YuniKorn wrote it: drop it",
    _PREFIX + "placeholder-task-group": "YuniKorn wrote it: drop it",
}
_CONFIG = "yunikorn-configs"
_QUEUES_YAML = "queues.yaml"
_ROOT = "root."


def _whole(whole: Field, _: World) -> Iterator[MigrationStep]:
    kind, meta = whole.at("kind").text, whole.at("metadata")
    if kind == "ConfigMap" and meta.at("name").text == _CONFIG and whole.at("data", _QUEUES_YAML):
        message = (
            "write a Queue for each, named as its path without root.: guaranteed is guarantee, max is limit; limits of "
            "users and ACLs have no equivalent"
        )
        yield left(whole.at("data", _QUEUES_YAML), message)
    elif kind != "Pod" and not any(templates_of(whole)):
        yield from _rest(meta)
    elif kind != "Pod":
        yield from _queues(whole, meta, marked=False)
        yield from _rest(meta)


def _template(pod: Template, _: World) -> Iterator[MigrationStep]:
    labels, annotations = pod.meta.at("labels"), pod.meta.at("annotations")
    app = next((place.at(name) for place in (labels, annotations) for name in _APPS if place.at(name)), None)
    ours = pod.spec.at("schedulerName").text in YUNIKORN.schedulers
    groups, group = annotations.at(_GROUPS), annotations.at(_GROUP)
    if groups or group:
        yield _gang(pod, app, groups, group)
    queues = list(_queues(pod.whole, pod.meta, marked=ours))
    yield from queues
    yield from _rest(pod.meta)
    # Last: the schedulerName shows that the label `queue` is YuniKorn's.
    marked = bool(groups or group or labels.at(_QUEUE) or labels.at(_APP))
    yield from scheduled(pod, YUNIKORN.schedulers, marked=marked, lost=lost_of(queues))


def _gang(pod: Template, app: Field | None, groups: Field, group: Field) -> MigrationStep:
    """The step for the task groups of an application, which start together."""
    field = groups or group
    if app is None or NAME.fullmatch(app.text) is None:
        return left(field, "no label names the application: write dovetail.dev/gang and dovetail.dev/gang-min")
    least = _least(groups) if groups else None
    if groups and least is None:
        return left(field, "is not a list of task groups with minMember: write dovetail.dev/gang-min")
    annotations = pod.meta.at("annotations")
    edits = annotated(pod.meta, gang=app.text, gang_min=None if least is None else str(least))
    edits += tuple(drop(annotations.at(name)) for name in (_GROUPS, _GROUP) if annotations.at(name))
    return MigrationStep(
        field, f"dovetail.dev/gang: {app.text}" + (f", of at least {least} pods" if least else ""), edits
    )


def _least(groups: Field) -> int | None:
    try:
        counts = [group["minMember"] for group in json.loads(groups.text)]
    except (ValueError, TypeError, KeyError):
        return None
    return sum(counts) if counts and all(isinstance(one, int) and one > 0 for one in counts) else None


def _queues(whole: Field, meta: Field, *, marked: bool) -> Iterator[MigrationStep]:
    for place in ("labels", "annotations"):
        for name in (_QUEUE, _OLD_QUEUE):
            old = meta.at(place, name)
            if old and (name == _QUEUE or marked):
                # Two queues of YuniKorn may have the same last part; names of Dovetail's are unique in the cluster.
                name = old.text.removeprefix(_ROOT)
                path = (
                    ", by its whole path, as queues of other parents may have the same last name" if "." in name else ""
                )
                yield moved(whole, old, name, f"queue {old.value}{path}")


def _rest(meta: Field) -> Iterator[MigrationStep]:
    for place in (meta.at("labels"), meta.at("annotations")):
        for name, field in place.entries():
            if name in (_APP, _OLD_APP):
                yield MigrationStep(field, "stays as a plain label: selectors may use it", understood=True)


YUNIKORN = SourceDialect("YuniKorn", _whole, _template, ("yunikorn",), ("yunikorn.apache.org",), _NO_EQUAL)
