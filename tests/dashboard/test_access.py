# SPDX-License-Identifier: Apache-2.0
"""What a request may see, as the real API server decides it."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from dovetail.dashboard.access import OwnAccess, ReviewedAccess
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import load_kubeconfig
from dovetail.kube.api.credentials import Files
from dovetail.kube.api.reviews import Reviews
from tests.paths import ROOT
from tools.controlplane.plane import Plane

SPACE = "dashboard-access"


async def test_on_the_machine_of_a_user_all_is_shown_but_what_is_no_namespace() -> None:
    assert await OwnAccess().refusal("", "") is None
    assert await OwnAccess().refusal("", "team-a") is None
    for wrong in ("../x", "A", "-a", "a" * 64):
        assert await OwnAccess().refusal("", wrong) == (400, "that is no name of a namespace")


@pytest.mark.plane
async def test_the_real_api_server_decides_by_the_roles_of_people(plane: Plane) -> None:
    """A user of one namespace, one of the cluster, and the account of the pages as `deploy/dashboard` has it."""
    names = ("one", "all")
    manifests: list[dict[str, object]] = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}]
    manifests += [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": SPACE}} for name in names
    ]
    for kind, name, role in (
        ("RoleBinding", "one", "dovetail-viewer"),
        ("ClusterRoleBinding", "all", "dovetail-viewer"),
    ):
        manifests.append(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
                "metadata": {"name": f"{SPACE}-{name}", **({"namespace": SPACE} if kind == "RoleBinding" else {})},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": SPACE}],
            }
        )  # fmt: skip
    plane.kubectl("apply", "-k", str(ROOT / "deploy/people"))
    plane.kubectl("apply", "-f", "deploy/namespace.yaml", "-f", "deploy/dashboard/rbac.yaml")
    for manifest in manifests:
        plane.kubectl("apply", "-f", "-", input=json.dumps(manifest))
    tokens = {name: plane.kubectl("create", "token", "-n", SPACE, name).strip() for name in names}
    tokens["pages"] = plane.kubectl("create", "token", "-n", "dovetail-system", "dovetail-dashboard").strip()
    config = replace(load_kubeconfig((plane.kubeconfig,)), source=Files(token=tokens["pages"]))
    async with Client(config) as client:
        access = ReviewedAccess(Reviews(client))
        assert await access.refusal(f"Bearer {tokens['one']}", SPACE) is None
        assert await access.refusal(f"Bearer {tokens['all']}", "") is None
        assert await access.refusal(f"Bearer {tokens['all']}", "default") is None
        for namespace in ("", "default", "no-such-namespace"):
            refused = await access.refusal(f"Bearer {tokens['one']}", namespace)
            assert refused is not None and refused[0] == 403
            assert "may not list nodelists.views.dovetail.dev in" in refused[1]
        assert await access.refusal("Bearer nothing", SPACE) == (401, "the API server does not know this token")
