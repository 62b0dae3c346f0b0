# SPDX-License-Identifier: Apache-2.0
"""The trees of `deploy/`, as they are shipped in this package, and what all of their pods have in common."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from dovetail import __version__
from dovetail.kube.json_values import copied_json
from dovetail.kube.objects.stack import Resources, StackImage
from dovetail.operator.rendering.kustomize import build, containers, image_parts, pod_spec, read_kustomization

Document = dict[str, Any]

FOLDER = Path(__file__).parents[1] / "manifests"
"""A link to deploy/ in a clone, its files in an installed package."""
OWN_IMAGE = "dovetail"
"""What the manifests call the image of scheduler and agents."""


def tree(name: str, components: Iterable[str] = ()) -> list[Document]:
    """The objects of a folder of `deploy/` with these components instead of its own, with images as in the manifests.

    "" is the folder of the scheduler. Components are names below `functions/`. The objects are the caller's own copies
    of what is built once: the files of a running operator do not change.
    """
    return copied_json(_built(FOLDER / name, tuple(components)))


@lru_cache(maxsize=64)
def _built(folder: Path, components: tuple[str, ...]) -> list[Document]:
    kustomization = read_kustomization(folder)
    kustomization.pop("images", None)
    return build(folder, kustomization | {"components": [f"functions/{one}" for one in components]})


def image_name(image: StackImage, operator_image: str) -> str:
    """The image of scheduler and agents: the operator's own unless the spec names another one."""
    if not image.repository and not image.tag and not image.digest:
        return operator_image
    name = image.repository or image_parts(operator_image)[0]
    if image.digest:
        return f"{name}@{image.digest}"
    return f"{name}:{image.tag or __version__}"


def set_images(document: Document, image: StackImage, name: str) -> None:
    """Set the image of the containers that run Dovetail, the pull policy of all of them, and the pod's pull secrets."""
    for container in containers(document):
        if container["image"] == OWN_IMAGE:
            container["image"] = name
        if image.pull_policy:
            container["imagePullPolicy"] = image.pull_policy
    spec = pod_spec(document)
    if spec is not None and image.pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret} for secret in image.pull_secrets]


def set_resources(container: Document, resources: Resources) -> None:
    """Requests and limits of the spec win, by resource, over those of the manifest."""
    for field, amounts in (("requests", resources.requests), ("limits", resources.limits)):
        if amounts:
            container.setdefault("resources", {}).setdefault(field, {}).update(amounts)
