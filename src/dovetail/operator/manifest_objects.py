# SPDX-License-Identifier: Apache-2.0
"""The objects of an installation, from the package's own copy of deploy/: definitions of our kinds, and the operator.

What the operator then installs is in `rendering`.
"""

from __future__ import annotations

from dovetail.kube.api.resources import GPU_STACKS
from dovetail.operator.rendering import kustomize
from dovetail.operator.rendering.sources import FOLDER, tree
from dovetail.operator.rendering.stack_objects import Document

OPERATOR = "dovetail-operator"
"""The name of its Deployment, its account and its roles."""


def definitions() -> tuple[Document, ...]:
    """The definitions of Dovetail's kinds, the caller's own copies."""
    return tuple(tree("crds"))


def operator_objects(image: str = "") -> tuple[Document, ...]:
    """The operator: namespaces, account, roles, policies, Deployment; with the empty GPUStack as the last. `image` is
    that of the Deployment, "" for this release's."""
    objects = kustomize.build(FOLDER / "operator")
    if image:
        deployment = kustomize.select(objects, "Deployment", OPERATOR)
        for container in kustomize.containers(deployment):
            container["image"] = image
    return tuple(sorted(objects, key=lambda one: one["kind"] == GPU_STACKS.kind))
