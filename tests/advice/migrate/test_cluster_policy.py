# SPDX-License-Identifier: Apache-2.0
"""Every field of a ClusterPolicy is converted or reported, and what is made is a GPUStack."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from dovetail.advice.lint.source import documents
from dovetail.advice.migrate.plan import plan
from dovetail.advice.migrate.step import MigrationOutcome
from dovetail.kube.objects.stack import GPUStack
from dovetail.operator.rendering.contradictions import contradictions
from tests.advice.migrate.moved import left, migrated, values

FULL, CONFIG = yaml.safe_load_all((Path(__file__).parent / "cases" / "gpu-operator.yaml").read_text())
HEAD: dict[str, Any] = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}}


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    else:
        yield path, value


LEAVES = dict(leaves(FULL["spec"]))


def policy(spec: dict[str, Any], *others: dict[str, Any]) -> str:
    return yaml.safe_dump_all([HEAD | {"spec": spec}, *others], sort_keys=False)


def stack(text: str) -> dict[str, Any]:
    made = values(migrated(text).text)[0]
    assert (made["apiVersion"], made["kind"]) == ("dovetail.dev/v1alpha1", "GPUStack")
    assert contradictions(msgspec.convert(made, GPUStack, strict=True).spec) == []
    spec: dict[str, Any] = made["spec"]
    return spec


def with_one(path: tuple[str, ...], value: Any) -> str:
    spec: dict[str, Any] = {}
    at = spec
    for step in path[:-1]:
        at = at.setdefault(step, {})
    at[path[-1]] = value
    return policy(spec)


@pytest.mark.parametrize("path", LEAVES, ids=".".join)
@pytest.mark.slow
def test_each_field_is_converted_or_reported(path: tuple[str, ...]) -> None:
    shown = f"spec.{'.'.join(path)}"
    tried = [LEAVES[path], not LEAVES[path]] if isinstance(LEAVES[path], bool) else [LEAVES[path]]
    texts = [with_one(path, value) for value in tried]
    reported = [one for text in texts for one in left(migrated(text))]
    converted = any(stack(text) != stack(policy({})) for text in texts)
    assert converted or any(shown == one or shown.startswith(f"{one}.") for one in reported)


def test_the_whole_policy() -> None:
    spec = stack(policy(FULL["spec"]))
    assert spec == {
        "runtime": {"className": "nvidia-gpu"},
        "agent": {"pools": [{"name": "default", "mig": {"strategy": "mixed"}, "extraArgs": ["--exporter-job-labels"]}]},
        "metrics": {"scrape": "ServiceMonitor", "intervalSeconds": 30},
        "upgrade": {"maxNodes": "1", "drain": "Evict", "deadlineSeconds": 600},
        "takeOver": ["device-plugin", "gpu-feature-discovery", "dcgm-exporter"],
    }


def test_an_empty_policy_takes_over_what_it_would_run() -> None:
    found = migrated(policy({}))
    assert stack(policy({})) == {"takeOver": ["device-plugin", "gpu-feature-discovery", "dcgm-exporter"]}
    assert left(found) == []


def test_what_is_switched_off_is_not_taken_over() -> None:
    off = {name: {"enabled": False} for name in ("devicePlugin", "gfd", "dcgmExporter", "driver", "toolkit", "gds")}
    assert stack(policy(off)) == {"agent": {"pools": [{"name": "default", "allocation": "None", "labels": False}]}}
    assert left(migrated(policy(off))) == ["spec.devicePlugin.enabled"]


def test_what_a_server_and_helm_wrote_is_gone() -> None:
    (made, _) = values(migrated((Path(__file__).parent / "cases" / "gpu-operator.yaml").read_text()).text)
    assert made["metadata"] == {"name": "cluster-policy"}
    assert "status" not in made


def test_configurations_of_the_device_plugin_are_pools() -> None:
    spec = {"devicePlugin": {"config": {"name": "plugin-config", "default": "any"}}}
    found = migrated(policy(spec, CONFIG))
    label = "nvidia.com/device-plugin.config"
    assert stack(policy(spec, CONFIG))["agent"]["pools"] == [
        {
            "name": "notebooks",
            "nodeSelector": {"matchLabels": {label: "notebooks"}},
            "sharing": {
                "strategy": "time-slicing",
                "resources": [{"name": "nvidia.com/gpu", "replicas": 4}],
                "failRequestsGreaterThanOne": True,
            },
        },
        {
            "name": "mps-small-2",
            "nodeSelector": {"matchLabels": {label: "MPS_small"}},
            "sharing": {"strategy": "mps", "resources": [{"name": "nvidia.com/gpu", "replicas": 10}]},
        },
        {"name": "default"},
    ]
    messages = [one.message for one in found.notes if one.outcome is MigrationOutcome.LEFT]
    assert messages == [
        "notebooks: plugin: the agent has options of its own",
        "MPS_small: renameByDefault: a GPUStack offers replicas as nvidia.com/gpu",
    ]


def test_what_a_stack_refuses_is_reported_instead() -> None:
    both = "sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}"
    config = CONFIG | {"data": {"default": both}}
    spec = {"mig": {"strategy": "single"}, "devicePlugin": {"config": {"name": "plugin-config"}}}
    (pool,) = stack(policy(spec, config))["agent"]["pools"]
    assert pool["sharing"]["strategy"] == "mps" and "mig" not in pool
    assert "spec.devicePlugin" in left(migrated(policy(spec, config)))
    off = policy({"mig": {"strategy": "single"}, "devicePlugin": {"enabled": False}})
    assert stack(off)["agent"]["pools"] == [{"name": "default", "allocation": "None"}]


@pytest.mark.parametrize(
    ("policy_of_upgrades", "made"),
    [
        ({"maxParallelUpgrades": 0}, {"maxNodes": "100%"}),
        ({"maxParallelUpgrades": 0, "maxUnavailable": "25%"}, {"maxNodes": "25%"}),
        ({"maxUnavailable": 3}, {"maxNodes": "3"}),
        ({"drain": {"enable": False, "timeoutSeconds": 60}}, {"deadlineSeconds": 60}),
    ],
)
def test_upgrades(policy_of_upgrades: dict[str, Any], made: dict[str, Any]) -> None:
    assert stack(policy({"driver": {"upgradePolicy": policy_of_upgrades}}))["upgrade"] == made


@pytest.mark.parametrize("interval", ["1m30s", "500ms"])
def test_an_interval_that_is_no_number_of_seconds_is_reported(interval: str) -> None:
    text = policy({"dcgmExporter": {"serviceMonitor": {"interval": interval}}})
    assert left(migrated(text)) == ["spec.dcgmExporter.serviceMonitor.interval"]


def test_the_plan_of_a_migration_names_the_plan_of_the_takeover() -> None:
    found = migrated(policy({}))
    made = [whole for each in documents("made.yaml", found.text) for whole in each.objects()]
    checks = [step.check for step in plan(made, found.notes, ("policy.yaml",))]
    assert "dovetail install --plan --stack FILE" in checks


def test_a_newer_field_is_reported_at_every_level() -> None:
    spec = copy.deepcopy(FULL["spec"]) | {"newer": 1}
    for section in ("operator", "daemonsets", "devicePlugin", "gfd", "dcgmExporter", "migManager", "cdi", "hostPaths"):
        spec[section]["newer"] = 1
    found = left(migrated(policy(spec)))
    assert "spec.newer" in found
    assert {one.split(".")[1] for one in found if one.endswith(".newer") and one.count(".") == 2} == {
        "operator", "daemonsets", "devicePlugin", "gfd", "dcgmExporter", "migManager", "cdi", "hostPaths",
    }  # fmt: skip


DRIVER = {
    "apiVersion": "nvidia.com/v1alpha1",
    "kind": "NVIDIADriver",
    "metadata": {"name": "h100"},
    "spec": {
        "driverType": "gpu", "repository": "nvcr.io/nvidia", "image": "driver", "version": "580.65.06",
        "nodeSelector": {"a": "b"}, "usePrecompiled": True,
    },
}  # fmt: skip


def test_a_driver_by_digest_is_the_stacks() -> None:
    digest = f"sha256:{'0' * 64}"
    text = yaml.safe_dump(DRIVER | {"spec": {"repository": "nvcr.io/nvidia", "image": "driver", "version": digest}})
    assert stack(text) == {"driver": {"mode": "Container", "image": f"nvcr.io/nvidia/driver@{digest}"}}
    assert left(migrated(text)) == []


def test_a_driver_by_tag_is_reported_field_by_field() -> None:
    text = yaml.safe_dump(DRIVER)
    assert stack(text) == {}
    assert set(left(migrated(text))) == {f"spec.{name}" for name in DRIVER["spec"]}


@pytest.mark.parametrize("other", [HEAD | {"spec": {}}, DRIVER | {"metadata": {"name": "a100"}}])
def test_drivers_beside_others_stay(other: dict[str, Any]) -> None:
    text = yaml.safe_dump_all([DRIVER, other], sort_keys=False)
    found = migrated(text)
    assert values(found.text)[0] == DRIVER
    assert "kind" in left(found)


def test_the_stack_of_claims_is_reported() -> None:
    text = "apiVersion: nvidia.com/v1alpha1\nkind: GPUCluster\nmetadata: {name: g}\nspec: {}\n"
    assert left(migrated(text)) == ["kind"] and migrated(text).text == text
