# SPDX-License-Identifier: Apache-2.0
"""The fault of each rule is found in each kind of workload, and its right example is right in each."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest

from dovetail.advice.lint.engine import LintFinding, lint
from dovetail.advice.lint.inventory import facts_of
from dovetail.advice.lint.pods import Template, templates_of
from dovetail.advice.lint.rule import Facts, Rule
from dovetail.advice.lint.rules import RULES
from dovetail.advice.lint.source import SourceDocument
from tests.advice.lint.linted import objects
from tests.advice.lint.workloads import WORKLOADS

ALL = frozenset(WORKLOADS)
SERVE = {
    "PodTemplate", "ReplicationController", "Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "LeaderWorkerSet",
    "RayCluster", "RayService", "Service", "Notebook", "Rollout", "InferenceService", "InferenceService of a model",
    "an unknown kind",
}  # fmt: skip
RAY = {"RayCluster", "RayJob", "RayService"}
WORKFLOWS = {"Workflow", "CronWorkflow"}
TRAINING = {
    "Job", "CronJob", "JobSet", "MPIJob", "PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob",
    "TrainingRuntime", "VolcanoJob", "AppWrapper",
}  # fmt: skip
ALONE = (SERVE - {"LeaderWorkerSet"}) | WORKFLOWS | {"Pod", "TaskRun", "RayJob"}
PARTIAL = {"TrainJob", "InferenceService of a model"}
NOT_FOUND = {
    "G10": ({"DaemonSet"}, "a DaemonSet has a pod on each matching node, and may have none"),
    "G12": (ALL, "the minimum is a field of the object: see the cases of the rule"),
    "G13": ({"TrainJob"}, "its runtime may name the scheduler"),
    "G14": ({"TrainJob"}, "it has one container"),
    "G15": (ALL, "a quota has no pods"),
    "G20": (RAY | PARTIAL, "KubeRay mounts /dev/shm, a runtime may"),
    "G23": ({"TrainJob"}, "its runtime has the field"),
    "G24": ({"DaemonSet", "TrainJob"}, "DaemonSets are for the node; a TrainJob's runtime has the field"),
    "G25": ({"DaemonSet"}, "DaemonSets are for the node"),
    "G26": (PARTIAL, "a runtime may tolerate the taint"),
    "G29": (SERVE | {"TrainJob"}, "it does not run to an end; a runtime may mount a volume"),
    "G30": (ALONE | {"LeaderWorkerSet", "TrainJob"}, "its pods do not work together to an end; a runtime may store"),
    "G31": (ALL, "the policy is a field of the Job: see the cases of the rule"),
    "G35": (PARTIAL, "a runtime may have a class"),
    "G36": ({"TrainJob"}, "its runtime has the field"),
    "G38": ({"TrainJob", *WORKFLOWS}, "it has no such field"),
    "G39": (ALONE, "its pods do not work together"),
    "G40": ({"Notebook"}, "its controller culls, unless its Deployment sets that off"),
    "G41": ({"TrainJob"}, "it has no hooks"),
    "G42": ({"TrainJob", "TaskRun"}, "it has no init containers"),
    "G43": ({"DaemonSet", "TrainJob"}, "DaemonSets are for the node; a TrainJob's runtime has the field"),
    "G44": ({"DaemonSet"}, "DaemonSets are of the cluster"),
    "G47": (PARTIAL, "a runtime may have the claims"),
    "G48": ({"LeaderWorkerSet"}, "its pods share the ranks"),
    "G49": ({"LeaderWorkerSet"}, "several pods may hold the model"),
    "G52": (PARTIAL | {"AppWrapper", "VolcanoJob"}, "Kueue, Volcano or the runtime starts all of it"),
    "G54": (PARTIAL, "a runtime may have the volume"),
    "G56": (
        ALONE | {"MPIJob", "TrainJob", "TrainingRuntime"},
        "one object is not one job, or mpirun and the runtime start it",
    ),
    "G58": (
        WORKFLOWS
        | {
            "DaemonSet",
            "InferenceService",
            "InferenceService of a model",
            "Notebook",
            "Pod",
            "PodTemplate",
            "Service",
            "TaskRun",
            "an unknown kind",
        },
        "the object does not have the number of its pods, or makes one",
    ),
    "G59": (ALL - {"Job", "CronJob", "AppWrapper"}, "it takes any policy, or its operator sets one"),
    "G60": (PARTIAL, "a runtime may have the init container and the memory"),
    "G50": (ALL, "the surge is a field of the Deployment: see the cases of the rule"),
}
"""By rule, the kinds in which its fault has no meaning or cannot be written, and why."""
FOUND_IN_RIGHT = {
    "G29": ({*WORKFLOWS, "TaskRun"}, "it has no grace period, so the default is too short"),
    "G36": (TRAINING, "a probe that is right for a server ends a training pod"),
    "G41": (WORKFLOWS | {"TaskRun"}, "it has no grace period, so the default is too short"),
    "G52": (
        SERVE - {"LeaderWorkerSet", "RayCluster", "RayService", "InferenceService of a model"}
        | WORKFLOWS
        | {"Pod", "TaskRun"},
        "our scheduler makes no gang of its pods",
    ),
    "G47": ({*WORKFLOWS, "TaskRun"}, "it has no claims of its pods"),
    "G59": ({"DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"}, "its pods restart"),
    "G60": ({"TaskRun"}, "it has no init containers"),
}
"""By rule, the kinds in which its right example is wrong, and why."""


@pytest.mark.parametrize("rule", RULES, ids=[rule.id for rule in RULES])
@pytest.mark.slow
def test_is_found_in_each_kind(rule: Rule) -> None:
    excused, _ = NOT_FOUND.get(rule.id, (set(), ""))
    assert {kind for kind in ALL if found(rule, kind, rule.bad)} == ALL - excused
    wrong = {kind for kind in ALL if found(rule, kind, rule.good)}
    assert wrong == FOUND_IN_RIGHT.get(rule.id, (set(),))[0]


def test_few_pairs_are_left_out() -> None:
    assert len(ALL) >= 20
    assert all(why for _, why in (*NOT_FOUND.values(), *FOUND_IN_RIGHT.values()))


def found(rule: Rule, kind: str, text: str) -> list[LintFinding]:
    """What the rule finds if the pod of its example is that of another kind of object; the example's other objects
    stay."""
    documents = [SourceDocument("test.yaml", "", 1, whole.value) for whole in objects(text)]
    place = next((at for at, one in enumerate(documents) if any(True for _ in _pods(one))), None)
    if place is None:
        return []
    pod = next(_pods(documents[place]))
    labels = {} if rule.id == "G44" else {"team": "vision"}
    meta = {"labels": labels, **(pod.meta.value or {})}
    template = {
        "metadata": {key: meta[key] for key in ("labels", "annotations") if key in meta},
        "spec": pod.spec.value,
    }
    planted = WORKLOADS[kind](copy.deepcopy(template))
    documents[place] = SourceDocument("test.yaml", "", 1, planted)
    everything = tuple(whole for one in documents for whole in one.objects())
    nodes = facts_of(whole for whole in everything if whole.at("kind").text == "Node").nodes or None
    return list(lint(documents, Facts(nodes, None, everything), [rule]))


def _pods(document: SourceDocument) -> Iterator[Template]:
    for whole in document.objects():
        yield from templates_of(whole)
