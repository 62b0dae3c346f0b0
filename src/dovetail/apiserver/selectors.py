# SPDX-License-Identifier: Apache-2.0
"""Label and field selectors: as query parameters, and label selectors inside objects.

Sources: k8s.io/apimachinery/pkg/labels/selector.go, k8s.io/apimachinery/pkg/fields/selector.go, and for the fields
that can be selected, the GetAttrs functions in k8s.io/kubernetes/pkg/registry. `selectableFields` of custom resource
definitions are not known here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from msgspec import Struct

from dovetail.apiserver.failures import bad_request
from dovetail.apiserver.objects import Object, labels_of, object_at, objects_at, text_at, value_at
from dovetail.apiserver.resources import ServedResource
from dovetail.core.labels import as_int64, holds
from dovetail.core.model import Operator, Requirement

_EVERYWHERE = frozenset({"metadata.name", "metadata.namespace"})
_FIELDS = {
    "pods": frozenset({
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
        "status.phase", "status.podIP", "status.nominatedNodeName",
    }),
    "nodes": frozenset({"spec.unschedulable"}),
    "namespaces": frozenset({"status.phase"}),
    "secrets": frozenset({"type"}),
    "jobs.batch": frozenset({"status.successful"}),
    "resourceslices.resource.k8s.io": frozenset({"spec.nodeName", "spec.driver"}),
    "events": frozenset({
        "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
        "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
        "reason", "reportingComponent", "source", "type",
    }),
}  # fmt: skip
_FALSE_WHEN_ABSENT = frozenset({"spec.hostNetwork", "spec.unschedulable"})
_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?"
_SET_TERM = re.compile(rf"(?P<key>{_NAME})\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)")
_COMPARED = re.compile(rf"(?P<key>{_NAME})\s*(?P<operator>==|=|!=|>|<)\s*(?P<value>[-A-Za-z0-9_.]*)")
_PRESENCE = re.compile(rf"(?P<absent>!?)\s*(?P<key>{_NAME})")
_COMPARISONS: dict[str, Operator] = {"=": "In", "==": "In", "!=": "NotIn", ">": "Gt", "<": "Lt"}
_MARKS = re.compile(r"[,()]")
MOST_TERMS = 256
"""Terms and values of one selector: each of them is compared with each object."""
_CACHED_LENGTH = 256


class Selection(Struct, frozen=True):
    """Which objects of a collection a request is about: all conditions must hold."""

    namespace: str = ""
    labels: tuple[Requirement, ...] = ()
    fields: tuple[tuple[str, bool, str], ...] = ()
    """Field path, whether it must equal or must differ, text."""

    def holds(self, obj: Object) -> bool:
        if self.namespace and text_at(obj, "metadata.namespace") != self.namespace:
            return False
        labels = labels_of(obj) if self.labels else {}
        return all(holds(requirement, labels.get(requirement.key)) for requirement in self.labels) and all(
            (_field_text(obj, path) == text) is equal for path, equal, text in self.fields
        )


EVERYTHING = Selection()


def selection(resource: ServedResource, namespace: str, query: Mapping[str, str]) -> Selection:
    """The selection of `labelSelector` and `fieldSelector`. Raises a 400 Failure that names the bad term."""
    labels = parse_labels(query.get("labelSelector", ""))
    return Selection(namespace, labels, _parse_fields(resource, query.get("fieldSelector", "")))


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """`a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1,m<2`. Raises a 400 Failure."""
    # Long texts are not kept: each client could send a thousand of its own.
    return _parsed(text) if len(text) <= _CACHED_LENGTH else _parsed.__wrapped__(text)


@lru_cache(maxsize=1024)
def _parsed(text: str) -> tuple[Requirement, ...]:
    if text.count(",") >= MOST_TERMS:
        raise bad_request(f"unable to parse requirement: more than {MOST_TERMS} terms and values")
    return tuple(_requirement(term.strip()) for term in _terms(text)) if text.strip() else ()


def _terms(text: str) -> Iterator[str]:
    """The text, split at the commas that are not between parentheses."""
    start, inside = 0, False
    for match in _MARKS.finditer(text):
        mark = match[0]
        if mark == "," and not inside:
            yield text[start : match.start()]
            start = match.end()
        elif mark != ",":
            inside = mark == "("
    yield text[start:]


def _requirement(term: str) -> Requirement:
    if match := _SET_TERM.fullmatch(term):
        values = tuple(value.strip() for value in match["values"].split(","))
        return Requirement(match["key"], "In" if match["operator"] == "in" else "NotIn", values)
    if match := _COMPARED.fullmatch(term):
        operator = _COMPARISONS[match["operator"]]
        if operator in ("Gt", "Lt") and as_int64(match["value"]) is None:
            raise bad_request(f"unable to parse requirement: {term!r} compares with something that is no integer")
        return Requirement(match["key"], operator, (match["value"],))
    if match := _PRESENCE.fullmatch(term):
        return Requirement(match["key"], "DoesNotExist" if match["absent"] else "Exists")
    raise bad_request(f"unable to parse requirement: {term!r} is not a label requirement such as key=value")


def _parse_fields(resource: ServedResource, text: str) -> tuple[tuple[str, bool, str], ...]:
    if text.count(",") >= MOST_TERMS:
        raise bad_request(f"invalid selector: more than {MOST_TERMS} terms")
    parsed = []
    for term in filter(None, (term.strip() for term in text.split(","))):
        match = re.fullmatch(r"([^=!]+)(==|=|!=)(.*)", term)
        if match is None:
            raise bad_request(f"invalid selector: {term!r}; can't understand it, write field=value")
        first, dot, rest = match[1].partition(".")
        path = resource.renames.get(first, first) + dot + rest
        if path not in _EVERYWHERE | _FIELDS.get(resource.collection, frozenset()):
            raise bad_request(f"field label not supported: {match[1]}")
        parsed.append((path, match[2] != "!=", match[3]))
    return tuple(parsed)


def _field_text(obj: Object, path: str) -> str:
    value = value_at(obj, path)
    if path in _FALSE_WHEN_ABSENT:
        return "true" if value is True else "false"
    return "" if value is None else str(value)


def from_object(selector: object) -> tuple[Requirement, ...]:
    """The requirements of a LabelSelector object; an expression that is no requirement matches nothing."""
    equal = [Requirement(key, "In", (str(value),)) for key, value in object_at(selector, "matchLabels").items()]
    listed = [
        Requirement(text_at(term, "key"), term.get("operator", "In"), tuple(term.get("values") or ()))
        for term in objects_at(selector, "matchExpressions")
    ]
    return (*equal, *listed)
