# SPDX-License-Identifier: Apache-2.0
"""Pods as the managers of a kubelet see them."""

from __future__ import annotations

import pytest

from dovetail.core.devices.kubelet.pods import Asked, ManagedContainer, ManagedKind, ManagedPod, Qos
from dovetail.kube.translate import pods
from dovetail.kube.translate.requests import effective
from tests.kube.yaml_objects import pod

GIB = 2**30
DEVICE = "resources: {limits: {nvidia.com/gpu: 1}}"


def spec(text: str) -> ManagedPod | None:
    return effective(pod(f"spec: {text}")).managed


def test_containers_come_in_the_order_of_the_kubelet_with_their_own_amounts() -> None:
    found = spec("""
  initContainers:
  - {name: a, resources: {limits: {cpu: 1500m, memory: 1Gi, nvidia.com/gpu: 2}}}
  - {name: b, restartPolicy: Always, resources: {requests: {hugepages-2Mi: 4Mi}, limits: {hugepages-2Mi: 4Mi}}}
  containers:
  - {name: c, resources: {requests: {cpu: 0.5, ephemeral-storage: 1Gi}, limits: {cpu: 1, rdma/hca: 1}}}
  overhead: {cpu: 100m}
""")
    limits = (("cpu", 1500), ("memory", GIB), ("nvidia.com/gpu", 2))
    pages = (("hugepages-2Mi", 4 << 20),)
    assert found == ManagedPod(
        (
            ManagedContainer(limits, limits, ManagedKind.INIT),
            ManagedContainer(pages, pages, ManagedKind.SIDECAR),
            ManagedContainer((("cpu", 500), ("rdma/hca", 1)), (("cpu", 1000), ("rdma/hca", 1)), ManagedKind.APP),
        ),
        overhead=(("cpu", 100),),
    )


@pytest.mark.parametrize(
    ("text", "qos"),
    [
        ("{containers: [{}]}", None),
        ("{containers: [{resources: {limits: {cpu: 1}}}]}", None),
        ("{containers: [{resources: {requests: {cpu: 1, memory: 1}, limits: {cpu: 2, memory: 1}}}]}", None),
        ("{containers: [{resources: {limits: {cpu: 1, memory: 1Gi}}}]}", Qos.GUARANTEED),
        ("{containers: [{resources: {limits: {cpu: 1, memory: 1Gi}}}, {}]}", None),
        (f"{{containers: [{{{DEVICE}}}]}}", Qos.BEST_EFFORT),
        (f"{{containers: [{{}}], initContainers: [{{{DEVICE}}}]}}", Qos.BEST_EFFORT),
        ("{containers: [{}], resources: {limits: {cpu: 1, memory: 1Gi}}}", Qos.GUARANTEED),
        ("{containers: [{resources: {requests: {cpu: 1}}}], resources: {limits: {cpu: 2}}}", None),
        ("{containers: [{resources: {limits: {cpu: '?', nvidia.com/gpu: lots}}}]}", None),
    ],
)
def test_only_pods_that_a_manager_can_refuse_are_described(text: str, qos: Qos | None) -> None:
    found = spec(text)
    assert (found.qos(True, True) if found is not None else None) is qos


def test_an_empty_part_of_pod_level_resources_counts_as_none() -> None:
    found = spec(f"{{resources: {{}}, containers: [{{{DEVICE}}}]}}")
    assert found is not None
    assert found.whole is None
    found = spec(f"{{resources: {{requests: {{cpu: 1}}}}, containers: [{{{DEVICE}}}]}}")
    assert found is not None
    assert found.whole == Asked((("cpu", 1000),))


def test_a_pod_without_containers_is_none() -> None:
    assert spec("{containers: []}") is None


def test_it_is_part_of_the_request_and_pods_of_one_template_share_it() -> None:
    text = f"spec: {{containers: [{{{DEVICE}}}]}}"
    one, two = (pods.pod(pod(text, uid=uid)).request for uid in "ab")
    assert one.managed is two.managed
    assert one.managed == effective(pod(text)).managed
    affinity = "affinity: {nodeAffinity: {}}"
    assert pods.pod(pod(f"spec: {{containers: [{{{DEVICE}}}], {affinity}}}")).request.managed == one.managed
