# SPDX-License-Identifier: Apache-2.0
"""Lists: by pages, and as of a version.

A continue token holds the version of the first page, and later pages are read as of that version, from the history. So
all pages show one moment; a token that is older than the history is refused with 410, as upstream after a compaction.

Sources: k8s.io/apiserver/pkg/storage/continue.go, pkg/storage/cacher/delegator/interface.go.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

import msgspec

from dovetail.apiserver import failures
from dovetail.apiserver.objects import Key, Object
from dovetail.apiserver.selectors import selection
from dovetail.apiserver.store import Store
from dovetail.apiserver.views import ObjectView
from dovetail.core.json_text import JsonError, decode_json

_MATCHES = ("", "Exact", "NotOlderThan")


class _Continue(msgspec.Struct):
    """A place in a list, as upstream encodes it."""

    v: str
    rv: int
    start: str


def list_page(store: Store, view: ObjectView, namespace: str, query: Mapping[str, str]) -> Object:
    """One page of a list. Raises 400, 410 and 504 Failures."""
    resource = view.resource
    selected = selection(resource, namespace, query)
    limit = number(query, "limit")
    token = query.get("continue", "")
    place = _decode(token) if token else _Continue("", _version(store, query), "")
    if token and query.get("resourceVersion"):
        raise failures.bad_request("specifying resource version is not allowed when using continue")
    objects = store.collection(resource.collection).as_of(place.rv)
    start = _key(place.start) if token else ("", "")
    rest = [(key, objects[key]) for key in sorted(objects) if key > start and selected.holds(objects[key])]
    page = rest[:limit] if limit else rest
    metadata: Object = {"resourceVersion": str(place.rv)}
    if len(page) < len(rest):
        metadata["continue"] = _encode(place.rv, page[-1][0])
        if not (selected.labels or selected.fields):
            metadata["remainingItemCount"] = len(rest) - len(page)
    return view.of_list([obj for _, obj in page], metadata)


def _version(store: Store, query: Mapping[str, str]) -> int:
    """The version to list at: any version is the newest one, and so is one that may not be older than something."""
    requested, match = number(query, "resourceVersion"), query.get("resourceVersionMatch", "")
    if match not in _MATCHES or (match and not query.get("resourceVersion")) or (match == "Exact" and not requested):
        causes = [failures.wrong("resourceVersionMatch", match, "needs a resourceVersion; Exact or NotOlderThan")]
        raise failures.invalid("meta.k8s.io", "ListOptions", "", causes)
    store.check_version(requested)
    exact = match == "Exact" or (not match and requested and number(query, "limit"))
    return requested if exact else store.version


def number(query: Mapping[str, str], name: str) -> int:
    """A whole number from the query, 0 where it is absent. Raises a 400 Failure."""
    text = query.get(name) or "0"
    if not text.isdecimal():
        raise failures.bad_request(f"{name}: invalid value {text!r}: a whole number is needed")
    return int(text)


def _encode(version: int, last: Key) -> str:
    document = msgspec.json.encode(_Continue("meta.k8s.io/v1", version, "/".join(last)))
    return base64.urlsafe_b64encode(document).decode().rstrip("=")


def _decode(token: str) -> _Continue:
    try:
        return decode_json(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)), _Continue)
    except (binascii.Error, UnicodeError, JsonError) as error:
        raise failures.bad_request(f"continue key is not valid: {error}") from error


def _key(start: str) -> Key:
    namespace, _, name = start.partition("/")
    return namespace, name
