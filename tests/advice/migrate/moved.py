# SPDX-License-Identifier: Apache-2.0
"""Texts migrated, and what Dovetail makes of the result: with the pods that the controllers would make."""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Iterator
from typing import Any

import yaml
from msgspec import Struct

from dovetail.advice.lint.source import documents
from dovetail.advice.migrate.engine import Migrated, migrate
from dovetail.advice.migrate.step import MigrationOutcome, MigrationTarget, World
from dovetail.core import events as ev
from dovetail.core.model import Gang, Pod
from dovetail.core.queues.types import Queue
from dovetail.kube.manifests.cluster import of_documents
from dovetail.kube.manifests.documents import Document
from dovetail.kube.yaml_text import Loader


def migrated(text: str, *targets: MigrationTarget) -> Migrated:
    read = list(documents("test.yaml", textwrap.dedent(text)))
    objects = tuple(whole for each in read for whole in each.objects())
    return migrate(read, World(objects, frozenset(targets)))


def left(found: Migrated) -> list[str]:
    """The paths of what has no equal."""
    return [one.path for one in found.notes if one.outcome is MigrationOutcome.LEFT]


def values(text: str) -> list[Any]:
    return [value for value in yaml.load_all(text, Loader) if value is not None]


class Meant(Struct, frozen=True):
    """The events for the scheduler."""

    pods: dict[str, Pod]
    gangs: dict[str, Gang]
    queues: dict[str, Queue]
    problems: tuple[str, ...]

    @property
    def minimums(self) -> dict[str, int]:
        """Of the gangs that have pods of their own."""
        return {gang.id: gang.min_count for gang in self.gangs.values() if gang.min_count}


def meant(text: str) -> Meant:
    made = [each for value in values(text) for each in (value, *_pods_of(value))]
    read = of_documents([Document("test.yaml", value) for value in made], "dovetail", whole=False)
    pods = {event.pod.name: event.pod for event in read.events if isinstance(event, ev.PodChanged)}
    gangs = {event.gang.id: event.gang for event in read.events if isinstance(event, ev.GangChanged)}
    queues = {event.queue.name: event.queue for event in read.events if isinstance(event, ev.QueueChanged)}
    return Meant(pods, gangs, queues, tuple(map(str, read.problems)))


def _pods_of(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Those that the controllers of Kubernetes and of JobSet make."""
    meta, spec = value["metadata"], value.get("spec") or {}
    if (value["apiVersion"], value["kind"]) == ("batch/v1", "Job"):
        yield from _of_job(meta["name"], meta.get("namespace"), spec, {})
    elif value["kind"] == "JobSet":
        for job in spec["replicatedJobs"]:
            marks = {
                "jobset.sigs.k8s.io/jobset-name": meta["name"],
                "jobset.sigs.k8s.io/replicatedjob-name": job["name"],
            }
            yield from _of_job(f"{meta['name']}-{job['name']}-0", meta.get("namespace"), job["template"]["spec"], marks)
    elif value["kind"] == "Deployment":
        yield _pod(
            meta["name"], meta.get("namespace"), spec["template"], {"kind": "ReplicaSet", "apiVersion": "apps/v1"}
        )


def _of_job(name: str, namespace: str | None, spec: dict[str, Any], marks: dict[str, str]) -> Iterator[dict[str, Any]]:
    for index in range(spec.get("parallelism", 1)):
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name}
        pod = _pod(f"{name}-{index}", namespace, spec["template"], owner)
        pod["metadata"]["labels"].update(marks)
        if spec.get("completionMode") == "Indexed":
            pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] = str(index)
        yield pod


def _pod(name: str, namespace: str | None, template: dict[str, Any], owner: dict[str, Any]) -> dict[str, Any]:
    meta = copy.deepcopy(template.get("metadata") or {})
    references = [{"name": "owner", "uid": "u", **owner, "controller": True}]
    labels, annotations = dict(meta.get("labels") or {}), dict(meta.get("annotations") or {})
    made: dict[str, Any] = {"name": name, "labels": labels, "annotations": annotations, "ownerReferences": references}
    if namespace:
        made["namespace"] = namespace
    return {"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": copy.deepcopy(template["spec"])}
