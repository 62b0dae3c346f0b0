# SPDX-License-Identifier: Apache-2.0
"""Kubernetes objects written as YAML, decoded the way the reflectors decode them: through JSON."""

import json
from typing import Any, TypeVar

import msgspec
import yaml

from dovetail.kube.api.reflector import Change
from dovetail.kube.objects.pods import Pod

T = TypeVar("T")


def wire(kind: type[T], text: str) -> T:
    return msgspec.json.decode(json.dumps(yaml.safe_load(text), default=str), type=kind)


def pod(text: str = "", **metadata: Any) -> Pod:
    """A pod of this scheduler with one container; `text` is merged over it, `metadata` over that."""
    document: dict[str, Any] = {
        "metadata": {"name": "a", "namespace": "ml", "uid": "u-a"},
        "spec": {"schedulerName": "dovetail", "containers": [{"name": "main"}]},
    }
    for part, fields in (yaml.safe_load(text) or {}).items():
        document[part] = document.get(part, {}) | fields
    document["metadata"] = document["metadata"] | metadata
    return msgspec.json.decode(json.dumps(document, default=str), type=Pod)


def added(*found: T) -> list[Change[T]]:
    return [Change("added", obj) for obj in found]


def deleted(*found: T) -> list[Change[T]]:
    return [Change("deleted", obj) for obj in found]
