# SPDX-License-Identifier: Apache-2.0
"""The edits of a manifest that carry out advice.

Rules: a manifest is that of a job if its name is, and its namespace if it has one. Only the container that requests
GPUs is changed, and only if a pod template has one such container: which of several is meant nobody can know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction

from dovetail.advice.lint.edits import Edit, put, rename
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template, amount, count, templates_of
from dovetail.advice.lint.rewrite import NotRewritten, rewritten
from dovetail.advice.lint.source import SourceDocument
from dovetail.advice.sizing.rule import ChangeKind, JobAdvice, SizeChange
from dovetail.advice.sizing.thresholds import CPUS_PER_GPU
from dovetail.core.devices.mig.geometry import RESOURCE_PREFIX
from dovetail.core.model import GPU
from dovetail.core.quantities import parse

_MEMORY, _FRACTION = "dovetail.dev/gpu-memory", "dovetail.dev/gpu-fraction"
_SHARED = "nvidia.com/gpu.shared"
_AMOUNTS = ("limits", "requests")


def edits_for(whole: Field, change: SizeChange) -> tuple[Edit, ...]:
    """The edits of an object; none where the change does not apply to it."""
    found: list[Edit] = []
    for pod in templates_of(whole):
        edits, requested = _EDITS[change.kind]
        containers = [one for one in pod.containers if any(_entries(one, requested))]
        if len(containers) == 1:
            found += edits(pod, containers[0], change)
    return tuple(found)


def is_of(whole: Field, job: JobAdvice) -> bool:
    """Whether the object is the manifest of the job."""
    namespace, _, name = job.job.partition("/")
    return (
        whole.at("metadata", "name").text == name and (whole.at("metadata", "namespace").text or namespace) == namespace
    )


def fixed_text(document: SourceDocument, jobs: Iterable[JobAdvice]) -> tuple[str, list[str], list[str]]:
    """The text of a document in which the advice for its jobs is carried out; the jobs whose advice was, and those
    whose text cannot be changed."""
    text, done, refused = document.text, [], []
    advised = [(job, one.change) for job in jobs for one in job.advice if one.change is not None]
    for whole in document.objects():
        for job, change in advised:
            edits = edits_for(whole, change) if is_of(whole, job) else ()
            if not edits:
                continue
            try:
                text = rewritten(text, edits)
                done.append(job.job)
            except NotRewritten:
                refused.append(job.job)
    return text, done, refused


def _gpus(container: Field) -> int:
    """The whole GPUs that it requests."""
    resources = container.at("resources")
    return count(resources.at("limits", GPU)) or count(resources.at("requests", GPU)) or 0


def _entries(container: Field, requested: str = GPU) -> Iterator[Field]:
    """The fields that request GPUs, or parts whose resource begins so."""
    for kind in _AMOUNTS:
        for name, field in container.at("resources", kind).entries():
            if (name == GPU if requested == GPU else name.startswith(requested)) and count(field):
                yield field


def _fewer(pod: Template, container: Field, change: SizeChange) -> Iterator[Edit]:
    if _gpus(container) > change.amount:
        for field in _entries(container):
            yield put(field, str(change.amount) if isinstance(field.value, str) else change.amount)


def _instance(pod: Template, container: Field, change: SizeChange) -> Iterator[Edit]:
    if _gpus(container) == 1:
        for field in _entries(container):
            yield rename(field, change.resource)


def _shared(pod: Template, container: Field, change: SizeChange) -> Iterator[Edit]:
    if _gpus(container) == 1:
        yield from _instance(pod, container, change)
        yield put(pod.meta.at("annotations", _MEMORY), f"{change.amount}Mi")


def _other_instance(pod: Template, container: Field, change: SizeChange) -> Iterator[Edit]:
    for field in _entries(container, RESOURCE_PREFIX):
        yield rename(field, change.resource)


def _smaller_part(pod: Template, container: Field, change: SizeChange) -> Iterator[Edit]:
    """By the annotation that the pod has; of a share that the node divides evenly it has none."""
    for key, value in ((_FRACTION, change.value), (_MEMORY, f"{change.amount}Mi")):
        field = pod.meta.at("annotations", key)
        if field:
            yield put(field, value)
            return


def _cpus(pod: Template, container: Field, change: SizeChange) -> Iterator[Edit]:
    resources = container.at("resources")
    known = [field for kind in _AMOUNTS if (field := resources.at(kind, "cpu"))]
    if not known:
        yield put(resources.at("requests", "cpu"), str(CPUS_PER_GPU * _gpus(container)))
    for field in known:
        cpus = amount(field)
        if cpus:
            yield put(field, _quantity(cpus * change.amount))


def _quantity(cpus: Fraction) -> str:
    return str(cpus) if cpus.denominator == 1 else f"{int(cpus * 1000)}m"


def _host(pod: Template, container: Field, change: SizeChange) -> Iterator[Edit]:
    """Requests alone: limits stay as they are."""
    resources = container.at("resources")
    cpus = _quantity(Fraction(change.amount, 1000)) if change.amount else ""
    for name, value in (("cpu", cpus), ("memory", change.value)):
        requested = resources.at("requests", name)
        now = amount(requested or resources.at("limits", name))
        if value and now is not None and now > parse(value):
            yield put(requested, value)


def _selected(pod: Template, container: Field, change: SizeChange) -> Iterator[Edit]:
    field = pod.spec.at("nodeSelector", change.key)
    if field.value != change.value:
        yield put(field, change.value)


def _annotated(pod: Template, container: Field, change: SizeChange) -> Iterator[Edit]:
    field = pod.meta.at("annotations", change.key)
    if field.value != change.value:
        yield put(field, change.value)


_EDITS: Mapping[ChangeKind, tuple[Callable[[Template, Field, SizeChange], Iterator[Edit]], str]] = {
    "gpus": (_fewer, GPU), "mig": (_instance, GPU), "instance": (_other_instance, RESOURCE_PREFIX),
    "share": (_shared, GPU), "part": (_smaller_part, _SHARED), "cpu": (_cpus, GPU), "host": (_host, GPU),
    "select": (_selected, GPU),
    "annotate": (_annotated, GPU),
}  # fmt: skip
"""With the resource that the container requests, or how its name begins."""
