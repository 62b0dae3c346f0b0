# SPDX-License-Identifier: Apache-2.0
"""From the path of a request to a question, or to a document of discovery.

Rules: the API server has authorized the path that it forwards, and only that. So a path is read strictly: each segment
consists of plain characters, nothing is decoded twice, and whatever is not listed here is not found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from msgspec import Struct

from dovetail.aggregated.question import BadQuestion, Question
from dovetail.kube.api.resources import Resource
from dovetail.kube.objects.views import LONGEST_VALUE, NO_PARAMETER

GROUPS = "/apis"
_NAMESPACE = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9](?:[-_.:A-Za-z0-9]{0,318}[A-Za-z0-9])?")
_IGNORED = frozenset({"timeout"})
"""Parameters that clients add of themselves."""


class ServedApi(Struct, frozen=True):
    """One version of a group. `queries` are the parameters of each resource. Of those that are `named` there is an
    answer for each object; the question of those that are `posted` is the body of a POST."""

    group: str
    version: str
    resources: Mapping[str, Resource]
    queries: Mapping[str, frozenset[str]]
    named: frozenset[str] = frozenset()
    posted: frozenset[str] = frozenset()
    longest_value: int = LONGEST_VALUE

    @property
    def path(self) -> str:
        return f"{GROUPS}/{self.group}/{self.version}"

    def question_of(self, path: str, query: Iterable[tuple[str, str]], method: str = "GET") -> Question:
        """The question of a path below that of the version, as it came: not decoded. Raises BadQuestion."""
        segments = [unquote(one) for one in path.removeprefix(self.path).removeprefix("/").split("/")]
        namespace = ""
        if segments[:1] == ["namespaces"] and len(segments) > 2:
            namespace, segments = segments[1], segments[2:]
            if not _NAMESPACE.fullmatch(namespace):
                raise BadQuestion(404, "no such namespace")
        resource, *names = segments
        known = resource in self.resources and len(names) == (resource in self.named)
        if not known or not all(map(_NAME.fullmatch, names)):
            raise BadQuestion(404, f"{self.path} has no such path")
        if (method == "POST") != (resource in self.posted):
            raise BadQuestion(405, f"{resource} is asked by {'POST' if resource in self.posted else 'GET'}")
        asked = tuple(sorted((name, value) for name, value in query if name not in _IGNORED))
        for name, value in asked:
            if name not in self.queries[resource]:
                raise BadQuestion(400, f"{resource}: {name[:64]!r} {NO_PARAMETER}")
            if len(value) > self.longest_value:
                raise BadQuestion(
                    400, f"{resource}: the value of {name} is longer than {self.longest_value} characters"
                )
        if len({name for name, _ in asked}) < len(asked):
            raise BadQuestion(400, f"{resource}: a parameter is there twice")
        return Question(resource, namespace, names[0] if names else "", asked)

    def discovery(self, path: str) -> dict[str, object] | None:
        """The document of discovery at a path; None if there is none."""
        version = {"groupVersion": f"{self.group}/{self.version}", "version": self.version}
        group: dict[str, object] = {"name": self.group, "versions": [version], "preferredVersion": version}
        if path == GROUPS:
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}
        if path == f"{GROUPS}/{self.group}":
            return {"kind": "APIGroup", "apiVersion": "v1"} | group
        if path != self.path:
            return None
        listed = [
            {
                "name": one.plural,
                "singularName": one.plural,
                "namespaced": one.namespaced,
                "kind": one.kind,
                "verbs": ["create"] if one.plural in self.posted else ["get"] if one.plural in self.named else ["list"],
            }
            for one in self.resources.values()
        ]
        return {
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version["groupVersion"],
            "resources": listed,
        }  # fmt: skip
