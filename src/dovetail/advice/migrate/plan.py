# SPDX-License-Identifier: Apache-2.0
"""The steps to migrate a cluster, in order, each with the command that verifies it.

The steps depend on the migrated files. Workloads move queue by queue, together with their nodes: two schedulers on the
same nodes would allocate the same GPUs twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template, templates_of
from dovetail.advice.migrate.dialects import DIALECTS
from dovetail.advice.migrate.dialects.pods import OURS
from dovetail.advice.migrate.engine import MigrationNote
from dovetail.advice.migrate.step import MigrationOutcome, group_of
from dovetail.core.model import GPU, SHARED_GPU
from dovetail.core.queues.types import QUEUE_LABEL
from dovetail.kube.gangs.dialects import COSCHEDULING, VOLCANO

_TEST_POD = "dovetail-first"


class PlanStep(Struct, frozen=True):
    """A step. `run` are its commands; the step is done when the command `check` prints what `expect` describes."""

    title: str
    why: str
    run: tuple[str, ...]
    check: str
    expect: str


def plan(made: Iterable[Field], notes: Iterable[MigrationNote], arguments: Sequence[str]) -> tuple[PlanStep, ...]:
    """All steps, in order, for the migrated objects `made`, the notes of the migration, and the options and paths of
    the command."""
    objects, found = tuple(made), tuple(notes)
    return (
        *_nodes(objects), *_kinds(objects), *_scheduler(), *_files(found, arguments), *_queue(objects), *_work(found)
    )  # fmt: skip


def _nodes(objects: tuple[Field, ...]) -> Iterator[PlanStep]:
    yield PlanStep(
        "the device plugin, or the GPU operator, on every GPU node",
        "nothing is scheduled to GPUs that the kubelet does not offer; the agent of Dovetail is one, too",
        (),
        r"kubectl get nodes -o custom-columns='NODE:.metadata.name,GPUS:.status.allocatable.nvidia\.com/gpu'",
        "a number for each GPU node; `dovetail doctor` reports why there is none",
    )
    yield PlanStep(
        "the labels of the GPUs",
        "they have model and memory; GPU Feature Discovery writes them, or the agent with --labels",
        (),
        "kubectl get nodes -L nvidia.com/gpu.product,nvidia.com/gpu.memory,nvidia.com/gpu.count",
        "all three for each GPU node",
    )
    resources = {name for pod in _pods(objects) for one in pod.all_containers
                 for name, _ in one.at("resources", "limits").entries()}  # fmt: skip
    if SHARED_GPU in resources:
        yield PlanStep(
            f"GPUs that are shared, as {SHARED_GPU}",
            "pods of these files ask for parts of GPUs: set sharing with renameByDefault in the device plugin's "
            "configuration",
            (),
            "kubectl get nodes -L nvidia.com/gpu.replicas,nvidia.com/gpu.sharing-strategy",
            "replicas above 1, and time-slicing or mps, for the nodes that share",
        )


def _kinds(objects: tuple[Field, ...]) -> Iterator[PlanStep]:
    for there, title, why, check, expect in _NEEDS:
        if any(there(whole) for whole in objects):
            yield PlanStep(title, why, (), check, expect)


def _is(group: str, *kinds: str) -> Callable[[Field], bool]:
    return lambda whole: group_of(whole) == group and whole.at("kind").text in kinds


_READ_AS_IT_IS = "these files have PodGroups of it, which Dovetail reads while they are defined"
_NEEDS: tuple[tuple[Callable[[Field], bool], str, str, str, str], ...] = (
    (
        _is("dovetail.dev", "GPUStack"),
        "what becomes of NVIDIA's stack",
        "dovetail install --stack FILE installs the GPUStack, and takes over node by node what takeOver names",
        "dovetail install --plan --stack FILE",
        "each component, what becomes of it, and what its owner has to change first",
    ),
    (
        _is("resource.k8s.io", "ResourceClaimTemplate", "ResourceClaim"),
        "NVIDIA's DRA driver",
        "these files claim devices; on one node either the driver or a device plugin may allocate GPUs",
        "kubectl get deviceclasses,resourceslices",
        "the classes that the claims name, and a slice for each GPU node",
    ),
    (
        _is("scheduling.k8s.io", "PodGroup"),
        "PodGroups of Kubernetes",
        "switch on the feature gate GenericWorkload and the API scheduling.k8s.io/v1beta1",
        "kubectl api-resources --api-group=scheduling.k8s.io",
        "podgroups",
    ),
    (
        _is("jobset.x-k8s.io", "JobSet"),
        "JobSet",
        "jobs of several tasks are JobSets in these files",
        "kubectl get crd jobsets.jobset.x-k8s.io",
        "the definition",
    ),
    *(
        (
            _is(dialect.resources[0].group, "PodGroup"),
            f"the definition of {dialect.resources[0].group}, kept",
            _READ_AS_IT_IS,
            f"kubectl get crd podgroups.{dialect.resources[0].group}",
            "the definition",
        )
        for dialect in (COSCHEDULING, VOLCANO)
    ),
)


def _scheduler() -> Iterator[PlanStep]:
    yield PlanStep(
        "Dovetail, beside the schedulers that are there",
        "it touches only pods that name it; keep the GPU nodes of both apart until the old one is gone",
        ("kubectl apply -k deploy/crds/", "kubectl apply -k deploy/"),
        "kubectl -n dovetail-system rollout status deployment/dovetail-scheduler",
        "successfully rolled out",
    )
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": _TEST_POD},
        "spec": {
            "schedulerName": OURS,
            "restartPolicy": "Never",
            "containers": [
                {"name": "main", "image": "ubuntu", "command": ["nvidia-smi"], "resources": {"limits": {GPU: 1}}}
            ],
        },
    }
    yield PlanStep(
        "a first pod with one GPU",
        "it proves scheduler, plugin, runtime and driver at once",
        (f"kubectl apply -f - <<< '{json.dumps(pod)}'",),
        f"kubectl logs {_TEST_POD}",
        f"one GPU; while it is Pending, `dovetail why default/{_TEST_POD}` explains it. Then "
        f"kubectl delete pod {_TEST_POD}",
    )


def _queue(objects: tuple[Field, ...]) -> Iterator[PlanStep]:
    named = [whole.at("metadata", "name").text for whole in objects if _is("dovetail.dev", "Queue")(whole)]
    used = [whole.at("metadata", "labels", QUEUE_LABEL).text for whole in objects]
    used += [pod.meta.at("labels", QUEUE_LABEL).text for pod in _pods(objects)]
    first = next((name for name in used if name), "") or next(iter(named), "default")
    written = "it is in these files" if first in named else "no file has it: write it"
    yield PlanStep(
        f"one queue: {first}",
        f"{written}; its parents, and limits that are low at first, with it",
        (),
        f"kubectl get queues {first}",
        "READY True; `dovetail share` shows what is due to it",
    )


def _files(notes: tuple[MigrationNote, ...], arguments: Sequence[str]) -> Iterator[PlanStep]:
    left = sum(one.outcome is MigrationOutcome.LEFT for one in notes)
    yield PlanStep(
        "the files",
        f"{left} of their fields have no equivalent: read the notes about them first"
        if left
        else "all is carried over",
        (f"dovetail migrate --write {' '.join(arguments)}",),
        f"dovetail lint {' '.join(one for one in arguments if not one.startswith('--'))}",
        "no error",
    )


def _work(notes: tuple[MigrationNote, ...]) -> Iterator[PlanStep]:
    yield PlanStep(
        "one job of that queue",
        "the smallest that shows gang, queue and GPUs as they were meant",
        ("kubectl apply -f FILE",),
        "dovetail why POD",
        "bound, or a reason that names what is missing",
    )
    yield PlanStep(
        "the rest, queue by queue",
        "GPU nodes follow their work: drain those of the old scheduler, or wait until its jobs end",
        ("kubectl apply -f FILE...",),
        "dovetail queue",
        "the waiting jobs, and their expected starts",
    )
    met = {one.dialect for one in notes}
    for dialect in DIALECTS:
        for name in dialect.schedulers if dialect.name in met else ():
            yield PlanStep(
                f"the scheduler {name}, taken away",
                "once nothing names it any more; objects that have no equal go with it",
                (),
                f"kubectl get pods -A --field-selector=spec.schedulerName={name}",
                "No resources found",
            )


def _pods(objects: Iterable[Field]) -> Iterator[Template]:
    for whole in objects:
        yield from templates_of(whole)
