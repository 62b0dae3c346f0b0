# SPDX-License-Identifier: Apache-2.0
"""The trees of deploy/ as kustomize builds them, with each two of the agent's functions."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail.operator.rendering.kustomize import (
    CLUSTER_SCOPED,
    KustomizationError,
    build,
    containers,
    image_parts,
    pod_spec,
    select,
)
from dovetail.operator.rendering.sources import FOLDER, tree
from tests.paths import ROOT
from tools.helm.programs import Kustomize

Document = dict[str, Any]
DEPLOY = ROOT / "deploy"
FUNCTIONS = sorted(path.name for path in (DEPLOY / "agent/functions").iterdir())


def by_name(objects: Iterable[Document]) -> dict[tuple[str, str, str], Document]:
    """kustomize puts a namespace also on kinds that it does not know to have none; the API server ignores it."""
    found = {}
    for document in objects:
        if document["kind"] in CLUSTER_SCOPED:
            document["metadata"].pop("namespace", None)
        found[document["kind"], document["metadata"].get("namespace", ""), document["metadata"]["name"]] = document
    return found


@pytest.mark.plane
@pytest.mark.parametrize("folder", ["", "agent", "crds", "device-classes", "driver", "toolkit", "operator"])
def test_each_tree_is_what_kustomize_makes(kustomize: Kustomize, folder: str) -> None:
    assert by_name(build(DEPLOY / folder)) == by_name(kustomize.build(DEPLOY / folder))


def some_functions() -> list[tuple[str, ...]]:
    """None, all in both orders, and others until each two were together: a patch meets at most what another one did."""
    rng = random.Random(33)
    together = set(combinations(FUNCTIONS, 2))
    found: list[tuple[str, ...]] = [(), tuple(FUNCTIONS), tuple(reversed(FUNCTIONS))]
    while together:
        chosen = rng.sample(FUNCTIONS, len(FUNCTIONS) // 2)
        if news := together & set(combinations(sorted(chosen), 2)):
            together -= news
            found.append(tuple(chosen))
    return found


@pytest.mark.plane
def test_the_functions_of_the_agent_are_what_kustomize_makes_of_them(kustomize: Kustomize, tmp_path: Path) -> None:
    shutil.copytree(DEPLOY / "agent", tmp_path / "agent")
    file = tmp_path / "agent/kustomization.yaml"
    kustomization = yaml.safe_load(file.read_text())
    for functions in some_functions():
        image = {"name": "dovetail", "newName": "registry.example:5000/dovetail"}
        image |= {"newTag": "9"} if len(functions) % 2 else {"digest": "sha256:" + "0" * 64}
        kustomization |= {"components": [f"functions/{one}" for one in functions], "images": [image]}
        file.write_text(yaml.safe_dump(kustomization))
        assert by_name(build(DEPLOY / "agent", kustomization)) == by_name(kustomize.build(file.parent)), functions


@pytest.mark.plane
def test_the_scheduler_s_function_is_what_kustomize_makes_of_it(kustomize: Kustomize, tmp_path: Path) -> None:
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    file = tmp_path / "deploy/kustomization.yaml"
    kustomization = yaml.safe_load(file.read_text()) | {"components": ["functions/authorized-metrics"]}
    file.write_text(yaml.safe_dump(kustomization))
    assert by_name(build(DEPLOY, kustomization)) == by_name(kustomize.build(file.parent))


def test_the_package_has_the_manifests() -> None:
    assert FOLDER.resolve() == DEPLOY


def test_what_one_caller_changes_no_other_one_sees() -> None:
    select(tree("agent", ["labels"]), "DaemonSet", "dovetail-agent")["spec"].clear()
    daemon_set = select(tree("agent", ["labels"]), "DaemonSet", "dovetail-agent")
    (agent,) = containers(daemon_set)
    assert "--labels" in agent["args"]
    assert agent["image"] == "dovetail", "an image is set by the caller"
    assert pod_spec(select(tree("agent"), "ClusterRole", "dovetail-agent")) is None


def test_an_object_that_is_not_there_is_named() -> None:
    with pytest.raises(KeyError, match="DaemonSet other"):
        select(tree("agent"), "DaemonSet", "other")


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("dovetail", ("dovetail", "", "")),
        ("r.example:5000/a/b", ("r.example:5000/a/b", "", "")),
        ("r.example:5000/a/b:1.2", ("r.example:5000/a/b", "1.2", "")),
        ("a@sha256:0", ("a", "", "sha256:0")),
        ("a:1@sha256:0", ("a", "1", "sha256:0")),
    ],
)
def test_the_parts_of_an_image(image: str, parts: tuple[str, str, str]) -> None:
    assert image_parts(image) == parts


def write(folder: Path, kustomization: Document, **files: object) -> Path:
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    for name, content in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    return folder


CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "n"}, "data": {}}
PATCH = [{"op": "add", "path": "/data/a", "value": "b"}]


@pytest.mark.parametrize(
    ("kustomization", "message"),
    [
        ({"namePrefix": "x-"}, "namePrefix is not supported"),
        ({"kind": "Transformer"}, "Transformer is not supported"),
        ({"resources": ["one.yaml", "one.yaml"]}, "is there twice"),
        ({"resources": ["one.yaml"], "patches": [{"target": {"kind": "Secret"}, "patch": "[]"}]}, "no object"),
        ({"resources": ["one.yaml"], "patches": [{"patch": "[]"}]}, "must have a target"),
        ({"resources": ["one.yaml"], "patches": [{"target": {"labelSelector": "a"}, "patch": "[]"}]}, "only group"),
        ({"configMapGenerator": [{"name": "c", "literals": ["a=b"]}]}, "option is not supported"),
        ({"configMapGenerator": [{"name": "c", "envs": ["f"]}]}, "option is not supported"),
    ],
)
def test_what_is_not_supported_is_refused(tmp_path: Path, kustomization: Document, message: str) -> None:
    with pytest.raises(KustomizationError, match=message):
        build(write(tmp_path, kustomization, one=CONFIG))


def test_targets_are_patterns_for_the_whole_name(tmp_path: Path) -> None:
    longer = CONFIG | {"metadata": {"name": "cc", "namespace": "n"}}
    patch = yaml.safe_dump(PATCH)
    for name, patched in (("c", [True, False]), ("c+", [True, True])):
        made = {"resources": ["one.yaml", "two.yaml"], "patches": [{"target": {"name": name}, "patch": patch}]}
        objects = build(write(tmp_path, made, one=CONFIG, two=longer))
        assert [one["data"] == {"a": "b"} for one in objects] == patched
