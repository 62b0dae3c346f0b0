# SPDX-License-Identifier: Apache-2.0
"""A name that nothing has is reported with the nearest one that something has."""

from __future__ import annotations

import random
import time
from difflib import get_close_matches

import pytest
from click.testing import CliRunner

from dovetail.cli import cli
from dovetail.kube.translate.problems import nearest
from dovetail.views import names

CLUSTER = """
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {allocatable: {cpu: "64", memory: 512Gi, pods: "110", nvidia.com/gpu: "8"}}
---
apiVersion: dovetail.dev/v1alpha1
kind: Queue
metadata: {name: research}
---
apiVersion: scheduling.x-k8s.io/v1alpha1
kind: PodGroup
metadata: {name: train}
spec: {minMember: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: system}
spec: {nodeName: n1, schedulerName: default-scheduler, containers: [{name: main, image: x}]}
---
apiVersion: v1
kind: Pod
metadata: {name: pod, %s}
spec: {schedulerName: %s, containers: [{name: main, image: x, resources: {limits: {cpu: "1", memory: 1Gi}}}]}
"""


@pytest.mark.parametrize(
    ("metadata", "scheduler", "stated"),
    [
        ("labels: {}", "dovetial", "its scheduler is 'dovetial', which has bound no pod here: similar is 'dovetail'"),
        ("labels: {}", "defualt-scheduler", "which has bound no pod here: similar is 'default-scheduler'"),
        ("labels: {}", "default-scheduler", "which has bound other pods here; Dovetail's is 'dovetail'"),
        ("labels: {dovetail.dev/queue: reserch}", "dovetail", "there is no queue 'reserch': similar is 'research'"),
        ("annotations: {dovetail.dev/max-runtme: 6h}", "dovetail", "nearest known key: dovetail.dev/max-runtime"),
        (
            "labels: {scheduling.x-k8s.io/pod-group: trian}", "dovetail",
            "similar is 'podgroup.scheduling.x-k8s.io/default/train'",
        ),
    ],
)  # fmt: skip
def test_why_names_the_nearest(metadata: str, scheduler: str, stated: str) -> None:
    shown = CliRunner().invoke(cli, ["why", "pod", "-f", "-"], input=CLUSTER % (metadata, scheduler))
    assert shown.exit_code == 0 and stated in shown.stdout, shown.output


@pytest.mark.parametrize("similarity", [0.0, 0.6])
def test_the_nearest_is_that_of_difflib(similarity: float) -> None:
    dice = random.Random(3)
    for _ in range(300):
        value, *names = ["".join(dice.choices("abc-", k=dice.randint(0, 7))) for _ in range(9)]
        assert nearest(value, names, similarity) == (get_close_matches(value, names, 1, similarity) or [""])[0]


def test_a_hostile_name_costs_no_more_than_any_other() -> None:
    began_s = time.process_time()
    for _ in range(100):
        nearest("a" * 262_144, (f"{'a' * 60}{i}" for i in range(100_000)))
    assert time.process_time() - began_s < 2


def test_a_name_longer_than_any_is_like_none() -> None:
    """It could be compared, and one of megabytes would take seconds."""
    assert names.nearest("n1x", ["n1"]) == "; did you mean n1?"
    assert names.nearest(f"n1{'x' * 511}", ["n1"]) == ""
