# SPDX-License-Identifier: Apache-2.0
"""Labels and annotations under dovetail.dev/."""

from typing import Any

import pytest

from dovetail.core.model import Problem
from dovetail.kube.objects.base import ObjectMeta
from dovetail.kube.translate import annotations
from dovetail.kube.translate.annotation_values import LEVELS
from dovetail.kube.translate.annotations import ENDPOINT_RULE, PREFIX, TABLE, Key, WorkloadOptions, options_of


def annotated(**values: str) -> WorkloadOptions:
    return options_of(ObjectMeta(annotations={PREFIX + key.replace("_", "-"): value for key, value in values.items()}))


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        ("gang", "train-7", "gang", "train-7"),
        ("gang-min", "4", "gang_min", 4),
        ("gang-max", "16", "gang_max", 16),
        ("topology-required", "block", "required", ("network.topology.nvidia.com/block",)),
        ("topology-preferred", "rack, zone,example.com/row,row", "preferred",
         ("dovetail.dev/rack", "topology.kubernetes.io/zone", "example.com/row", "row")),
        ("topology-spread", "rack", "spread", "dovetail.dev/rack"),
        ("topology-spread", "example.com/row", "spread", "example.com/row"),
        ("nvlink", "preferred", "nvlink", "preferred"),
        ("nvlink", "required", "nvlink", "required"),
        ("gpu-memory", "8Gi", "gpu_memory_mib", 8192),
        ("gpu-memory", "8192Mi", "gpu_memory_mib", 8192),
        ("gpu-memory", "1.5Gi", "gpu_memory_mib", 1536),
        ("gpu-memory", "8G", "gpu_memory_mib", 7630),
        ("gpu-memory", "1048577", "gpu_memory_mib", 2),
        ("gpu-fraction", "0.5", "gpu_milli", 500),
        ("gpu-fraction", ".125", "gpu_milli", 125),
        ("gpu-fraction", "1", "gpu_milli", 1000),
        ("gpu-fraction", "0.3333", "gpu_milli", 334),
        ("gpu-fraction", "0.000001", "gpu_milli", 1),
        ("gpu-isolation", "none", "isolation", "none"),
        ("gpu-isolation", "memory", "isolation", "memory"),
        ("gpu-isolation", "strong", "isolation", "strong"),
        ("max-runtime", "90m", "max_runtime_ms", 90 * 60_000),
        ("max-runtime", "2d", "max_runtime_ms", 2 * 86_400_000),
        ("max-runtime", "1h30m", "max_runtime_ms", 90 * 60_000),
        ("checkpoint-interval", "3600s", "checkpoint_interval_ms", 3_600_000),
        ("startup-time", "1m30s", "startup_ms", 90_000),
        ("headroom", "2", "headroom", 2),
        ("headroom", "64", "headroom", 64),
        ("last-checkpoint", "2026-01-01T01:00:00+01:00", "last_checkpoint_ms", 1767225600000),
        ("preemptible", "false", "preemptible", False),
        ("movable", "true", "movable", True),
        ("hold", "true", "hold", True),
        ("hold", "false", "hold", False),
    ],
)  # fmt: skip
def test_what_can_be_asked_for(key: str, value: str, field: str, expected: Any) -> None:
    options = annotated(**{key: value})
    assert (getattr(options, field), options.problems) == (expected, ())


def test_the_user_is_a_label() -> None:
    assert options_of(ObjectMeta(labels={"dovetail.dev/user": "ada"})) == WorkloadOptions(user="ada")
    (problem,) = options_of(ObjectMeta(labels={"dovetail.dev/user": ""})).problems
    assert problem.field == "metadata.labels[dovetail.dev/user]"


def test_the_queue_is_a_label() -> None:
    assert options_of(ObjectMeta(labels={"dovetail.dev/queue": "research"})) == WorkloadOptions(queue="research")
    assert annotated(queue="research").problems == (
        Problem("metadata.annotations[dovetail.dev/queue]", "research", "must be in metadata.labels"),
    )
    misplaced = options_of(ObjectMeta(labels={"dovetail.dev/gang": "g"})).problems
    assert misplaced == (Problem("metadata.labels[dovetail.dev/gang]", "g", "must be in metadata.annotations"),)


@pytest.mark.parametrize(
    ("key", "value", "nearest"),
    [
        ("gang", "a b", "my-gang"),
        ("gang-min", "0", "1"),
        ("gang-min", "-3", "1"),
        ("gang-min", "1.5", "1"),
        ("gang-max", "many", "1"),
        ("topology-required", "zone,,rack", "zone"),
        ("topology-required", "zone/", "zone"),
        ("topology-preferred", "-rack", "rack"),
        ("topology-preferred", "Bad_Domain/rack", "rack"),
        ("topology-spread", "zone,rack", "zone"),
        ("topology-spread", "", "zone"),
        ("nvlink", "requierd", "required"),
        ("nvlink", "prefered", "preferred"),
        ("gpu-memory", "8GB", "8G"),
        ("gpu-memory", "0", "1Mi"),
        ("gpu-memory", "-4Gi", "1Mi"),
        ("gpu-memory", "16", "16Mi"),
        ("gpu-memory", "8192 Mi", "8192Mi"),
        ("gpu-memory", "", "8Gi"),
        ("gpu-fraction", "0", "0.001"),
        ("gpu-fraction", "0.0", "0.001"),
        ("gpu-fraction", "-0.5", "0.001"),
        ("gpu-fraction", "1.001", "1"),
        ("gpu-fraction", "50", "1"),
        ("gpu-fraction", "0,5", "0.5"),
        ("gpu-fraction", "1/2", "1"),
        ("gpu-isolation", "memery", "memory"),
        ("gpu-isolation", "Strong", "strong"),
        ("max-runtime", "90 minutes", "90m"),
        ("max-runtime", "3600", "3600s"),
        ("max-runtime", "30m1h", "1h30m"),
        ("max-runtime", "0s", "3600s"),
        ("max-runtime", "", "90m"),
        ("max-runtime", "9999999999d", "2d"),
        ("max-runtime", "٣h", "1h30m"),
        ("checkpoint-interval", "half an hour", "1h30m"),
        ("startup-time", "0m", "2m"),
        ("headroom", "0", "2"),
        ("headroom", "65", "64"),
        ("headroom", "6/hour", "2"),
        ("headroom", "-1/h", "1"),
        ("headroom", "1.5", "1"),
        ("headroom-return", "0s", "2s"),
        ("last-checkpoint", "2026-01-01T12:00:00", "2026-01-31T12:00:00Z"),
        ("last-checkpoint", "yesterday", "2026-01-31T12:00:00Z"),
        ("preemptible", "True", "true"),
        ("movable", "yes", "true"),
        ("hold", "True", "true"),
    ],
)  # fmt: skip
def test_a_bad_value_names_the_field_the_rule_and_the_nearest_valid_value(key: str, value: str, nearest: str) -> None:
    options = annotated(**{key: value})
    (problem,) = options.problems
    assert (problem.field, problem.value) == (f"metadata.annotations[dovetail.dev/{key}]", value)
    assert problem.rule == f"{TABLE[key].rule}; nearest valid value: {nearest}"


@pytest.mark.parametrize(
    ("rate", "startup", "instances"), [("12/h", "8m", 2), ("1/m", "5m", 5), ("24/d", "1h", 1), ("1/d", "1s", 1)]
)
def test_headroom_by_a_rate_is_what_is_added_while_one_starts(rate: str, startup: str, instances: int) -> None:
    options = annotated(headroom=rate, startup_time=startup)
    assert (options.headroom, options.headroom_return_ms, options.problems) == (instances, 60_000, ())


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ({}, "is a rate, which needs dovetail.dev/startup-time beside it; without that state a number of instances"),
        ({"startup_time": "6h"}, "is 360 instances in the start-up time; the limit is 64"),
    ],
)
def test_headroom_by_a_rate_that_is_no_number_of_instances(more: dict[str, str], rule: str) -> None:
    options = annotated(headroom="1/m", **more)
    (problem,) = options.problems
    assert (problem.field, problem.value) == ("metadata.annotations[dovetail.dev/headroom]", "1/m")
    assert (problem.rule, options.headroom) == (rule, 0)


def test_the_return_of_headroom_without_headroom_is_no_silence() -> None:
    options = annotated(headroom_return="2s")
    (problem,) = options.problems
    assert (problem.field, problem.value) == ("metadata.annotations[dovetail.dev/headroom-return]", "2s")
    rule = "has no effect without dovetail.dev/headroom beside it: state for how many instances room is kept"
    assert problem.rule == rule
    beside = annotated(headroom="1", headroom_return="2s")
    assert (beside.headroom, beside.headroom_return_ms, beside.problems) == (1, 2000, ())
    # Headroom that is wrong is one fault, not two.
    (problem,) = annotated(headroom="many", headroom_return="2s").problems
    assert problem.field == "metadata.annotations[dovetail.dev/headroom]"


def test_an_unknown_key_names_the_nearest_known_one() -> None:
    (problem,) = annotated(topology_require="rack").problems
    assert problem.field == "metadata.annotations[dovetail.dev/topology-require]"
    assert problem.rule.endswith("nearest known key: dovetail.dev/topology-required")


def test_what_we_write_ourselves_and_what_is_not_ours_is_left_alone() -> None:
    assert annotated(devices="0,1", decision="17", rank="3") == WorkloadOptions()
    assert options_of(ObjectMeta(annotations={"example.com/gang": "?"}, labels={"dovetail": "x"})) == WorkloadOptions()


@pytest.mark.parametrize(
    ("text", "indices"),
    [("0", (0,)), ("0,1,2,3", (0, 1, 2, 3)), ("7,0", (7, 0)), ("61", (61,))]
    + [
        (text, None)
        for text in ("", "0,", "0,,1", "0 1", "0, 1", "-1", "01", "0,0", "62", "99999999999", "GPU-a", "1.0")
    ],
)
def test_indices_of_gpus(text: str, indices: tuple[int, ...] | None) -> None:
    assert annotations.indices_of(text) == indices


@pytest.mark.parametrize(("name", "key"), TABLE.items())
def test_every_example_in_the_table_is_valid(name: str, key: Key) -> None:
    for example in key.examples:
        value = {PREFIX + name: example}
        if name == "headroom-return":
            value[PREFIX + "headroom"] = "1"
        meta = ObjectMeta(labels=value) if key.place == "labels" else ObjectMeta(annotations=value)
        rules = [problem.rule for problem in options_of(meta).problems]
        assert rules == ([] if key.field else [ENDPOINT_RULE])


@pytest.mark.parametrize(
    ("key", "value", "nearest"),
    [
        ("lease-duration", "0.5s", "600s"),
        ("lease-duration", "721h", "720h"),
        ("lease-duration", "0s", "1s"),
        ("lease-class", "burst", "Burst"),
    ],
)
def test_what_endpoints_read_has_its_rule_everywhere(key: str, value: str, nearest: str) -> None:
    (problem,) = annotated(**{key: value}).problems
    assert problem.rule == f"{TABLE[key].rule}; nearest valid value: {nearest}"


def test_every_short_name_of_a_level_is_documented() -> None:
    assert all(name in (annotations.__doc__ or "") for name in LEVELS)
