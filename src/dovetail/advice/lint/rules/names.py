# SPDX-License-Identifier: Apache-2.0
"""The rules about misspelt names of Dovetail: keys and values of labels and annotations, and names of queues.

Rules
- Keys and values are parsed as in the scheduler, for pod templates and for objects with annotations that apply to all
  of their pods. A manifest may be for the endpoint of an agent: the keys that are read there are no fault.
- Queues are known if there are any among the objects; the scheduler's own tree decides whether pods may be in one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template
from dovetail.advice.lint.rule import Facts, Rule, RuleMatch, Severity
from dovetail.core.bounded_cache import remembered
from dovetail.core.queues.tree import Tree
from dovetail.core.queues.types import QUEUE_LABEL
from dovetail.kube.api.resources import QUEUES
from dovetail.kube.gangs.owners import OWNER_KINDS
from dovetail.kube.manifests.templates import group_kind
from dovetail.kube.objects.base import ObjectMeta
from dovetail.kube.objects.queues import Queue
from dovetail.kube.translate.annotations import ENDPOINT_RULE, PREFIX, TABLE, options_of
from dovetail.kube.translate.problems import nearest
from dovetail.kube.translate.queues import queue as queue_record

_OURS = "dovetail"
_DOMAIN = PREFIX.removesuffix("/")
_SIMILARITY = 0.8
_PLACE = re.compile(r"metadata\.(labels|annotations)\[(.+)\]")
_READ = {(kind.resource.group, kind.resource.kind) for kind in OWNER_KINDS} | {
    (group, "PodGroup") for group in ("scheduling.k8s.io", "scheduling.x-k8s.io", "scheduling.volcano.sh")
}


def _of_pod(pod: Template, facts: Facts) -> Iterator[RuleMatch]:
    yield from _misspelt(pod.meta, facts, guess=pod.spec.at("schedulerName").text != _OURS)


def _of_whole(whole: Field, facts: Facts) -> Iterator[RuleMatch]:
    if group_kind(whole.value) in _READ:
        yield from _misspelt(whole.at("metadata"), facts, guess=False)


def _misspelt(meta: Field, facts: Facts, *, guess: bool) -> Iterator[RuleMatch]:
    sides = {side: _texts(meta.at(side).value) for side in ("labels", "annotations")}
    for problem in options_of(ObjectMeta(labels=sides["labels"], annotations=sides["annotations"])).problems:
        if problem.rule == ENDPOINT_RULE:
            continue
        place = _PLACE.fullmatch(problem.field)
        field = meta.at(*place.groups()) if place is not None else meta
        key = f"{place[2]} " if place is not None else ""
        yield RuleMatch(field, f"{key}{problem.value!r}: {problem.rule}", guess=guess)
    for side, values in sides.items():
        for key in values:
            domain, _, short = key.partition("/")
            if domain != _DOMAIN and _is_like_ours(domain):
                meant = f"{PREFIX}{nearest(short, TABLE)}"
                yield RuleMatch(meta.at(side, key), f"no program reads {key}: did you mean {meant}?", guess=True)
    queue = sides["labels"].get(QUEUE_LABEL, "")
    tree = _queues(facts)
    if queue and tree is not None and (wrong := _unusable(queue, tree)):
        yield RuleMatch(meta.at("labels", QUEUE_LABEL), f"queue {queue} {wrong}", guess=guess or facts.nodes is None)


def _texts(marks: Any) -> dict[str, str]:
    return {str(key): one for key, one in marks.items() if isinstance(one, str)} if isinstance(marks, dict) else {}


@remembered(64)
def _is_like_ours(domain: str) -> bool:
    return bool(nearest(domain, (_DOMAIN,), _SIMILARITY))


def _unusable(queue: str, tree: Tree) -> str:
    """Why no pod may be in the queue; "" where pods may."""
    if queue not in tree.written:
        there = sorted(tree.written)
        return f"does not exist: the nearest is {nearest(queue, there)}; the queues are {', '.join(there)}"
    if not tree.leaf(queue):
        below = ", ".join(tree.children(queue)) or "those of control planes"
        return f"holds queues, and so no pods: name one of {below}"
    problem = tree.problem(queue)
    return f"cannot be used: {problem}" if problem is not None else ""


@lru_cache(maxsize=4)
def _queues(facts: Facts) -> Tree | None:
    """The queues among the objects; None if there are none, so that they are unknown."""
    tree, found = Tree(), False
    for whole in facts.of_kind(QUEUES.kind):
        if group_kind(whole.value)[0] == QUEUES.group:
            try:
                obj = msgspec.convert(whole.value, Queue)
            except msgspec.ValidationError:
                # The API server refuses it; its name still counts.
                obj = Queue(ObjectMeta(whole.at("metadata", "name").text))
            tree.put(queue_record(obj))
            found = True
    return tree if found else None


_POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: train-0
  labels: {{team: vision}}
  annotations: {{{0}}}
spec:
  schedulerName: dovetail
  priorityClassName: batch
  restartPolicy: Never
  containers:
  - name: train
    image: registry.example.com/train:1.4
    resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""

RULES = (
    Rule(
        id="G45",
        level=Severity.ERROR,
        title="A label or annotation of Dovetail is misspelt, or names a queue that may hold no pods",
        effect=(
            "The scheduler refuses invalid values, and the pod waits: `InvalidInput`, `QueueMissing`, `QueueNotLeaf`. "
            "A key that is misspelt before the slash has no effect."
        ),
        bad=_POD.format("dovetail.dev/max-runtme: 6h"),
        good=_POD.format("dovetail.dev/max-runtime: 6h"),
        template=_of_pod,
        whole=_of_whole,
        source="docs/reference/annotations.md",
    ),
)
