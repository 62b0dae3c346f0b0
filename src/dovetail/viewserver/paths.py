# SPDX-License-Identifier: Apache-2.0
"""From the path of a request to a question, or to a document of discovery.

Rules: the API server has authorized the path that it forwards, and only that. So a path is read strictly: each segment
consists of plain characters, nothing is decoded twice, and whatever is not listed here is not found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

from dovetail.kube.objects.views import LONGEST_VALUE, VIEWS_GROUP, VIEWS_VERSION
from dovetail.viewserver.answers import NAMED, POSTED, QUERIES, RESOURCES, BadQuestion, Question

GROUPS, GROUP = "/apis", f"/apis/{VIEWS_GROUP}"
VERSION = f"{GROUP}/{VIEWS_VERSION}"
_NAMESPACE = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9](?:[-_.:A-Za-z0-9]{0,318}[A-Za-z0-9])?")
_IGNORED = frozenset({"timeout"})
"""Parameters that clients add of themselves."""


def question_of(path: str, query: Iterable[tuple[str, str]], method: str = "GET") -> Question:
    """The question of `path` below VERSION, as it came: not decoded. Raises BadQuestion."""
    segments = [unquote(one) for one in path.removeprefix(VERSION).removeprefix("/").split("/")]
    namespace = ""
    if segments[:1] == ["namespaces"] and len(segments) > 2:
        namespace, segments = segments[1], segments[2:]
        if not _NAMESPACE.fullmatch(namespace):
            raise BadQuestion(404, "no such namespace")
    resource, *names = segments
    if resource not in RESOURCES or len(names) != (resource in NAMED) or not all(map(_NAME.fullmatch, names)):
        raise BadQuestion(404, f"{VERSION} has no such path")
    if (method == "POST") != (resource in POSTED):
        raise BadQuestion(405, f"{resource} is asked by {'POST' if resource in POSTED else 'GET'}")
    asked = tuple(sorted((name, value) for name, value in query if name not in _IGNORED))
    for name, value in asked:
        if name not in QUERIES[resource] or len(value) > LONGEST_VALUE:
            raise BadQuestion(400, f"{resource}: {name[:64]!r} is no parameter, or its value is too long")
    if len({name for name, _ in asked}) < len(asked):
        raise BadQuestion(400, f"{resource}: a parameter is there twice")
    return Question(resource, namespace, names[0] if names else "", asked)


def discovery(path: str) -> dict[str, object] | None:
    """The document of discovery at a path; None if there is none."""
    version = {"groupVersion": f"{VIEWS_GROUP}/{VIEWS_VERSION}", "version": VIEWS_VERSION}
    group: dict[str, object] = {"name": VIEWS_GROUP, "versions": [version], "preferredVersion": version}
    if path == GROUPS:
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}
    if path == GROUP:
        return {"kind": "APIGroup", "apiVersion": "v1"} | group
    if path != VERSION:
        return None
    listed = [
        {
            "name": one.plural,
            "singularName": one.plural,
            "namespaced": one.namespaced,
            "kind": one.kind,
            "verbs": ["create"] if one.plural in POSTED else ["get"] if one.plural in NAMED else ["list"],
        }
        for one in RESOURCES.values()
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version["groupVersion"], "resources": listed}
