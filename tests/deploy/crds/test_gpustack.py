# SPDX-License-Identifier: Apache-2.0
"""The definition of GPUStack: the same fields and defaults as the wire structs and the reference have; a real API
server keeps what fits it, fills in the defaults, and refuses each contradiction with its field."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import msgspec
import pytest
import yaml

from dovetail.kube.api.resources import GPU_STACKS
from dovetail.kube.objects.stack import GPUStack, StackSpec, StackStatus
from dovetail.operator.coexistence.table import COMPONENTS
from tests.deploy.crds.gpustack_cases import CONTRADICTIONS, VALUES
from tests.deploy.crds.schemas import closed, defaults, defaults_of_struct, leaves, of_struct, unbounded
from tests.docs.pages import page
from tests.paths import ROOT
from tools.controlplane.plane import Plane, RequestFailed

DEFINITION = ROOT / "deploy/crds/gpustack.yaml"
SCHEMA = yaml.safe_load(DEFINITION.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
SPEC, STATUS = SCHEMA["properties"]["spec"], SCHEMA["properties"]["status"]
REFERENCE = page("docs/reference/gpustack.md")
Document = dict[str, Any]
EMPTY, EXAMPLE = [yaml.safe_load(block.text) for block in REFERENCE.blocks if block.language == "yaml"]


def rules(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """(path, message) of each rule, as the reference lists them."""
    for rule in schema.get("x-kubernetes-validations", ()):
        yield f"{path}{rule.get('fieldPath', '')}".removeprefix("."), rule["message"]
    for name, below in schema.get("properties", {}).items():
        yield from rules(below, f"{path}.{name}")
    if "items" in schema:
        yield from rules(schema["items"], f"{path}[]")


def test_the_schema_has_the_fields_and_types_of_the_wire_structs() -> None:
    assert dict(leaves(SPEC)) == dict(of_struct(StackSpec))
    assert dict(leaves(STATUS)) == dict(of_struct(StackStatus))


def test_the_schema_has_the_defaults_of_the_wire_structs() -> None:
    assert dict(defaults(SPEC)) == dict(defaults_of_struct(StackSpec))
    assert not dict(defaults(STATUS))


@pytest.mark.parametrize(("section", "schema"), [("spec", SPEC), ("status", STATUS)])
def test_the_reference_has_every_field(section: str, schema: Document) -> None:
    rows = REFERENCE.section(f"Fields of the {section}").rows("field")
    assert [row.code[0][0] for row in rows] == [path for path, _ in leaves(schema)]


def test_the_reference_has_every_default() -> None:
    rows = REFERENCE.section("Fields of the spec").rows("field")
    written = {row.code[0][0]: row.code[1][-1] for row in rows if row.code[1] and "required" not in row.cells[1]}
    expected = {path: str(value).lower() if isinstance(value, bool) else str(value) for path, value in defaults(SPEC)}
    assert {path: value for path, value in written.items() if path in expected} == expected


def test_the_reference_has_every_contradiction() -> None:
    rows = REFERENCE.section("Contradictions").rows("field")
    assert [(row.code[0][0], row.cells[1].strip()) for row in rows] == list(rules(SCHEMA))


def test_the_components_that_can_be_taken_over_are_those_of_the_table() -> None:
    assert SPEC["properties"]["takeOver"]["items"]["enum"] == [one.name for one in COMPONENTS if not one.kept]


def test_every_part_of_the_schema_is_described_and_bounded() -> None:
    """Without bounds the API server refuses the rules, and an object may be of any size."""
    assert closed(SPEC) and closed(STATUS)
    assert [*unbounded(SPEC), *unbounded(STATUS)] == []


@pytest.mark.parametrize("document", [EMPTY, EXAMPLE])
def test_the_examples_of_the_reference_are_read_as_a_whole(document: Document) -> None:
    stack = msgspec.convert(document, GPUStack)
    written = {path for path, _ in _paths(document["spec"])}
    assert written <= {path for path, _ in _paths(msgspec.to_builtins(stack.spec))}


def _paths(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, below in value.items():
            yield from _paths(below, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for i, below in enumerate(value):
            yield from _paths(below, f"{path}[{i}]")
    else:
        yield path, value


@pytest.fixture(scope="module")
def defined(plane: Plane) -> Plane:
    plane.kubectl("apply", "--server-side", f"--filename={DEFINITION}")
    plane.kubectl("wait", "--for=condition=Established", "crd/gpustacks.dovetail.dev", "--timeout=60s")
    return plane


def apply(plane: Plane, document: Document, subresource: str = "", *, dry_run: bool = False) -> Document:
    """What the API server makes of the document."""
    path = GPU_STACKS.path(None, document["metadata"]["name"], subresource)
    output: Document = plane.apply(path, document, dry_run=dry_run)
    return output


def remove(plane: Plane, document: Document) -> None:
    plane.request("DELETE", GPU_STACKS.path(None, document["metadata"]["name"]))


@pytest.mark.plane
@pytest.mark.parametrize("document", [EMPTY, EXAMPLE])
def test_a_real_server_keeps_all_that_is_written_and_fills_in_what_is_not(defined: Plane, document: Document) -> None:
    kept = apply(defined, document, dry_run=True)
    assert msgspec.convert(kept, GPUStack).spec == msgspec.convert(document, GPUStack).spec
    assert dict(_paths(document["spec"])).items() <= dict(_paths(kept["spec"])).items()
    filled = {path for path, _ in _paths(kept["spec"])}
    assert {f".{path}" for path, _ in defaults(SPEC) if "[]" not in path} <= filled


def status(schema: Mapping[str, Any]) -> Any:
    """A value with every field of a schema."""
    if "properties" in schema:
        return {name: status(below) for name, below in schema["properties"].items()}
    if "items" in schema:
        return [status(schema["items"])]
    if schema["type"] == "string":
        return "2026-01-31T12:00:00Z" if "format" in schema else schema.get("enum", ["Word"])[0]
    return {"object": {"agent": 3}, "integer": 7, "boolean": True}[schema["type"]]


@pytest.mark.plane
def test_a_real_server_keeps_every_field_of_the_status(defined: Plane) -> None:
    document = {**EMPTY, "metadata": {"name": "reported"}}
    apply(defined, document)
    try:
        full = status(STATUS) | {
            "conditions": [status(STATUS["properties"]["conditions"]["items"]) | {"type": "Ready"}]
        }
        kept = apply(defined, {**document, "status": full}, "status")
        assert kept["status"] == full
        assert msgspec.convert(full, StackStatus) == msgspec.convert(kept["status"], StackStatus)
        shown = defined.kubectl("get", "gpustacks.dovetail.dev", "reported")
        assert re.search(r"READY +REASON +VERSION +NODES +VALIDATED +GPUS +ROLLOUT +AGE", shown)
        assert re.search(r"reported +True +Word +Word +7 +7 +7 +Word", shown)
    finally:
        remove(defined, document)


@pytest.mark.plane
@pytest.mark.parametrize(
    ("change", "field", "message"),
    [*CONTRADICTIONS, *VALUES],
)
def test_a_real_server_refuses_contradictions_and_values_that_do_not_fit(
    defined: Plane, change: Callable[[Document], object], field: str, message: str
) -> None:
    document = deepcopy(EMPTY) | {"metadata": {"name": "refused"}}
    change(document["spec"])
    with pytest.raises(RequestFailed) as refused:
        apply(defined, document, dry_run=True)
    assert re.search(
        rf"{re.escape(field)}: Invalid value:.*{message}|{re.escape(field)}: Unsupported", str(refused.value)
    )


def largest() -> Document:
    """A spec whose strings, lists and maps, and with them the costs of the rules, are as large as they may be."""
    arguments = ["--log-level=" + "a" * 1000] * 32
    amounts = {f"example.com/resource-{i}": "1.000000001Gi" for i in range(8)}
    resources = {"requests": amounts, "limits": amounts}
    pools = [
        {
            "name": f"p{i}".ljust(40, "n"),
            "nodeSelector": {
                "matchLabels": {f"example.com/label-{i}-{k}": "v" * 63 for k in range(8)},
                "matchExpressions": [
                    {
                        "key": f"example.com/{k}",
                        "operator": "NotIn",
                        "values": [f"{i}-{k}-{v}".ljust(63, "w") for v in range(32)],
                    }
                    for k in range(8)
                ],
            },
            "sharing": {
                "strategy": "time-slicing",
                "resources": [{"name": f"nvidia.com/mig-1g.{k}gb", "replicas": 1000} for k in range(16)],
            },
            "extraArgs": arguments,
        }
        for i in range(16)
    ]
    return {
        "scheduler": {"fabric": [f"a/{'b' * 60}{i}" for i in range(8)], "extraArgs": arguments, "resources": resources},
        "agent": {"pools": pools, "resources": resources},
        "validation": {"image": "i" * 500, "command": ["c" * 4000] * 64},
    }  # fmt: skip


@pytest.mark.plane
def test_a_real_server_has_the_time_for_the_rules_of_the_largest_spec(defined: Plane) -> None:
    kept = apply(defined, EMPTY | {"spec": largest()}, dry_run=True)
    assert len(kept["spec"]["agent"]["pools"]) == 16


@pytest.mark.plane
def test_a_name_that_is_no_label_value_is_refused(defined: Plane) -> None:
    with pytest.raises(RequestFailed, match=r"metadata\.name.*at most 63 characters"):
        apply(defined, {**EMPTY, "metadata": {"name": "a" * 64}}, dry_run=True)


@pytest.mark.plane
def test_the_volume_of_the_history_is_fixed_while_the_collector_runs(defined: Plane) -> None:
    """The API server refuses what a StatefulSet could not do; switched off and on it has the old claim."""

    def history(**fields: Any) -> Document:
        return EMPTY | {"spec": {"history": fields}}

    try:
        apply(defined, history(enabled=True, days=30, hourlyDays=7))
        for change in ({"storage": "40Gi"}, {"storageClass": "fast"}):
            with pytest.raises(RequestFailed) as raised:
                apply(defined, history(enabled=True, **change))
            assert "spec.history.storage" in str(raised.value) and "history-dovetail-collector-0" in str(raised.value)
        apply(defined, history(enabled=True, storage="20Gi", days=500))
        apply(defined, history(enabled=False, storage="40Gi", storageClass="fast"))
        apply(defined, history(enabled=True, storage="40Gi", storageClass="fast"))
    finally:
        # Of two stacks the operator of other tests follows neither.
        remove(defined, EMPTY)
