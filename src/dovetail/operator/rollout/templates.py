# SPDX-License-Identifier: Apache-2.0
"""The marks in the templates of DaemonSets, by which it is known of which template a pod is. Pure."""

from __future__ import annotations

from dovetail.kube.api.resources import DAEMON_SETS
from dovetail.kube.json_values import copied_json
from dovetail.operator.live import digest
from dovetail.operator.rendering.stack_objects import Document
from dovetail.operator.watched.pods import TEMPLATE


def stamped(document: Document, templates: dict[str, str]) -> Document:
    """The document; of a DaemonSet that is updated node by node with the mark of its template, which is noted."""
    spec = document.get("spec") or {}
    if document["kind"] != DAEMON_SETS.kind or spec.get("updateStrategy", {}).get("type") != "OnDelete":
        return document
    found = copied_json(document)
    template = found["spec"]["template"]
    mark = digest(template).hex()
    templates[found["metadata"]["name"]] = mark
    template.setdefault("metadata", {}).setdefault("annotations", {})[TEMPLATE] = mark
    return found
