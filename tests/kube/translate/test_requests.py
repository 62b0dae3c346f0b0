# SPDX-License-Identifier: Apache-2.0
"""How much a pod asks for."""

import json
from fractions import Fraction
from math import ceil
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.quantities import parse
from dovetail.kube.objects.pods import Pod
from dovetail.kube.translate.requests import effective
from tests.kube.yaml_objects import pod

GIB = 2**30


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("{containers: [{name: a}]}", {}),
        ("{containers: [{resources: {limits: {cpu: 2, nvidia.com/gpu: 8}}}]}", {"cpu": 2000, "nvidia.com/gpu": 8}),
        ("{containers: [{resources: {requests: {cpu: 500m}, limits: {cpu: 2, memory: 1Gi}}}]}",
         {"cpu": 500, "memory": GIB}),
        ("{containers: [{resources: {requests: {cpu: 1}}}, {resources: {requests: {cpu: 0.5}}}]}", {"cpu": 1500}),
        # An init container counts where it is larger than all that runs after it.
        ("{containers: [{resources: {requests: {cpu: 1, memory: 2Gi}}}],"
         " initContainers: [{resources: {requests: {cpu: 3, memory: 1Gi}}}]}", {"cpu": 3000, "memory": 2 * GIB}),
        # A sidecar runs on beside the containers, and beside the init containers that come after it.
        ("{containers: [{resources: {requests: {cpu: 1}}}],"
         " initContainers: [{restartPolicy: Always, resources: {requests: {cpu: 2}}}]}", {"cpu": 3000}),
        ("{containers: [{resources: {requests: {cpu: 1}}}], initContainers: ["
         "{resources: {requests: {cpu: 4}}}, {restartPolicy: Always, resources: {requests: {cpu: 2}}},"
         " {resources: {requests: {cpu: 5}}}]}", {"cpu": 7000}),
        # Pod-level requests replace what the containers ask of cpu, memory and hugepages.
        ("{containers: [{resources: {limits: {cpu: 4, nvidia.com/gpu: 1}}}], resources: {requests: {cpu: 2}},"
         " overhead: {cpu: 250m, memory: 1Gi}}", {"cpu": 2250, "memory": GIB, "nvidia.com/gpu": 1}),
        ("{containers: [{resources: {requests: {cpu: 1}}}], resources: {limits: {cpu: 8, memory: 1Gi}}}",
         {"cpu": 1000, "memory": GIB}),
        # Fractions of a unit are added up before they are rounded.
        ("{containers: [{resources: {requests: {cpu: 100u}}}, {resources: {requests: {cpu: 100u}}}]}", {"cpu": 1}),
        ("{containers: [{resources: {limits: {memory: 100m, example.com/fpga: '0'}}}]}", {"memory": 1}),
    ],
)  # fmt: skip
def test_amounts(spec: str, expected: dict[str, int]) -> None:
    resources, problems, *_ = effective(pod(f"spec: {spec}"))
    assert (dict(resources), problems) == (expected, ())
    assert [name for name, _ in resources] == sorted(expected)


@pytest.mark.parametrize(
    ("resources", "field", "value", "rule"),
    [
        ("{limits: {nvidia.com/gpu: -1}}", "limits[nvidia.com/gpu]", "-1", "nearest valid value: 0"),
        ("{limits: {nvidia.com/gpu: 1.5}}", "limits[nvidia.com/gpu]", "1.5", "nearest valid value: 2"),
        ("{limits: {nvidia.com/gpu: 500m}}", "limits[nvidia.com/gpu]", "500m", "nearest valid value: 1"),
        ("{limits: {nvidia.com/gpu: lots}}", "limits[nvidia.com/gpu]", "lots", "is not a quantity"),
        ("{requests: {nvidia.com/gpu: 2}}", "requests[nvidia.com/gpu]", "2", "needs an equal limit"),
        ("{requests: {nvidia.com/gpu: 2}, limits: {nvidia.com/gpu: 4}}", "requests[nvidia.com/gpu]", "2",
         "must equal the limit; nearest valid value: 4"),
        ("{requests: {cpu: 2}, limits: {cpu: 500m}}", "requests[cpu]", "2", "nearest valid value: 500m"),
        ("{requests: {memory: 1 GB}}", "requests[memory]", "1 GB", "is not a quantity"),
    ],
)  # fmt: skip
def test_a_bad_quantity_is_a_problem_and_counts_as_absent(resources: str, field: str, value: str, rule: str) -> None:
    amounts, problems, *_ = effective(pod(f"spec: {{containers: [{{name: ok}}, {{resources: {resources}}}]}}"))
    problem = problems[0]
    assert (problem.field, problem.value) == (f"spec.containers[1].resources.{field}", value)
    assert rule in problem.rule
    assert dict(amounts).get("nvidia.com/gpu", 0) >= 0
    assert all(amount < 2**62 for _, amount in amounts)


RESIZED = """
spec: {{containers: [{{name: main, resources: {{requests: {{cpu: {spec}}}}}}}]}}
status:
  conditions: {conditions}
  containerStatuses:
  - {{name: main, allocatedResources: {{cpu: {allocated}}}, resources: {{requests: {{cpu: {in_force}}}}}}}
"""


@pytest.mark.parametrize(
    ("spec", "allocated", "in_force", "conditions", "expected"),
    [
        (1, 2, 3, "[]", 3000),
        (1, 4, 3, "[]", 4000),
        (8, 2, 2, "[{type: PodResizePending, status: 'True', reason: Deferred}]", 8000),
        (8, 2, 2, "[{type: PodResizePending, status: 'True', reason: Infeasible}]", 2000),
    ],
)
def test_a_resize_counts_until_it_is_infeasible(
    spec: int, allocated: int, in_force: int, conditions: str, expected: int
) -> None:
    text = RESIZED.format(spec=spec, allocated=allocated, in_force=in_force, conditions=conditions)
    assert effective(pod(text))[0] == (("cpu", expected),)


CPU = st.sampled_from([None, "0", "100m", "1", "2500m", 3])
SETS = st.fixed_dictionaries({"cpu": CPU, "memory": st.sampled_from([None, "64Mi", "1Gi", "1e9"])}).map(
    lambda amounts: {name: value for name, value in amounts.items() if value is not None}
)
STATUS = st.none() | SETS
CONTAINERS = st.lists(st.tuples(SETS, SETS, STATUS, STATUS, st.booleans()), max_size=4)


@given(CONTAINERS, CONTAINERS, SETS, SETS, STATUS, STATUS, SETS, st.booleans())
@pytest.mark.slow
def test_agrees_with_the_upstream_algorithm_written_down_literally(
    main: list[Any], init: list[Any], pod_requests: dict[str, Any], pod_limits: dict[str, Any],
    pod_allocated: dict[str, Any] | None, pod_in_force: dict[str, Any] | None, overhead: dict[str, Any],
    infeasible: bool,
) -> None:  # fmt: skip
    document = _document(main, init, pod_requests, pod_limits, pod_allocated, pod_in_force, overhead, infeasible)
    expected = {
        name: ceil(value * 1000 if name == "cpu" else value) for name, value in _pod_requests(document).items() if value
    }
    decoded = msgspec.json.decode(json.dumps(document), type=Pod)
    assert dict(effective(decoded)[0]) == expected


def _document(
    main: list[Any], init: list[Any], pod_requests: Any, pod_limits: Any, pod_allocated: Any, pod_in_force: Any,
    overhead: Any, infeasible: bool,
) -> dict[str, Any]:  # fmt: skip
    def spec_of(prefix: str, containers: list[Any]) -> list[Any]:
        return [
            {"name": f"{prefix}{i}", "resources": {"requests": requests, "limits": limits}}
            | ({"restartPolicy": "Always"} if sidecar and prefix == "i" else {})
            for i, (requests, limits, _, _, sidecar) in enumerate(containers)
        ]

    def status_of(prefix: str, containers: list[Any]) -> list[Any]:
        return [
            {"name": f"{prefix}{i}"}
            | ({"allocatedResources": allocated} if allocated else {})
            | ({"resources": {"requests": in_force}} if in_force else {})
            for i, (_, _, allocated, in_force, _) in enumerate(containers)
        ]

    return {
        "spec": {
            "containers": spec_of("m", main),
            "initContainers": spec_of("i", init),
            "resources": {"requests": pod_requests, "limits": pod_limits},
            "overhead": overhead,
        },
        "status": {
            "conditions": [{"type": "PodResizePending", "reason": "Infeasible"}] if infeasible else [],
            "containerStatuses": status_of("m", main),
            "initContainerStatuses": status_of("i", init),
        }
        | ({"allocatedResources": pod_allocated} if pod_allocated else {})
        | ({"resources": {"requests": pod_in_force}} if pod_in_force else {}),
    }


# The oracle: k8s.io/component-helpers/resource/helpers.go of 1.37, function by function, after the server's defaults.


def _read(amounts: dict[str, Any] | None) -> dict[str, Fraction] | None:
    return None if amounts is None else {name: parse(str(value)) for name, value in amounts.items()}


def _defaulted(container: dict[str, Any]) -> dict[str, Fraction]:
    requests = dict(_read(container["resources"]["requests"]) or {})
    for name, limit in (_read(container["resources"]["limits"]) or {}).items():
        if name not in requests:
            requests[name] = limit
    return requests


def _add_to(result: dict[str, Fraction], more: dict[str, Fraction] | None) -> None:
    for name, value in (more or {}).items():
        result[name] = result[name] + value if name in result else value


def _max_into(result: dict[str, Fraction], more: dict[str, Fraction] | None) -> None:
    for name, value in (more or {}).items():
        if name not in result or value > result[name]:
            result[name] = value


def _aggregate(document: dict[str, Any], view: str, infeasible: bool) -> dict[str, Fraction]:
    status = document["status"]
    statuses = {s["name"]: s for s in status["initContainerStatuses"] + status["containerStatuses"]}

    def requests_of(container: dict[str, Any]) -> dict[str, Fraction] | None:
        found = statuses[container["name"]]
        if view == "actuated" and "resources" in found:
            return _read(found["resources"]["requests"])
        if view in ("actuated", "allocated") and "allocatedResources" in found:
            return _read(found["allocatedResources"])
        if view != "spec" and infeasible:
            return None
        return _defaulted(container)

    result: dict[str, Fraction] = {}
    for container in document["spec"]["containers"]:
        _add_to(result, requests_of(container))
    restartable: dict[str, Fraction] = {}
    init: dict[str, Fraction] = {}
    for container in document["spec"]["initContainers"]:
        requests = requests_of(container)
        if container.get("restartPolicy") == "Always":
            _add_to(result, requests)
            _add_to(restartable, requests)
            requests = restartable
        else:
            combined: dict[str, Fraction] = {}
            _add_to(combined, requests)
            _add_to(combined, restartable)
            requests = combined
        _max_into(init, requests)
    _max_into(result, init)
    return result


def _pod_requests(document: dict[str, Any]) -> dict[str, Fraction]:
    spec, status = document["spec"], document["status"]
    infeasible = bool(status["conditions"])
    overhead = _read(spec["overhead"]) or {}
    allocated, in_force = _read(status.get("allocatedResources")), _read(status.get("resources", {}).get("requests"))

    requests: dict[str, Fraction] = {} if infeasible else _aggregate(document, "spec", infeasible)
    if allocated is not None and in_force is not None:
        _max_into(requests, in_force)
        _max_into(requests, allocated)
    else:
        _max_into(requests, _aggregate(document, "actuated", infeasible))
        _max_into(requests, _aggregate(document, "allocated", infeasible))

    asked = dict(_read(spec["resources"]["requests"]) or {})
    for name, limit in (_read(spec["resources"]["limits"]) or {}).items():
        if name not in asked and name not in requests:
            asked[name] = limit
    if asked:
        effective_requests = asked
        if in_force is not None:
            effective_requests = {} if infeasible else dict(asked)
            for reported in (allocated, in_force):
                _max_into(effective_requests, reported or {})
        requests.update(effective_requests)
    _add_to(requests, overhead)
    return requests
