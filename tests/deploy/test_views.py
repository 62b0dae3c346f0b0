# SPDX-License-Identifier: Apache-2.0
"""deploy/functions/views: what the running scheduler needs to answer views, each right for one object by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from dovetail.aggregated.registration import AUTHENTICATION
from dovetail.kube.objects.views import VIEWS, VIEWS_GROUP, VIEWS_VERSION
from dovetail.scheduler.view_process import VIEWS as REGISTERED
from dovetail.viewserver.answers import POSTED
from tests.paths import ROOT

FOLDER, PEOPLE = ROOT / "deploy/functions/views", ROOT / "deploy/people"


def _documents(name: str, folder: Path = FOLDER) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all((folder / name).read_text()) if one]


def _patches() -> list[dict[str, Any]]:
    (component,) = _documents("kustomization.yaml")
    patches: list[dict[str, Any]] = component["patches"]
    return patches


def test_each_right_of_the_scheduler_is_for_objects_by_name() -> None:
    """As rules of its roles: an operator that does not know views takes them out, and leaves no role behind."""
    added = [(one["target"]["name"], yaml.safe_load(one["patch"])) for one in _patches()[:2]]
    assert [name for name, _ in added] == ["dovetail-scheduler", "dovetail-scheduler-lease"]
    assert {(step["op"], step["path"]) for _, steps in added for step in steps} == {("add", "/rules/-")}
    rules = [step["value"] for _, steps in added for step in steps]
    assert [(rule["resources"], rule["resourceNames"], rule["verbs"]) for rule in rules] == [
        (["configmaps"], [AUTHENTICATION[1]], ["get"]),
        (["apiservices"], [REGISTERED.api_service], ["patch"]),
        (["endpointslices"], [f"{REGISTERED.service}-ipv4", f"{REGISTERED.service}-ipv6"], ["patch"]),
    ]


def test_the_service_its_slices_and_the_api_belong_together() -> None:
    service, *slices = _documents("service.yaml")
    (api,) = _documents("apiservice.yaml")
    assert "selector" not in service["spec"] and service["metadata"]["name"] == REGISTERED.service
    for one in slices:
        assert one["metadata"]["labels"]["kubernetes.io/service-name"] == REGISTERED.service
        assert one["metadata"]["name"] == f"{REGISTERED.service}-{one['addressType'].lower()}"
        # The leader alone writes them: what is not in the manifest is not taken out when it is applied again.
        assert not {"endpoints", "ports"} & one.keys()
    spec, metadata = api["spec"], api["metadata"]
    assert (metadata["name"], spec["group"], spec["version"]) == (REGISTERED.api_service, VIEWS_GROUP, VIEWS_VERSION)
    assert (spec["service"]["name"], spec["service"]["port"]) == (
        REGISTERED.service,
        service["spec"]["ports"][0]["port"],
    )
    # Without a certificate it is trusted by nobody, and never without a check.
    assert not {"caBundle", "insecureSkipTLSVerify"} & spec.keys()


def test_the_component_opens_the_port_that_it_sets() -> None:
    (component,) = _documents("kustomization.yaml")
    assert {path.name for path in FOLDER.iterdir()} == {"kustomization.yaml", *component["resources"]}
    argument, port, _ = [one["value"] for one in yaml.safe_load(_patches()[-1]["patch"])]
    (service, *_), (policy,) = _documents("service.yaml"), _documents("network-policy.yaml")
    assert argument == f"--views=0.0.0.0:{port['containerPort']}"
    assert service["spec"]["ports"][0]["targetPort"] == port["containerPort"]
    assert policy["spec"]["ingress"] == [{"ports": [{"port": port["name"], "protocol": "TCP"}]}]
    assert "functions/views" in yaml.safe_load((ROOT / "deploy/kustomization.yaml").read_text())["components"]


def test_viewers_have_all_views_and_whoever_has_view_in_a_namespace_is_one() -> None:
    viewer, operator, admin = _documents("roles.yaml", PEOPLE)
    assert viewer["metadata"]["labels"] == {"rbac.authorization.k8s.io/aggregate-to-view": "true"}
    for role in (viewer, operator):
        read, asked = [rule for rule in role["rules"] if rule["apiGroups"] == [VIEWS_GROUP]]
        assert (read["verbs"], asked["verbs"]) == (["get", "list"], ["create"])
        assert set(asked["resources"]) == POSTED
        assert sorted(read["resources"] + asked["resources"]) == sorted(one.plural for one in VIEWS)
    # Nothing that writes becomes part of `view`: a prediction is a question, and the views' server writes nothing.
    others = [rule for rule in viewer["rules"] if not POSTED.issuperset(rule["resources"])]
    assert {verb for rule in others for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert not operator["metadata"].get("labels") and not admin["metadata"].get("labels")
    granting = _documents("rbac.yaml", ROOT / "deploy/operator")
    # Of those that the operator has, and of those that it may write.
    taken = {one["metadata"]["name"] for one in granting}
    taken |= {name for one in granting for rule in one.get("rules", ()) for name in rule.get("resourceNames", ())}
    assert not taken & {one["metadata"]["name"] for one in (viewer, operator, admin)}
