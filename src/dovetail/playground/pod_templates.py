# SPDX-License-Identifier: Apache-2.0
"""What the controllers of pods share: pods made from a template, the hash of a template, which pods count."""

from __future__ import annotations

import hashlib

import msgspec

from dovetail.apiserver.objects import (
    Object,
    condition_of,
    object_at,
    seconds_of,
    text_at,
    value_at,
)
from dovetail.apiserver.pods import is_finished

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


def template_hash(template: Object) -> str:
    """The same for equal templates; the letters are those that names of pods have."""
    number = int.from_bytes(hashlib.blake2b(msgspec.json.encode(template, order="sorted"), digest_size=8).digest())
    letters = ""
    for _ in range(10):
        number, rest = divmod(number, len(_LETTERS))
        letters += _LETTERS[rest]
    return letters


def reference_to(api_version: str, kind: str, owner: Object) -> Object:
    """The owner reference of a controller."""
    return {
        "apiVersion": api_version, "kind": kind, "name": text_at(owner, "metadata.name"),
        "uid": text_at(owner, "metadata.uid"), "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip


def pod_of(owner: Object, reference: Object, labels: Object, spec: Object) -> Object:
    """A pod by the template of its owner, with more labels, and this spec."""
    template = object_at(owner, "spec.template.metadata")
    metadata = {
        "generateName": f"{text_at(owner, 'metadata.name')}-",
        "labels": object_at(template, "labels") | labels,
        "annotations": object_at(template, "annotations"),
        "ownerReferences": [reference],
    }
    return {"metadata": metadata, "spec": spec}


def is_active(pod: Object) -> bool:
    return not text_at(pod, "metadata.deletionTimestamp") and not is_finished(pod)


def is_ready(pod: Object) -> bool:
    return condition_of(pod, "Ready").get("status") == "True"


def is_available(pod: Object, min_ready_s: int, now_s: float) -> bool:
    """Whether the pod has been ready for long enough."""
    if not is_ready(pod):
        return False
    since_s = seconds_of(str(condition_of(pod, "Ready").get("lastTransitionTime", "")))
    return not min_ready_s or (since_s is not None and since_s + min_ready_s <= now_s)


def number(obj: Object, path: str, default: int) -> int:
    value = value_at(obj, path)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def part(value: object, whole: int, *, up: bool) -> int:
    """A number, or a part of the whole such as 25%, rounded up or down. What cannot be read is 0."""
    if isinstance(value, int):
        return value
    text = str(value)
    if not text.endswith("%") or not text[:-1].isdecimal():
        return 0
    percent = int(text[:-1])
    return -(-whole * percent // 100) if up else whole * percent // 100
