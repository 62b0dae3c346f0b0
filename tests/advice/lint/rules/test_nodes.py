# SPDX-License-Identifier: Apache-2.0
"""The rules about requirements that no node meets: their remedies."""

from __future__ import annotations

import pytest

from tests.advice.lint.linted import findings

POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: a}}
spec: {{nodeSelector: {{{0}: x}}, containers: [{{name: a}}]}}
---
apiVersion: v1
kind: Node
metadata: {{name: n, labels: {{other: b}}}}
status: {{allocatable: {{nvidia.com/gpu: 1}}}}
"""


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("example.com/rack", "label the nodes, or remove it"),
        ("cloud.google.com/gke-spot", "GKE sets it on its nodes"),
        ("nvidia.com/gpu.clique", "NVIDIA's GPU Feature Discovery sets it on its nodes"),
        ("topology.kubernetes.io/zone", "the cloud's controller sets it on its nodes"),
    ],
)
def test_remedies_fit_the_key(key: str, remedy: str) -> None:
    (found,) = findings(POD.format(key), "G10")
    assert remedy in found.message
