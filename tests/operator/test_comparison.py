# SPDX-License-Identifier: Apache-2.0
"""Whether there is a difference is what a server-side apply itself decides: the playground's is the oracle."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.apiserver.ownership import applied, updated
from dovetail.apiserver.resources import BUILT_IN
from dovetail.operator.comparison import FIELD_MANAGER, differences
from dovetail.operator.live import LiveObject

Document = dict[str, Any]
_DEPLOYMENTS = next(resource for resource in BUILT_IN if resource.plural == "deployments")
_texts = st.sampled_from(["", "1", "x"])
_maps = st.dictionaries(st.sampled_from("abc"), _texts, max_size=3)
_container = st.fixed_dictionaries(
    {"name": st.sampled_from(["main", "side"]), "image": _texts},
    optional={
        "args": st.lists(_texts, max_size=2),
        "env": st.lists(
            st.fixed_dictionaries({"name": st.sampled_from("AB"), "value": _texts}), max_size=2,
            unique_by=lambda one: one["name"],
        ),
    },
)  # fmt: skip
_spec = st.fixed_dictionaries(
    {},
    optional={
        "replicas": st.integers(0, 2),
        "paused": st.booleans(),
        "nodeSelector": _maps,
        "containers": st.lists(_container, max_size=2, unique_by=lambda one: one["name"]),
        "tolerations": st.lists(st.fixed_dictionaries({"key": _texts}), max_size=2),
    },
)


def _documents(labels: Document, spec: Document) -> Document:
    return {"metadata": {"name": "one", "labels": labels}, "spec": spec}


documents = st.builds(_documents, _maps, _spec)


def _apply(old: Document, document: Document, manager: str = FIELD_MANAGER) -> Document:
    return applied(_DEPLOYMENTS, old, document, manager, force=True, subresource="", now_s=0.0)


def _plain(value: Any) -> Any:
    """Without what Go leaves out, and without order where elements have names."""
    if isinstance(value, dict):
        kept = {name: _plain(one) for name, one in value.items() if name != "managedFields"}
        return {name: one for name, one in kept.items() if one not in (None, "", 0, False, {}, [])}
    if isinstance(value, list):
        plain = [_plain(one) for one in value]
        named = all(isinstance(one, dict) and "name" in one for one in plain)
        return sorted(plain, key=lambda one: one["name"]) if named else plain
    return value


def _live(obj: Document) -> LiveObject:
    return msgspec.convert(obj, LiveObject)


@settings(max_examples=150)
@given(documents, documents, documents, st.booleans())
@pytest.mark.slow
def test_there_is_a_difference_where_an_apply_would_change_something(
    wanted: Document, before: Document, theirs: Document, patched: bool
) -> None:  # fmt: skip
    live = _apply({}, before)
    if patched:
        theirs = live | {"spec": live.get("spec", {}) | theirs["spec"]}
        live = updated(_DEPLOYMENTS, live, theirs, "hand", subresource="", now_s=0.0)
    else:
        live = _apply(live, theirs, "others")
    changes = _plain(_apply(live, wanted)) != _plain(live)
    found = list(differences(wanted, _live(live)))
    if changes:
        assert found
    # What is applied is as wanted.
    assert list(differences(wanted, _live(_apply(live, wanted)))) == []


@pytest.mark.parametrize(
    ("wanted", "live"),
    [
        ({"limits": {"cpu": "1000m", "memory": "1Gi"}}, {"limits": {"cpu": "1", "memory": "1Gi"}}),
        ({"limits": {"cpu": 1}}, {"limits": {"cpu": "1"}}),
        ({"env": []}, {}),
        ({"hostNetwork": False}, {}),
        ({"ports": [{"containerPort": 1}]}, {"ports": [{"containerPort": 1, "protocol": "TCP"}, {"containerPort": 2}]}),
        # Two elements have one key, as a port of TCP and of UDP may.
        ({"ports": [{"port": 53, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]},) * 2,
        ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "a", "operator": "Equal"}]}),
    ],
)
def test_what_an_api_server_writes_otherwise_is_no_difference(wanted: Document, live: Document) -> None:
    assert list(differences(_documents({}, wanted), _live(_documents({}, live)))) == []


@pytest.mark.parametrize(
    ("wanted", "live", "path"),
    [
        ({"limits": {"cpu": "1001m"}}, {"limits": {"cpu": "1"}}, "spec.limits.cpu"),
        ({"image": "1000m"}, {"image": "1"}, "spec.image"),
        ({"args": ["a", "b"]}, {"args": ["b", "a"]}, "spec.args[0]"),
        ({"tolerations": []}, {"tolerations": [{"key": "a"}]}, "spec.tolerations"),
        ({"containers": [{"name": "a", "image": "x"}]}, {"containers": [{"name": "b"}]}, "spec.containers[a].name"),
    ],
)
def test_a_difference_is_named_by_its_path(wanted: Document, live: Document, path: str) -> None:
    assert next(differences(_documents({}, wanted), _live(_documents({}, live)))) == path
