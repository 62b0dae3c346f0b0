# SPDX-License-Identifier: Apache-2.0
"""Whatever was broken in a correct manifest, and however many things at once: what can be mended is mended, in one go,
and all else stays."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.advice.lint.edits import Edit, edited
from dovetail.advice.lint.engine import lint
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.field import Path as FieldPath
from dovetail.advice.lint.fix import fixed
from dovetail.advice.lint.inventory import facts_of
from dovetail.advice.lint.pods import gpus_of, templates_of
from dovetail.advice.lint.rules import BY_ID, RULES
from dovetail.advice.lint.source import SourceDocument, document, documents
from dovetail.kube.yaml_text import Loader
from tests.advice.lint.layouts import LAYOUTS, comments, written

CORPUS = Path(__file__).parent / "corpus"
# Through JSON, so that no two fields are one, as they are behind an anchor.
WHOLE: list[dict[str, Any]] = [
    json.loads(json.dumps(whole.value))
    for file in sorted(CORPUS.iterdir())
    for read in documents(file.name, file.read_text())
    for whole in read.objects()
]
FACTS = facts_of(
    whole for read in documents("nodes", (CORPUS.parent / "corpus-nodes.yaml").read_text()) for whole in read.objects()
)
Break = Callable[[dict[str, Any], random.Random], bool]
"""Breaks an object in place; False where there is nothing of the kind to break."""


def pods(whole: Any) -> Iterator[dict[str, Any]]:
    yield from (pod.spec.value for pod in templates_of(Field(whole)) if pod.gpu_containers)


def resources(whole: Any) -> list[dict[str, Any]]:
    """Of containers with GPUs, with both sides there."""
    found = []
    for pod in templates_of(Field(whole)):
        for container in pod.gpu_containers:
            value = container.at("resources").value
            value.setdefault("requests", {})
            found.append(value)
    return found


def gpu_name(of: dict[str, Any]) -> str:
    return next(name for name, _ in gpus_of(Field({"resources": of})))


def no_limit(whole: dict[str, Any], dice: random.Random) -> bool:
    return any(_no_limit(of) for of in resources(whole))


def _no_limit(of: dict[str, Any]) -> bool:
    name = gpu_name(of)
    of["requests"][name] = of["limits"].pop(name, of["requests"].get(name))
    return True


def unequal(whole: dict[str, Any], dice: random.Random) -> bool:
    for of in resources(whole):
        name = gpu_name(of)
        if name in of["limits"]:
            of["requests"][name] = int(of["limits"][name]) + dice.randint(1, 3)
            return True
    return False


def misnamed(whole: dict[str, Any], dice: random.Random) -> bool:
    return renamed_gpu(whole, dice.choice(["nvidia.com/gpus", "nvidia/gpu", "gpu", "nvidia-gpu"]))


def retired(whole: dict[str, Any], dice: random.Random) -> bool:
    return renamed_gpu(whole, "alpha.kubernetes.io/nvidia-gpu")


def renamed_gpu(whole: dict[str, Any], to: str) -> bool:
    done = False
    for of in resources(whole):
        for side in ("limits", "requests"):
            entries = of.get(side, {})
            if "nvidia.com/gpu" in entries:
                of[side] = {to if key == "nvidia.com/gpu" else key: value for key, value in entries.items()}
                done = True
    return done


def quota(whole: dict[str, Any], dice: random.Random) -> bool:
    if whole["kind"] != "ResourceQuota":
        return False
    hard, prefix = whole["spec"]["hard"], dice.choice(["", "limits."])
    named = [key for key in hard if key.startswith("requests.nvidia.com/")]
    chosen = dice.choice(named)
    whole["spec"]["hard"] = {
        prefix + key.removeprefix("requests.") if key == chosen else key: value for key, value in hard.items()
    }
    return True


def affinity_operator(whole: dict[str, Any], dice: random.Random) -> bool:
    for spec in pods(whole):
        at = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms", 0)
        for one in Field(spec).at(*at, "matchExpressions").each():
            if one.at("operator").text == "In":
                one.value["operator"] = dice.choice(["in", "Equals", "Equal"])
                return True
    return False


def toleration_operator(whole: dict[str, Any], dice: random.Random) -> bool:
    for spec in pods(whole):
        for one in spec.get("tolerations", []):
            if one.get("operator") == "Exists" and "key" in one:
                one["operator"] = "exists"
                return True
    return False


def no_toleration(whole: dict[str, Any], dice: random.Random) -> bool:
    return any(bool(spec.pop("tolerations", None)) for spec in pods(whole))


def part_of_a_cpu(whole: dict[str, Any], dice: random.Random) -> bool:
    for pod in close_to_the_gpus(whole):
        for of in resources(pod):
            for side in ("limits", "requests"):
                if "cpu" in of[side]:
                    of[side]["cpu"] = "3500m"
        return True
    return False


def less_requested(whole: dict[str, Any], dice: random.Random) -> bool:
    for pod in close_to_the_gpus(whole):
        for of in resources(pod):
            of["requests"]["memory"] = "1Gi"
        return True
    return False


def close_to_the_gpus(whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The first template, whose pods now want their CPUs on the NUMA nodes of their GPUs."""
    for pod in templates_of(Field(whole)):
        if pod.gpu_containers:
            meta = pod.field.value.setdefault("metadata", {})
            meta.setdefault("annotations", {})["volcano.sh/numa-topology-policy"] = "single-numa-node"
            yield {"apiVersion": "v1", "kind": "Pod", "spec": pod.spec.value}
            return


def no_shared_memory(whole: dict[str, Any], dice: random.Random) -> bool:
    for spec in pods(whole):
        if any(volume["name"] == "shm" for volume in spec.get("volumes", [])):
            spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] != "shm"]
            for container in spec["containers"]:
                mounts = container.get("volumeMounts", [])
                container["volumeMounts"] = [mount for mount in mounts if mount["name"] != "shm"]
            return True
    return False


def host_network(whole: dict[str, Any], dice: random.Random) -> bool:
    for spec in pods(whole):
        spec["hostNetwork"] = True
        return True
    return False


def failures(whole: dict[str, Any], dice: random.Random) -> bool:
    if whole["kind"] != "Job" or whole["apiVersion"] != "batch/v1":
        return False
    whole["spec"].pop("backoffLimit", None)
    return whole["spec"].pop("podFailurePolicy", None) is not None


def product(whole: dict[str, Any], dice: random.Random) -> bool:
    for spec in pods(whole):
        wanted = spec.get("nodeSelector", {})
        if wanted.get("nvidia.com/gpu.product") == "NVIDIA-H100-80GB-HBM3":
            wanted["nvidia.com/gpu.product"] = dice.choice(["NVIDIA-H100-80GB-HMB3", "H100-80GB-HBM3"])
            return True
    return False


FAULTS: dict[Break, str] = {
    no_limit: "G01", unequal: "G02", misnamed: "G04", retired: "G05", affinity_operator: "G07",
    toleration_operator: "G09", quota: "G15", less_requested: "G17", part_of_a_cpu: "G18", no_shared_memory: "G20",
    host_network: "G23", no_toleration: "G26", failures: "G31", product: "G34",
}  # fmt: skip
"""And the rule that mends it, where it looks at all: CPUs of pods that no kubelet pins are their own business."""
ALWAYS = ("G01", "G02", "G04", "G05", "G07", "G09", "G15")
"""Rules that find the fault whatever else the manifest has."""


def broken(dice: random.Random) -> tuple[dict[str, Any], set[str]]:
    """(a manifest of the corpus with one to four faults, the rules that mend them)."""
    while True:
        whole = copy.deepcopy(dice.choice(WHOLE))
        done = {FAULTS[fault] for fault in dice.sample(list(FAULTS), 14) if dice.random() < 0.3 and fault(whole, dice)}
        if done:
            return whole, done


def mendable(of: SourceDocument) -> list[tuple[str, str]]:
    return [(one.rule, one.path) for one in lint((of,), FACTS, RULES) if one.fixable]


def edits_of(text: str) -> list[Edit]:
    """All that mends, one finding at a time, on values alone."""
    made: list[Edit] = []
    value = yaml.load(text, Loader)
    for _ in range(100):
        at = document("x", yaml.dump(value, Dumper=yaml.CSafeDumper, sort_keys=False), 1)
        first = next((one for one in lint((at,), FACTS, RULES) if one.fixable), None)
        if first is None:
            return made
        made += first.edits
        value = edited(value, first.edits)
    raise AssertionError(f"does not end: {made[-4:]}")


def scalars(value: Any, path: FieldPath = ()) -> dict[FieldPath, Any]:
    """Each field at the bottom, and each that is empty."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = {at: leaf for key, each in inner for at, leaf in scalars(each, (*path, key)).items()}
    return found or {path: value}


def named(edits: list[Edit]) -> set[FieldPath]:
    """Below these, edits may change something. What goes from a list moves those behind it."""
    places = set()
    for one in edits:
        places.add(one.path[:-1] if one.op == "drop" and isinstance(one.path[-1], int) else one.path)
        if one.op == "rename":
            places.add((*one.path[:-1], one.value))
    return places


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.sampled_from(LAYOUTS), st.integers(0, 2**32))
def test_all_faults_are_mended_and_nothing_else_changes(layout: str, seed: int) -> None:
    dice = random.Random(seed)
    whole, faults = broken(dice)
    before = written(whole, layout, dice)
    read = document("x", before, 1)
    assert read.value == whole
    if len(faults) == 1 and faults <= {*ALWAYS} & {*BY_ID}:
        assert faults & {rule for rule, _ in mendable(read)}, before
    after = fixed(read, FACTS, RULES)
    assert mendable(after) == [], after.text
    assert fixed(after, FACTS, RULES).text == after.text
    edits = edits_of(before)
    places = named(edits)
    old, new = scalars(whole), scalars(after.value)
    # A mapping that was empty, or is now, is a field at the bottom of one side only.
    changed = {path for path in old.keys() | new.keys() if (path in old, old.get(path)) != (path in new, new.get(path))}
    for path in changed:
        assert any(path[: len(at)] == at or at[: len(path)] == path for at in places), (path, edits, after.text)
    lost = comments(before) - comments(after.text)
    taken = [one for one in edits if one.op == "drop" or (one.op == "put" and isinstance(one.value, dict | list))]
    assert not lost or taken, (lost, before, after.text)
    if layout == "crlf" and "\r\n" in before:
        assert after.text.count("\n") == after.text.count("\r\n")


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "rule"), [(fault, rule) for fault, rule in FAULTS.items() if rule in BY_ID])
def test_every_fault_is_one_that_its_rule_mends(fault: Break, rule: str) -> None:
    dice = random.Random(7)
    mended = 0
    for whole in copy.deepcopy(WHOLE):
        if fault(whole, dice):
            before = document("x", yaml.dump(whole, Dumper=yaml.CSafeDumper, sort_keys=False), 1)
            found = [one for one, _ in mendable(before)]
            mended += rule in found and rule not in [one for one, _ in mendable(fixed(before, FACTS, RULES))]
            assert rule in found or rule not in ALWAYS, before.text
    assert mended


def test_an_edit_that_would_change_more_is_not_fixable() -> None:
    """Both containers have one mapping, and only one of them is to change."""
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n"
    first = "  - {name: a, image: 'a:1', resources: {requests: %s{nvidia.com/gpu: 1}}}\n"
    shared = pod + first % "&all " + "  - {name: b, image: 'a:1', resources: {limits: *all, requests: *all}}\n"
    assert [one.fixable for one in lint([document("x", pod + first % "", 1)], FACTS, [BY_ID["G01"]])] == [True]
    unequal = shared.replace("requests: *all}", "requests: {nvidia.com/gpu: 2}}")
    found = list(lint([document("x", unequal, 1)], FACTS, [BY_ID["G02"]]))
    assert [one.fixable for one in found] == [True]
    whole = shared.replace("limits: *all, requests: *all", "limits: {nvidia.com/gpu: 2}, requests: *all")
    refused = list(lint([document("x", whole, 1)], FACTS, [BY_ID["G02"]]))
    assert [(bool(one.edits), one.fixable) for one in refused] == [(True, False)]
    assert fixed(document("x", whole, 1), FACTS, [BY_ID["G02"]]).text == whole


def test_the_text_of_a_finding_is_what_its_fix_does() -> None:
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - name: a\n    image: a:1\n"
    text = pod + "    resources: {limits: {nvidia.com/gpu: 1}, requests: {nvidia.com/gpu: 2}}\n"
    (found,) = lint([document("x", text, 1)], FACTS, [BY_ID["G02"]])
    assert "write 1 for both" in found.message
    assert fixed(document("x", text, 1), FACTS, [BY_ID["G02"]]).text == text.replace("gpu: 2", "gpu: 1")


def test_a_finding_whose_edits_have_no_place_has_no_patch() -> None:
    pod = "apiVersion: v1\nkind: Pod\nspec:\n  volumes: true\n  containers:\n  - name: a\n    image: torch:1\n"
    text = pod + "    volumeMounts: 3\n    resources: {limits: {nvidia.com/gpu: 2}}\n"
    (found,) = lint([document("x", text, 1)], FACTS, [BY_ID["G20"]])
    assert (len(found.edits), found.fixable, found.patch) == (2, False, ())
