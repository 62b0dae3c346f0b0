# SPDX-License-Identifier: Apache-2.0
"""The index of a pod in its job, as each kind of controller states it."""

import pytest

from dovetail.kube.gangs.ordinals import ordinals
from dovetail.kube.objects.base import ObjectMeta
from dovetail.kube.translate import pods
from tests.kube.yaml_objects import pod

INDEX = "batch.kubernetes.io/job-completion-index"
GLOBAL, IN_REPLICATED = "jobset.sigs.k8s.io/job-global-index", "jobset.sigs.k8s.io/job-index"
TYPE, REPLICA = "training.kubeflow.org/replica-type", "training.kubeflow.org/replica-index"
WORKER = "leaderworkerset.sigs.k8s.io/worker-index"
GROVE = "grove.io/podcliquescalinggroup"
GROUP = f"{GROVE}-replica-index"
ORDINAL = "apps.kubernetes.io/pod-index"


@pytest.mark.parametrize(
    ("labels", "stated"),
    [
        ({INDEX: "12"}, (12,)),
        ({GLOBAL: "2", IN_REPLICATED: "0", INDEX: "3"}, (2, 3)),
        ({IN_REPLICATED: "1", INDEX: "3"}, (1, 3)),
        ({TYPE: "master", REPLICA: "0"}, (0, 0)),
        ({TYPE: "Master", REPLICA: "0"}, (0, 0)),
        ({TYPE: "worker", REPLICA: "4"}, (1, 4)),
        ({REPLICA: "4"}, (4,)),
        # The second number is that of the group.
        ({WORKER: "0", ORDINAL: "5"}, (0,)),
        ({"grove.io/podclique-pod-index": "6"}, (6,)),
        ({GROUP: "2", f"{GROVE}-pod-index": "6", "grove.io/podclique-pod-index": "1"}, (2, 6)),
        # Older versions number the pods of a clique alone.
        ({GROUP: "2", "grove.io/podclique-pod-index": "1"}, (1,)),
        ({"stormservice.orchestration.aibrix.ai/pod-group-index": "1"}, (1,)),
        ({ORDINAL: "5"}, (5,)),
        ({}, ()),
        ({INDEX: ""}, ()),
        ({INDEX: "-1"}, ()),
        ({INDEX: "1.5"}, ()),
        ({INDEX: "\u0663"}, ()),
        ({INDEX: "999999999"}, (999_999_999,)),
        ({INDEX: "1000000000"}, ()),
        ({GLOBAL: "0"}, ()),
        ({TYPE: "worker", REPLICA: "x"}, ()),
    ],
)
def test_each_controller_states_it_in_its_own_labels(labels: dict[str, str], stated: tuple[int, ...]) -> None:
    assert ordinals(ObjectMeta(labels=labels)) == stated


def test_an_annotation_counts_where_there_is_no_label() -> None:
    assert ordinals(ObjectMeta(annotations={INDEX: "7"})) == (7,)
    assert ordinals(ObjectMeta(labels={INDEX: "1"}, annotations={INDEX: "7"})) == (1,)


OWNER = [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}]


@pytest.mark.parametrize(
    ("spec", "owners", "stated"),
    [
        ("", OWNER, (3,)),
        ("", [], ()),
        ("spec: {nodeName: n}", OWNER, ()),
        ("spec: {schedulerName: another}", OWNER, ()),
    ],
)
def test_it_is_read_of_waiting_pods_with_an_owner(spec: str, owners: list[object], stated: tuple[int, ...]) -> None:
    assert pods.pod(pod(spec, labels={INDEX: "3"}, ownerReferences=owners)).ordinals == stated
