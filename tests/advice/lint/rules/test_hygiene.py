# SPDX-License-Identifier: Apache-2.0
"""What rules about images, hygiene and nodes rest on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.advice.lint.pods import templates_of
from dovetail.advice.lint.rules.images import Cuda, Image, cuda_of, image_of
from dovetail.advice.lint.selection import may_run
from tests.advice.lint.linted import facts, findings, objects

_WORD = st.from_regex(r"[a-z0-9]+([._-][a-z0-9]+)*", fullmatch=True)
_TAG = st.from_regex(r"\w[\w.-]{0,20}", fullmatch=True).filter(str.isascii)
_REGISTRY = st.sampled_from(["", "registry.example.com/", "registry.example.com:5000/", "localhost:5000/"])
_DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.slow
@given(_REGISTRY, st.lists(_WORD, min_size=1, max_size=3), st.just("") | _TAG, st.sampled_from(["", _DIGEST]))
def test_a_reference_comes_apart_as_it_was_put_together(registry: str, path: list[str], tag: str, digest: str) -> None:
    name = registry + "/".join(path)
    text = name + (f":{tag}" if tag else "") + (f"@{digest}" if digest else "")
    assert image_of(text) == Image(name, tag, digest)
    if not registry:
        assert image_of(f"docker.io/{text}") == image_of(text)


@pytest.mark.parametrize("text", ["", "{{ .Values.image }}", "train:${TAG}", "$(IMAGE)", "<registry>/train", "IMAGE"])
def test_what_is_filled_in_later_is_no_reference(text: str) -> None:
    assert image_of(text) is None


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        ("nvidia/cuda:12.8.0-base-ubuntu24.04", (12, 8)),
        ("docker.io/nvidia/cuda:11.8.0-cudnn8-devel-rockylinux8", (11, 8)),
        ("nvcr.io/nvidia/cuda:13.0.1-runtime-ubi9", (13, 0)),
        ("nvcr.io/nvidia/pytorch:25.03-py3", (12, 8)),
        ("nvcr.io/nvidia/pytorch:25.01-py3", (12, 4)),
        ("nvcr.io/nvidia/tensorflow:24.12-tf2-py3", (12, 4)),
        ("nvcr.io/nvidia/tritonserver:26.03-py3-sdk", (13, 0)),
        ("nvcr.io/nvidia/tritonserver:25.08-trtllm-python-py3", None),
        ("nvcr.io/nvidia/pytorch:19.05-py3", None),
        ("pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime", (12, 4)),
        ("pytorch/pytorch:2.5.1-cuda12.4-cudnn9-devel", None),
        ("registry.example.com/nvidia/cuda:12.8.0-base-ubuntu24.04", None),
        ("nvidia/cuda", None),
    ],
)
def test_cuda_of_images_that_declare_it(text: str, cuda: Cuda | None) -> None:
    image = image_of(text)
    assert image is not None
    assert cuda_of(image) == cuda


_GANG = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: train}
spec:
  pytorchReplicaSpecs:
    Master: {template: {spec: &pod {securityContext: {runAsUser: 0}, containers: [
      {name: a, image: 'a:1', resources: {limits: {nvidia.com/gpu: 1}}},
      {name: b, image: 'b:1', resources: {limits: {nvidia.com/gpu: 1}}}]}}}
    Worker: {template: {spec: *pod}}
"""


@pytest.mark.parametrize("rule", ["G43", "G44"])
def test_hygiene_is_reported_once_for_a_workload(rule: str) -> None:
    assert len(findings(_GANG, rule)) == 1


_PLACED = """\
apiVersion: v1
kind: Pod
metadata: {name: train}
spec: {%s, containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}
---
apiVersion: v1
kind: Node
metadata: {name: gpu-1, labels: {pool: train, size: '8'}}
spec: {taints: [{key: gpu, value: 'yes', effect: NoSchedule}, {key: soft, effect: PreferNoSchedule}]}
status: {allocatable: {nvidia.com/gpu: '8'}}
"""
_TOLERATED = "tolerations: [{key: gpu, operator: Exists}]"
_TERM = (
    f"{_TOLERATED}, affinity: {{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: "
    "{nodeSelectorTerms: [%s]}}}"
)
_EXPRESSION = _TERM % "{matchExpressions: [{%s}]}"


@pytest.mark.parametrize(
    ("spec", "may"),
    [
        (_TOLERATED, True),
        ("tolerations: [{operator: Exists}]", True),
        ("tolerations: [{key: gpu, value: 'yes', effect: NoSchedule}]", True),
        ("tolerations: [{key: gpu, value: 'no'}]", False),
        ("tolerations: [{key: gpu, operator: Exists, effect: NoExecute}]", False),
        ("tolerations: []", False),
        (f"{_TOLERATED}, nodeSelector: {{pool: train}}", True),
        (f"{_TOLERATED}, nodeSelector: {{pool: train, zone: a}}", False),
        (f"{_TOLERATED}, nodeName: gpu-2", False),
        (_EXPRESSION % "key: pool, operator: In, values: [a, train]", True),
        (_EXPRESSION % "key: pool, operator: NotIn, values: [a, train]", False),
        (_EXPRESSION % "key: zone, operator: NotIn, values: [a]", True),
        (_EXPRESSION % "key: pool, operator: Exists", True),
        (_EXPRESSION % "key: pool, operator: DoesNotExist", False),
        (_EXPRESSION % "key: size, operator: Gt, values: ['7']", True),
        (_EXPRESSION % "key: size, operator: Lt, values: ['8']", False),
        (_EXPRESSION % "key: pool, operator: Gt, values: ['7']", False),
        (_TERM % "{matchFields: [{key: metadata.name, operator: In, values: [gpu-1]}]}", True),
        (_TERM % "{}, {matchExpressions: [{key: pool, operator: Exists}]}", True),
        (_TERM % "{}", False),
    ],
)
def test_which_nodes_a_pod_may_run_on(spec: str, may: bool) -> None:
    text = _PLACED % spec
    (pod,) = templates_of(objects(text)[0])
    (node,) = facts(text).nodes or ()
    assert may_run(pod, node) is may
