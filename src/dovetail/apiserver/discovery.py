# SPDX-License-Identifier: Apache-2.0
"""The server's discovery documents: versions, groups, resources, and as much OpenAPI as kubectl needs.

The OpenAPI documents declare the `fieldValidation` parameter, so that kubectl leaves validation to the server; the
server ignores it, so unknown fields are stored. What `kubectl explain` shows is in `schemas`.

Sources: k8s.io/api/apidiscovery/v2/types.go, k8s.io/cli-runtime/pkg/resource/query_param_verifier_v3.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dovetail.apiserver.objects import Object
from dovetail.apiserver.resources import SUBRESOURCES, Catalogue, ServedResource
from dovetail.apiserver.schemas import schemas_of

KUBERNETES_VERSION = "v1.37.1"
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_SUBRESOURCE_KINDS = {
    "status": (None, ["get", "patch", "update"]),
    "scale": (("autoscaling", "v1", "Scale"), ["get", "patch", "update"]),
    "binding": (("", "v1", "Binding"), ["create"]),
    "eviction": (("policy", "v1", "Eviction"), ["create"]),
}  # fmt: skip
_AGGREGATED = "as=APIGroupDiscoveryList"
AGGREGATED_TYPE = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


def wants_aggregated(accept: str) -> bool:
    """Whether the client would take the aggregated form, in its only version that is served, v2."""
    return any(_AGGREGATED in media and "v=v2" in media.split(";") for media in accept.replace(" ", "").split(","))


def version() -> Object:
    major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
    return {
        "major": major, "minor": minor, "gitVersion": f"{KUBERNETES_VERSION}+dovetail", "gitCommit": "",
        "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "", "platform": "",
    }  # fmt: skip


def legacy_versions(address: str) -> Object:
    """/api"""
    servers = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": servers}


def group_list(catalogue: Catalogue) -> Object:
    """/apis"""
    groups = [_group(name, resources) for name, resources in _groups(catalogue).items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group_paths(catalogue: Catalogue) -> list[str]:
    """Where the served groups are, without the leading slash."""
    return [f"apis/{name}/" for name in _groups(catalogue) if name]


def group(catalogue: Catalogue, name: str) -> Object | None:
    """/apis/GROUP"""
    resources = _groups(catalogue).get(name) if name else None
    return {"kind": "APIGroup", "apiVersion": "v1"} | _group(name, resources) if resources else None


def resource_list(catalogue: Catalogue, group_name: str, version_name: str) -> Object | None:
    """/api/v1 and /apis/GROUP/VERSION"""
    resources = [r for r in catalogue.resources if (r.group, r.version) == (group_name, version_name)]
    if not resources:
        return None
    return {
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": resources[0].api_version,
        "resources": [document for resource in resources for document in _documents(resource)],
    }  # fmt: skip


def aggregated(catalogue: Catalogue, *, legacy: bool) -> Object:
    """/api or /apis in one document."""
    return {
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
        "items": [
            {"metadata": {"name": name} if name else {}, "versions": _aggregated_versions(resources)}
            for name, resources in _groups(catalogue).items()
            if (not name) is legacy
        ],
    }  # fmt: skip


def open_api_index(catalogue: Catalogue) -> Object:
    """/openapi/v3"""
    paths = {r.base_path: {"serverRelativeURL": f"/openapi/v3/{r.base_path}"} for r in catalogue.resources}
    return {"paths": paths}


def open_api(catalogue: Catalogue, base_path: str) -> Object | None:
    """/openapi/v3/BASE"""
    resources = [r for r in catalogue.resources if r.base_path == base_path]
    parameter = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
    paths = {
        f"/{base_path}/{'namespaces/{namespace}/' if r.namespaced else ''}{r.plural}/{{name}}": {
            "patch": {
                "parameters": [parameter],
                "responses": {"200": {"description": "OK"}},
                "x-kubernetes-group-version-kind": {"group": r.group, "version": r.version, "kind": r.kind},
            }
        }
        for r in resources
    }
    if not resources:
        return None
    info = {"title": "Dovetail", "version": KUBERNETES_VERSION}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": schemas_of(resources)}}


def _by(key: Callable[[ServedResource], str], resources: Iterable[ServedResource]) -> dict[str, list[ServedResource]]:
    groups: dict[str, list[ServedResource]] = {}
    for resource in resources:
        groups.setdefault(key(resource), []).append(resource)
    return groups


def _groups(catalogue: Catalogue) -> dict[str, list[ServedResource]]:
    return _by(lambda resource: resource.group, catalogue.resources)


def _group(name: str, resources: Iterable[ServedResource]) -> Object:
    versions = [{"groupVersion": f"{name}/{v}", "version": v} for v in dict.fromkeys(r.version for r in resources)]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _subresources(resource: ServedResource) -> list[tuple[str, tuple[str, str, str], list[str]]]:
    own = (resource.group, resource.version, resource.kind)
    return [(name, _SUBRESOURCE_KINDS[name][0] or own, _SUBRESOURCE_KINDS[name][1])
            for name in SUBRESOURCES if name in resource.traits]  # fmt: skip


def _categories(resource: ServedResource) -> list[str]:
    return ["all"] if "all" in resource.traits else []


def _documents(resource: ServedResource) -> list[Object]:
    main: Object = {
        "name": resource.plural, "singularName": resource.kind.lower(), "namespaced": resource.namespaced,
        "kind": resource.kind, "verbs": _VERBS, "shortNames": list(resource.short_names),
        "categories": _categories(resource),
    }  # fmt: skip
    return [main] + [
        {
            "name": f"{resource.plural}/{name}", "singularName": "", "namespaced": resource.namespaced,
            "group": group, "version": version, "kind": kind, "verbs": verbs,
        }
        for name, (group, version, kind), verbs in _subresources(resource)
    ]  # fmt: skip


def _aggregated_versions(resources: Iterable[ServedResource]) -> list[Object]:
    return [
        {"version": version, "freshness": "Current", "resources": [_aggregated_resource(r) for r in members]}
        for version, members in _by(lambda resource: resource.version, resources).items()
    ]


def _aggregated_resource(resource: ServedResource) -> Object:
    return {
        "resource": resource.plural, "singularResource": resource.kind.lower(), "verbs": _VERBS,
        "responseKind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster", "shortNames": list(resource.short_names),
        "categories": _categories(resource),
        "subresources": [
            {
                "subresource": name, "verbs": verbs,
                "responseKind": {"group": group, "version": version, "kind": kind},
            }
            for name, (group, version, kind), verbs in _subresources(resource)
        ],
    }  # fmt: skip
