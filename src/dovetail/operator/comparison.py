# SPDX-License-Identifier: Apache-2.0
"""Whether an object in the cluster has all fields that the operator applies, and no field of an earlier apply more.

An API server fills in defaults and writes quantities in one form, webhooks and controllers add fields of their own: all
of that is no difference. A list whose elements have a key is compared element by element, and may have more elements;
any other list must be equal. What the operator applied before and does not want any more is found in
metadata.managedFields, where server-side apply keeps the fields of each manager.

A difference that is none costs a request that changes nothing (see `apply`); a difference that is missed would never
be mended. So what is unknown counts as a difference.

Sources: k8s.io/api (listMapKey and patchMergeKey tags), sigs.k8s.io/structured-merge-diff (fieldsV1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dovetail.core.json_text import JsonError, decode_json
from dovetail.core.quantities import QuantityError, parse
from dovetail.operator.live import LiveObject
from dovetail.operator.rendering.stack_objects import Document

FIELD_MANAGER = "dovetail-operator"
_KEYS: dict[str, tuple[str, ...]] = {
    "containers": ("name",), "initContainers": ("name",), "volumes": ("name",), "env": ("name",),
    "imagePullSecrets": ("name",), "secrets": ("name",), "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ownerReferences": ("uid",), "hostAliases": ("ip",), "ports": ("containerPort", "port"),
    "topologySpreadConstraints": ("topologyKey",), "validations": ("expression",), "matchConditions": ("name",),
    "variables": ("name",),
}  # fmt: skip
"""Field -> the keys that may identify an element of its list."""
_QUANTITY = re.compile(r"\.(limits|requests|hard)\.[^.]*$|\.(sizeLimit|divisor)$")


def differences(wanted: Document, live: LiveObject, manager: str = FIELD_MANAGER) -> Iterator[str]:
    """The paths at which the live object is not as wanted, and those that `manager` applied before and are not
    wanted."""
    wanted = {name: value for name, value in wanted.items() if name not in ("apiVersion", "kind", "status")}
    yield from _lacking(wanted, live.content, "")
    for part in live.metadata.managed_fields:
        if part.manager == manager and part.operation == "Apply" and not part.subresource:
            yield from _beyond(part.fields_v1, wanted, "")


def _lacking(wanted: Any, live: Any, path: str) -> Iterator[str]:
    if wanted == live or (_empty(wanted) and _empty(live)):
        return
    if isinstance(wanted, Mapping):
        inside = live if isinstance(live, Mapping) else {}
        for name, value in wanted.items():
            yield from _lacking(value, inside.get(name), f"{path}.{name}" if path else name)
    elif isinstance(wanted, list | tuple):
        yield from _lacking_elements(wanted, live if isinstance(live, list | tuple) else (), path)
    elif not _same_quantity(wanted, live, path):
        yield path


def _lacking_elements(wanted: Sequence[Any], live: Sequence[Any], path: str) -> Iterator[str]:
    key = _key_of(path.rpartition(".")[2], wanted)
    if key is not None:
        by_key = {one.get(key): one for one in live if isinstance(one, Mapping)}
        for one in wanted:
            yield from _lacking(one, by_key.get(one[key]), f"{path}[{one[key]}]")
    elif len(wanted) != len(live):
        yield path
    else:
        for number, (one, other) in enumerate(zip(wanted, live, strict=True)):
            yield from _lacking(one, other, f"{path}[{number}]")


def _key_of(field: str, elements: Sequence[Any]) -> str | None:
    keys = _KEYS.get(field, ())
    return next((key for key in keys if all(isinstance(one, Mapping) and key in one for one in elements)), None)


def _empty(value: Any) -> bool:
    """Go leaves out fields with these values, or writes them: it is the same."""
    return value is None or value is False or (not isinstance(value, bool) and value in ("", 0, {}, [], ()))


def _same_quantity(wanted: Any, live: Any, path: str) -> bool:
    if live is None or not _QUANTITY.search(path):
        return False
    try:
        return parse(str(wanted)) == parse(str(live))
    except QuantityError:
        return False


def _beyond(fields: Mapping[str, Any], wanted: Any, path: str) -> Iterator[str]:
    """The applied fields (fieldsV1) that are not wanted."""
    for step, below in fields.items():
        kind, _, text = step.partition(":")
        if kind == "f":
            inside, there = f"{path}.{text}" if path else text, isinstance(wanted, Mapping) and text in wanted
            if not there:
                yield inside
            elif below:
                yield from _beyond(below, wanted[text], inside)
        elif kind in ("k", "v"):
            element = _element(kind, text, wanted)
            if element is None:
                yield f"{path}[{text}]"
            elif kind == "k":
                yield from _beyond(below, element, f"{path}[{text}]")


def _element(kind: str, text: str, wanted: Any) -> Any:
    """The wanted element that the step of a path names; None where there is none."""
    elements = wanted if isinstance(wanted, list | tuple) else ()
    try:
        named = decode_json(text.encode(), object)
    except JsonError:
        return None
    if kind == "v" or not isinstance(named, dict):
        return named if named in elements else None
    for one in elements:
        # A key may have a default (the protocol of a port): then the document need not have it.
        if isinstance(one, Mapping) and all(name not in one or one[name] == value for name, value in named.items()):
            return one
    return None
