# SPDX-License-Identifier: Apache-2.0
"""The right that a refused request lacked."""

from __future__ import annotations

import pytest

from dovetail.kube.api.errors import Forbidden
from dovetail.kube.api.rights import missing_right

USER = 'is forbidden: User "ada" cannot do that'


@pytest.mark.parametrize(
    ("path", "right"),
    [
        ("POST /apis/batch/v1/namespaces/team-a/jobs", "create jobs.batch in namespace team-a"),
        ("GET /api/v1/namespaces/team-a/pods", "list pods in namespace team-a"),
        ("GET /api/v1/namespaces/team-a/pods/x", "get pods in namespace team-a"),
        ("GET /api/v1/namespaces/team-a/pods/x/log", "get pods/log in namespace team-a"),
        ("GET /api/v1/nodes", "list nodes"),
        ("GET /api/v1/namespaces/team-a", "get namespaces"),
        ("PATCH /apis/dovetail.dev/v1alpha1/queues/research", "patch queues.dovetail.dev"),
        (
            "DELETE /apis/jobset.x-k8s.io/v1alpha2/namespaces/a/jobsets/t",
            "delete jobsets.jobset.x-k8s.io in namespace a",
        ),
        ("PUT /apis/apps/v1/namespaces/a/deployments/t/scale", "update deployments/scale.apps in namespace a"),
    ],
)
def test_it_is_named_as_in_a_role(path: str, right: str) -> None:
    error = Forbidden(403, "Forbidden", USER, path)
    assert missing_right(error) == f"user ada has no right to {right}: an admin can grant it"


def test_a_refusal_that_is_not_about_a_right_is_the_servers_own() -> None:
    error = Forbidden(403, "Forbidden", "exceeded quota: gpus", "POST /api/v1/namespaces/a/pods")
    assert "exceeded quota: gpus" in missing_right(error)
