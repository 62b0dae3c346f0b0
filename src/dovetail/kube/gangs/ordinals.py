# SPDX-License-Identifier: Apache-2.0
"""Where each kind of controller states the index of a pod in its job: a table.

Rules: the first row of which the pod carries all keys counts. A key is a label, or an annotation. A row that has no
number, or one of more than nine digits, states nothing. The training operators count each role from 0, and their
ranks begin with the master. A user that writes such keys changes the order of the own job's pods and nothing else.
Sources: batch/v1 types.go, apps/v1 types.go of Kubernetes; jobset api/jobset/v1alpha2; lws api/leaderworkerset/v1;
training-operator pkg/apis/kubeflow.org/v1/common_types.go; grove operator/api/common/labels.go; aibrix
pkg/controller/constants.
"""

from __future__ import annotations

from dovetail.kube.gangs.owners import COMPLETION_INDEX, LWS_WORKER_INDEX
from dovetail.kube.objects.base import ObjectMeta

_REPLICA_TYPE, _REPLICA_INDEX = "training.kubeflow.org/replica-type", "training.kubeflow.org/replica-index"
# https://github.com/ai-dynamo/grove: operator/api/common/labels.go.
GROVE_GROUP_REPLICA = "grove.io/podcliquescalinggroup-replica-index"
GROVE_GROUP_POD = "grove.io/podcliquescalinggroup-pod-index"
_ROWS: tuple[tuple[str, ...], ...] = (
    ("jobset.sigs.k8s.io/job-global-index", COMPLETION_INDEX),
    # Before JobSet 0.6.
    ("jobset.sigs.k8s.io/job-index", COMPLETION_INDEX),
    (COMPLETION_INDEX,),
    (_REPLICA_TYPE, _REPLICA_INDEX),
    # The mpi-operator's workers.
    (_REPLICA_INDEX,),
    # The leader's pod-index is that of its group.
    (LWS_WORKER_INDEX,),
    # Those of Grove, in their scaling group (not before 2026) or their clique, and of AIBrix, in their PodSet.
    (GROVE_GROUP_REPLICA, GROVE_GROUP_POD),
    ("grove.io/podclique-pod-index",),
    ("stormservice.orchestration.aibrix.ai/pod-group-index",),
    ("apps.kubernetes.io/pod-index",),
)
_LEADERS = frozenset({"master", "chief", "launcher"})
_MOST_DIGITS = 9


def ordinals(meta: ObjectMeta) -> tuple[int, ...]:
    """The index of a pod in its job, the widest number first; () where its controller states none."""
    labels, annotations = meta.labels, meta.annotations
    for keys in _ROWS:
        texts = [labels.get(key) or annotations.get(key, "") for key in keys]
        if all(texts):
            numbers = tuple([_number(key, text) for key, text in zip(keys, texts, strict=True)])
            return numbers if min(numbers) >= 0 else ()
    return ()


def _number(key: str, text: str) -> int:
    """The number that the key has; -1 where it has none."""
    if key == _REPLICA_TYPE:
        return int(text.lower() not in _LEADERS)
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else -1
