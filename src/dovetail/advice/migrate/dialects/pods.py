# SPDX-License-Identifier: Apache-2.0
"""Settings of pods that several dialects share: the scheduler, the queue, the gang, GPU shares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from dovetail.advice.lint.edits import Edit, drop, put, rename
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template, count, templates_of
from dovetail.advice.migrate.step import Left, MigrationStep, group_of, left, without_status
from dovetail.core.model import GPU, SHARED_GPU
from dovetail.core.queues.types import QUEUE_LABEL
from dovetail.kube.gangs.owners import OWNER_KINDS
from dovetail.kube.translate.annotation_values import NAME, level
from dovetail.kube.translate.annotations import PREFIX

OURS = "dovetail"
NATIVE_VERSION = "scheduling.k8s.io/v1beta1"
READ = "Dovetail reads it unchanged while its definition is in the cluster; --to native converts it"
"""The message about a PodGroup that stays."""
_NOBODYS = ("", "default-scheduler")
_LABELLED = {(owner.resource.group, owner.resource.kind) for owner in OWNER_KINDS} | {("", "Pod")}
"""Kinds with a label that names the queue of their pods."""
_SIDES = ("limits", "requests")


def scheduled(
    pod: Template, schedulers: Iterable[str], *, marked: bool, lost: Iterable[Left] = ()
) -> Iterator[MigrationStep]:
    """The step that sets Dovetail's schedulerName: for a pod of one of these schedulers, or for a `marked` pod with the
    default scheduler. `lost` are settings that the other scheduler alone reads."""
    name = pod.spec.at("schedulerName")
    if name.text in schedulers or (marked and name.text in _NOBODYS):
        yield MigrationStep(name, f"schedulerName is {OURS}", (put(name, OURS),), left=tuple(lost))


def lost_of(steps: Iterable[MigrationStep]) -> tuple[Left, ...]:
    """What the steps leave: it is reported with the schedulerName, without which it is another's."""
    return tuple(Left(one.field, one.message) for one in steps if not one.edits)


def without(mapping: Field, *names: str) -> tuple[Edit, ...]:
    """The edits that remove keys from a mapping, or the whole mapping if it has no other keys."""
    there = [name for name in names if mapping.at(name)]
    if there and len(there) == sum(1 for _ in mapping.entries()):
        return (drop(mapping),)
    return tuple(drop(mapping.at(name)) for name in there)


def annotated(meta: Field, **values: str | None) -> tuple[Edit, ...]:
    """The edits that write Dovetail's annotations. In the names of the arguments, _ stands for -."""
    annotations = meta.at("annotations")
    return tuple(
        put(annotations.at(PREFIX + name.replace("_", "-")), value)
        for name, value in values.items()
        if value is not None
    )


def moved(whole: Field, old: Field, name: str, message: str) -> MigrationStep:
    """The step that replaces another dialect's label or annotation for the queue, of an object or of its pod template,
    with Dovetail's queue label."""
    meta = Field(_value(whole, old.path[:-2]), old.path[:-2])
    own = old.path[: len(whole.path) + 1] == (*whole.path, "metadata")
    if NAME.fullmatch(name) is None:
        return left(old, f"{old.value} is not a valid queue name: write the label {QUEUE_LABEL}")
    if own and (group_of(whole), whole.at("kind").text) not in _LABELLED:
        places = [pod.meta.at("labels", QUEUE_LABEL) for pod in templates_of(whole)]
        if not places:
            return left(old, f"write the label {QUEUE_LABEL}: {name} in the pod template")
    else:
        places = [meta.at("labels", QUEUE_LABEL)]
    if any(place and place.value != name for place in places):
        return left(old, f"{message}, but {QUEUE_LABEL} has another value: drop one of them")
    if places[0].path[:-1] == old.path[:-1] and not places[0]:
        edits: tuple[Edit, ...] = (rename(old, QUEUE_LABEL),)
        edits += (put(places[0], name),) if name != old.value else ()
    else:
        edits = (*(put(place, name) for place in places), *without(meta.at(str(old.path[-2])), old.name))
    return MigrationStep(old, f"{message}: the label {QUEUE_LABEL}: {name}", edits)


def _value(whole: Field, path: tuple[str | int, ...]) -> Any:
    return whole.at(*path[len(whole.path) :]).value


def topology(meta: Field, old: Field, key: str, label: str) -> MigrationStep:
    """The step that replaces an annotation that names a node label with Dovetail's annotation `key`."""
    place = meta.at("annotations", PREFIX + key)
    if not level(label):
        return left(old, f"{old.value!r} is not a known node label: write {place.name} with one")
    if place:
        return left(old, f"{place.name} exists already: drop one of them")
    changed = (put(place, label),) if label != old.value else ()
    return MigrationStep(old, f"{old.name} is {place.name}: {label}", (rename(old, place.name), *changed))


def native(whole: Field, minimum: Field, left_behind: Iterable[Left] = (), required: str = "") -> MigrationStep:
    """The step that replaces another PodGroup with that of Kubernetes."""
    least = minimum.whole
    if least is None or least < 1:
        return left(minimum, "must be a whole number from 1 for a PodGroup of Kubernetes")
    spec: dict[str, Any] = {"schedulingPolicy": {"gang": {"minCount": least}}}
    if required:
        spec["schedulingConstraints"] = {"topology": [{"key": required}]}
    version = whole.at("apiVersion")
    message = f"{version.text} PodGroup is {NATIVE_VERSION}, with minCount {least}"
    edits = (*without_status(whole), put(whole.at("spec"), spec), put(version, NATIVE_VERSION))
    return MigrationStep(version, message, edits, left=tuple(left_behind))


def native_member(pod: Template, mapping: Field, old: Field, found: bool) -> MigrationStep:
    """The step that replaces a pod's reference to its group with `schedulingGroup`. `found`: the group is among the
    files, and can be migrated to Kubernetes' PodGroup."""
    if not found:
        return left(old, f"its PodGroup {old.value}, with a minMember, is not among the files: migrate both together")
    place = pod.spec.at("schedulingGroup", "podGroupName")
    edits = (put(place, old.value), *without(mapping, old.name))
    return MigrationStep(old, f"{old.name} is spec.schedulingGroup.podGroupName: {old.value}", edits)


class ShareNames(Struct, frozen=True):
    """The resource names of GPU shares: the number of GPUs, the memory of each in MiB, the memory in percent ("" if the
    dialect has none), and the compute in percent. `enforcer` is the component that enforces the shares."""

    number: str
    memory: str
    percent: str
    cores: str
    enforcer: str

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(name for name in (self.memory, self.percent, self.cores) if name)


def shares(pod: Template, names: ShareNames) -> Iterator[MigrationStep]:
    """The step for the GPU shares of a pod. Dovetail's annotation is per pod, so all containers must request the same
    share."""
    asking = [one for one in pod.all_containers if any(_amount_of(one, name) for name in names.parts)]
    if names.number != GPU:
        asking += [one for one in pod.all_containers if _amount_of(one, names.number) and one not in asking]
    if not asking:
        return
    field = next(found for name in (*names.parts, names.number) if (found := _amount_of(asking[0], name)))
    needs = {_need(one, names) for one in asking}
    if len(needs) > 1:
        message = "the containers request different parts of a GPU, and the annotation applies to all: split the pod"
        for one in asking:
            yield from (
                left(found, message) for name in (*names.parts, names.number) if (found := _amount_of(one, name))
            )
        return
    key, value = needs.pop()
    if key == "?":
        yield left(field, f"{value} is not a valid amount")
        return
    resource = SHARED_GPU if key else GPU
    edits = tuple(edit for one in asking for edit in _asked(one, names, resource))
    edits += annotated(pod.meta, **{key: value}) if key else ()
    lost = []
    if key:
        lost.append(Left(field, f"{names.enforcer} enforced the parts; Dovetail only counts them. If the nodes share "
                                "by MPS, dovetail.dev/gpu-isolation: memory enforces them"))  # fmt: skip
    for one in asking:
        number = _amount_of(one, names.number)
        if key and number is not None and (count(number) or 0) > 1:
            message = (
                f"{number.value} replicas are as many cards only by time-slicing without failRequestsGreaterThanOne"
            )
            lost.append(Left(number, f"{message}: split the pod, or configure some nodes so"))
        cores = _amount_of(one, names.cores)
        if cores:
            lost.append(Left(cores, f"{names.cores}: {cores.value} limited the compute: request a MIG profile instead"))
    what = f"dovetail.dev/{key.replace('_', '-')}: {value}" if key else "the whole GPU"
    yield MigrationStep(
        field, f"a part of a GPU: {resource}, {what}" if key else f"{what}: {resource}", edits, left=tuple(lost)
    )


def _amount_of(container: Field, name: str) -> Field | None:
    """The limit of the resource, else its request."""
    if not name:
        return None
    found = [container.at("resources", side, name) for side in _SIDES]
    return next((field for field in found if field), None)


def _need(container: Field, names: ShareNames) -> tuple[str, str]:
    """(annotation with _ for -, value); empty strings for a whole GPU, "?" if the amount is invalid."""
    memory, percent = _amount_of(container, names.memory), _amount_of(container, names.percent)
    for field in (memory, percent):
        if field is not None and (count(field) is None or (count(field) or 0) < 0):
            return "?", str(field.value)
    mib, parts = count(memory) if memory else 0, count(percent) if percent else 0
    if mib:
        return "gpu_memory", f"{mib}Mi"
    if parts and parts < 100:
        return "gpu_fraction", f"{parts / 100:g}"
    return "", ""


def _asked(container: Field, names: ShareNames, resource: str) -> Iterator[Edit]:
    """The edits that request the number of GPUs as `resource` and remove the resources of the dialect."""
    limits = container.at("resources", "limits")
    if not _amount_of(container, names.number):
        yield put(limits.at(resource), "1")
    for side in _SIDES:
        amounts = container.at("resources", side)
        number = amounts.at(names.number)
        if number and names.number != resource:
            yield rename(number, resource)
            if side == "requests" and not limits.at(names.number):
                yield put(limits.at(resource), number.value)
        gone = [name for name in names.parts if amounts.at(name)]
        kept = bool(number) or (side == "limits" and not _amount_of(container, names.number))
        yield from (tuple(drop(amounts.at(name)) for name in gone) if kept else without(amounts, *gone))
