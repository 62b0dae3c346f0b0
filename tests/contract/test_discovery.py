# SPDX-License-Identifier: Apache-2.0
"""Discovery: what clients learn before they ask for an object."""

import pytest

from tests.contract.api import Api, Json

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"


def _by_name(resources: list[Json]) -> dict[str, Json]:
    return {resource["name"]: resource for resource in resources}


async def test_core_resources_and_their_subresources(api: Api) -> None:
    reply = await api.get("/api/v1")
    assert (reply.body["kind"], reply.body["groupVersion"]) == ("APIResourceList", "v1")
    resources = _by_name(reply.body["resources"])
    pods = resources["pods"]
    assert (pods["kind"], pods["namespaced"], pods["shortNames"]) == ("Pod", True, ["po"])
    assert {"create", "delete", "get", "list", "patch", "update", "watch"} <= set(pods["verbs"])
    assert resources["nodes"]["namespaced"] is False
    assert resources["pods/binding"]["kind"] == "Binding" and resources["pods/eviction"]["group"] == "policy"
    assert {"pods/status", "nodes/status"} <= resources.keys()


@pytest.mark.parametrize(
    ("group_version", "plurals"),
    [
        ("scheduling.k8s.io/v1", {"priorityclasses"}),
        ("scheduling.k8s.io/v1beta1", {"workloads", "podgroups", "podgroups/status"}),
        ("scheduling.k8s.io/v1alpha3", {"workloads", "podgroups", "compositepodgroups", "compositepodgroups/status"}),
        ("resource.k8s.io/v1", {"resourceclaims", "resourceclaims/status", "resourceslices", "deviceclasses"}),
        ("coordination.k8s.io/v1", {"leases"}),
        ("policy/v1", {"poddisruptionbudgets", "poddisruptionbudgets/status"}),
    ],
)
async def test_the_groups_that_a_gpu_scheduler_asks_for(api: Api, group_version: str, plurals: set[str]) -> None:
    reply = await api.get(f"/apis/{group_version}")
    assert plurals <= _by_name(reply.body["resources"]).keys()


async def test_groups_name_their_versions(api: Api) -> None:
    groups = {group["name"]: group for group in (await api.get("/apis")).body["groups"]}
    assert groups["apps"]["preferredVersion"] == {"groupVersion": "apps/v1", "version": "v1"}
    versions = {version["version"] for version in groups["scheduling.k8s.io"]["versions"]}
    assert {"v1", "v1beta1", "v1alpha3"} <= versions
    one = await api.get("/apis/apps")
    assert (one.body["kind"], one.body["preferredVersion"]["version"]) == ("APIGroup", "v1")


async def test_aggregated_discovery_states_the_same_in_one_reply(api: Api) -> None:
    for path, group, plural in (("/api", None, "pods"), ("/apis", "apps", "deployments")):
        reply = await api.get(path, accept=AGGREGATED)
        assert reply.body["kind"] == "APIGroupDiscoveryList"
        (found,) = (item for item in reply.body["items"] if item["metadata"].get("name") == group)
        resources = {resource["resource"]: resource for resource in found["versions"][0]["resources"]}
        assert resources[plural]["scope"] == "Namespaced"
        assert {"status"} <= {subresource["subresource"] for subresource in resources[plural]["subresources"]}


async def test_the_server_is_ready_and_has_a_version(api: Api) -> None:
    assert (await api.get("/readyz")).body == {"text": "ok"}
    version = (await api.get("/version")).body
    assert version["gitVersion"].startswith("v1.37.")
