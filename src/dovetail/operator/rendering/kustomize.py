# SPDX-License-Identifier: Apache-2.0
"""The objects of a folder with a kustomization, as kustomize makes them: the part of it that the trees of deploy/ use.

resources (files and folders), components, patches (JSON 6902 and strategic merge), images, namespace,
configMapGenerator with generatorOptions. Everything else is refused. Names are never suffixed with a hash, as agents
take up changed configurations while they run. Objects are in the order in which they were read; kustomize sorts them.
Source: api/internal/target/kusttarget.go and api/internal/builtins of sigs.k8s.io/kustomize.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from dovetail.kube.json_values import copied_json
from dovetail.kube.yaml_text import Loader
from dovetail.operator.rendering.patches import json_patched, merged

Document = dict[str, Any]

CLUSTER_SCOPED = frozenset(
    {
        *("APIService", "ClusterRole", "ClusterRoleBinding", "CSIDriver", "CSINode", "CustomResourceDefinition"),
        *("DeviceClass", "IngressClass", "MutatingWebhookConfiguration", "Namespace", "Node", "PersistentVolume"),
        *("PriorityClass", "RuntimeClass", "StorageClass", "ValidatingAdmissionPolicy"),
        *("ValidatingAdmissionPolicyBinding", "ValidatingWebhookConfiguration"),
    }
)
_KINDS = ("Kustomization", "Component")
_FIELDS = frozenset(
    {
        *("apiVersion", "kind", "metadata", "namespace", "resources", "components", "generatorOptions"),
        *("configMapGenerator", "patches", "images"),
    }
)


class KustomizationError(Exception):
    """A kustomization that cannot be built: the file, and what is wrong or not supported in it."""


def build(folder: Path, kustomization: Mapping[str, Any] | None = None) -> list[Document]:
    """The objects of a folder; `kustomization` is used instead of the folder's own file.

    Raises KustomizationError, and OSError for a file that cannot be read. The objects are the caller's own copies.
    """
    return _accumulated(folder, [], kustomization)


def select(objects: Iterable[Document], kind: str, name: str) -> Document:
    """The one object of this kind and name. Raises KeyError."""
    for document in objects:
        if document["kind"] == kind and document["metadata"]["name"] == name:
            return document
    raise KeyError(f"{kind} {name}")


def _accumulated(folder: Path, objects: list[Document], override: Mapping[str, Any] | None) -> list[Document]:
    made = dict(override) if override is not None else read_kustomization(folder)
    unknown = made.keys() - _FIELDS
    if made.get("kind", "Kustomization") not in _KINDS or unknown:
        raise KustomizationError(f"{folder}: {', '.join(sorted(unknown)) or made.get('kind')} is not supported")
    for name in made.get("resources", ()):
        _add(folder / name, objects)
    for name in made.get("components", ()):
        _accumulated(folder / name, objects, None)
    for generator in made.get("configMapGenerator", ()):
        objects.append(_config_map(folder, generator, made.get("generatorOptions", {})))
    for patch in made.get("patches", ()):
        _patch(folder, patch, objects)
    if namespace := made.get("namespace"):
        _move(objects, namespace)
    for image in made.get("images", ()):
        for document in objects:
            _rename_image(document, image)
    return objects


def read_kustomization(folder: Path) -> Document:
    """The kustomization of a folder, the caller's own copy. Raises KustomizationError."""
    found = _read(folder / "kustomization.yaml")
    if len(found) != 1:
        raise KustomizationError(f"{folder}: kustomization.yaml must have one document")
    return found[0]


@lru_cache(maxsize=256)
def _parsed(text: str) -> tuple[Any, ...]:
    return tuple(yaml.load_all(text, Loader))


def _read(path: Path) -> list[Document]:
    return [copied_json(document) for document in _parsed(path.read_text()) if document]


def _add(path: Path, objects: list[Document]) -> None:
    for document in _accumulated(path, [], None) if path.is_dir() else _read(path):
        if any(_identity(document) == _identity(other) for other in objects):
            raise KustomizationError(f"{path}: {' '.join(_identity(document))} is there twice")
        objects.append(document)


def _identity(document: Document) -> tuple[str, str, str, str]:
    metadata = document["metadata"]
    return document["apiVersion"].rpartition("/")[0], document["kind"], metadata.get("namespace", ""), metadata["name"]


def _config_map(folder: Path, generator: Mapping[str, Any], options: Mapping[str, Any]) -> Document:
    known = {"name", "namespace", "files", "literals", "options"}
    options = {**options, **generator.get("options", {})}
    if generator.keys() - known or options != {"disableNameSuffixHash": True}:
        raise KustomizationError(f"{folder}: configMapGenerator {generator.get('name')}: an option is not supported")
    data = {}
    for entry in generator.get("files", ()):
        key, _, name = entry.rpartition("=")
        data[key or Path(name).name] = (folder / name).read_text()
    for entry in generator.get("literals", ()):
        key, _, value = entry.partition("=")
        data[key] = value
    metadata = {field: generator[field] for field in ("name", "namespace") if field in generator}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _patch(folder: Path, patch: Mapping[str, Any], objects: list[Document]) -> None:
    if patch.keys() - {"target", "patch", "path"} or ("patch" in patch) == ("path" in patch):
        raise KustomizationError(f"{folder}: a patch must have a target, and either patch or path")
    texts = patch["patch"] if "patch" in patch else (folder / patch["path"]).read_text()
    for content in _parsed(texts):
        target = patch.get("target") or _target(content)
        chosen = [i for i, document in enumerate(objects) if _is_target(target, document)]
        # kustomize ignores a target that nothing has; a patch without effect is a mistake in deploy/.
        if not chosen:
            raise KustomizationError(f"{folder}: no object is the target {target}")
        for i in chosen:
            objects[i] = (
                json_patched(objects[i], content) if isinstance(content, list) else _merged(objects[i], content)
            )


def _merged(document: Document, patch: Document) -> Document:
    """The patch has names of its own only to find its target."""
    without = {field: value for field, value in patch.items() if field not in ("apiVersion", "kind", "metadata")}
    metadata = {k: v for k, v in patch.get("metadata", {}).items() if k not in ("name", "namespace")}
    return merged(document, without | ({"metadata": metadata} if metadata else {}))


def _target(patch: Any) -> Document:
    if not isinstance(patch, dict):
        raise KustomizationError("a JSON patch must have a target")
    metadata = patch["metadata"]
    target = {"kind": patch["kind"], "name": re.escape(metadata["name"])}
    return target | ({"namespace": re.escape(metadata["namespace"])} if "namespace" in metadata else {})


def _is_target(target: Mapping[str, str], document: Document) -> bool:
    group, _, version = document["apiVersion"].rpartition("/")
    metadata = document["metadata"]
    values = {"group": group, "version": version, "kind": document["kind"], "name": metadata["name"]}
    values |= {"namespace": metadata.get("namespace", "")}
    if target.keys() - values.keys():
        raise KustomizationError(f"target {dict(target)}: only {', '.join(values)} are supported")
    return all(re.fullmatch(pattern, values[field]) for field, pattern in target.items())


def _move(objects: list[Document], namespace: str) -> None:
    accounts = {d["metadata"]["name"] for d in objects if d["kind"] == "ServiceAccount"} | {"default"}
    for document in objects:
        if document["kind"] == "Namespace":
            document["metadata"]["name"] = namespace
        elif document["kind"] not in CLUSTER_SCOPED:
            document["metadata"]["namespace"] = namespace
        for subject in document.get("subjects", ()) if document["kind"].endswith("RoleBinding") else ():
            if subject["kind"] == "ServiceAccount" and subject["name"] in accounts:
                subject["namespace"] = namespace


def _rename_image(document: Document, image: Mapping[str, str]) -> None:
    for container in containers(document):
        name, tag, digest = image_parts(container.get("image", ""))
        if name != image["name"]:
            continue
        if image.keys() & {"newTag", "digest"}:
            tag, digest = image.get("newTag", ""), image.get("digest", "")
        name = image.get("newName", name)
        container["image"] = f"{name}{f':{tag}' if tag else ''}{f'@{digest}' if digest else ''}"


def image_parts(image: str) -> tuple[str, str, str]:
    """Name, tag and digest of an image; what it does not have is empty. A registry may have a port."""
    rest, _, digest = image.partition("@")
    folder, slash, last = rest.rpartition("/")
    last, _, tag = last.partition(":")
    return f"{folder}{slash}{last}", tag, digest


def containers(document: Document) -> Iterator[Document]:
    """All containers of the pods of an object, also those that run before the others."""
    spec = pod_spec(document)
    for field in ("initContainers", "containers"):
        yield from (spec or {}).get(field, ())


def pod_spec(document: Document) -> Document | None:
    """The spec of the pods of an object, to be changed in place; None where it has no pods."""
    path: Callable[[Document], Document | None] | None = _POD_SPECS.get(document["kind"])
    return path(document) if path else None


def _of_template(document: Document) -> Document | None:
    spec: Document | None = document["spec"]["template"]["spec"]
    return spec


_POD_SPECS: Mapping[str, Callable[[Document], Document | None]] = {
    "Pod": lambda document: document["spec"],
    "CronJob": lambda document: _of_template(document["spec"]["jobTemplate"]),
    **dict.fromkeys(("Deployment", "DaemonSet", "StatefulSet", "ReplicaSet", "Job"), _of_template),
}
