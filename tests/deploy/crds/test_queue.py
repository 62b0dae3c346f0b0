# SPDX-License-Identifier: Apache-2.0
"""The definition of Queue: the same fields as the wire structs and the reference have, and a real API server keeps what
fits it, refuses the rest, and lets each side write its own half only."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
import yaml

from dovetail.core.queues.status import QueueSnapshot
from dovetail.core.queues.types import MoneyBudget
from dovetail.core.reasons import Expected, Sure
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import load_kubeconfig
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.resources import QUEUES
from dovetail.kube.objects.base import Wire
from dovetail.kube.objects.queues import Amounts, MoneySpent, Queue, QueueSpec, QueueStatus
from dovetail.kube.translate import queues
from dovetail.kube.translate.money import money_spent
from dovetail.kube.translate.queue_documents import queue_status
from tests.docs.pages import page
from tests.paths import ROOT
from tools.controlplane.plane import Plane, RequestFailed

DEFINITION = ROOT / "deploy/crds/queue.yaml"
SCHEMA = yaml.safe_load(DEFINITION.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
SPEC, STATUS = SCHEMA["spec"], SCHEMA["status"]
AMOUNTS = ["cpu", "memory", "gpu", "gpuSlices", "gpuMemory", "models"]
SELECTOR = ["matchLabels", "matchExpressions"]
Document = dict[str, Any]
(EXAMPLE,) = [yaml.safe_load(b.text) for b in page("docs/reference/queue.md").blocks if b.language == "yaml"]


def leaves(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The paths of everything that has no fields below it, as the reference writes them. Amounts and selectors are
    values."""
    if "properties" in schema and list(schema["properties"]) not in (AMOUNTS, SELECTOR):
        for name, below in schema["properties"].items():
            yield from leaves(below, f"{path}.{name}" if path else name)
    elif "items" in schema:
        yield from leaves(schema["items"], f"{path}[]")
    else:
        yield path


def of_struct(hint: Any, path: str = "") -> Iterator[str]:
    """The same of a wire struct."""
    if isinstance(hint, types.UnionType):
        hint = next(arg for arg in get_args(hint) if arg is not type(None))
    fields = msgspec.structs.fields(hint) if isinstance(hint, type) and issubclass(hint, Wire) else ()
    if fields and [field.encode_name for field in fields] not in (AMOUNTS, SELECTOR):
        hints = get_type_hints(hint)
        for field in fields:
            yield from of_struct(hints[field.name], f"{path}.{field.encode_name}" if path else field.encode_name)
    elif get_origin(hint) is tuple:
        yield from of_struct(get_args(hint)[0], f"{path}[]")
    else:
        yield path


def test_the_schema_has_the_fields_of_the_wire_structs() -> None:
    assert list(leaves(STATUS)) == list(of_struct(QueueStatus))
    assert list(leaves(SPEC)) == list(of_struct(QueueSpec))
    assert [field.encode_name for field in msgspec.structs.fields(Amounts)] == AMOUNTS


@pytest.mark.parametrize(("section", "schema"), [("status", STATUS), ("spec", SPEC)])
def test_the_reference_has_every_field(section: str, schema: Document) -> None:
    rows = page("docs/reference/queue.md").section(f"Fields of the {section}").rows("field")
    assert [row.code[0][0] for row in rows] == list(leaves(schema))


def test_the_reference_has_every_class_of_amounts() -> None:
    rows = page("docs/reference/queue.md").section("Amounts").rows("field")
    assert [row.code[0][0] for row in rows] == AMOUNTS


def test_every_struct_of_the_schema_states_what_is_in_it() -> None:
    def closed(schema: Mapping[str, Any]) -> bool:
        below = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
        declared = schema.get("type") != "object" or "properties" in schema or "additionalProperties" in schema
        return declared and all(map(closed, below))

    assert closed(STATUS)
    assert closed(SPEC)


def test_the_example_of_the_reference_states_all_that_a_spec_can() -> None:
    found = queues.queue(msgspec.convert(EXAMPLE, Queue))
    assert found.problem is None
    assert set(EXAMPLE["spec"]) == set(SPEC["properties"])


@pytest.fixture(scope="module")
def defined(plane: Plane) -> Plane:
    plane.kubectl("apply", f"--filename={DEFINITION}")
    plane.kubectl("wait", "--for=condition=Established", "crd/queues.dovetail.dev", "--timeout=60s")
    return plane


def apply(plane: Plane, document: Document, subresource: str = "") -> None:
    plane.apply(QUEUES.path(None, document["metadata"]["name"], subresource), document)


async def read(plane: Plane, name: str) -> Queue:
    async with Client(load_kubeconfig([plane.kubeconfig])) as client:
        listing = await list_all(client, QUEUES, Queue)
    assert listing.bad == []
    return listing.objects["", name]


SNAPSHOT = QueueSnapshot(
    name="vision", parent="research", leaf=True, allocated=(("cpu", 1500), ("gpu", 40_500), ("memory", 2**40)),
    guarantee=(("gpu", 32_000), ("gpu/NVIDIA-H100-80GB-HBM3", 16_000)), limit=(), due=(("gpu", 36_000),),
    borrowed=(("gpu", 8500),), pending=(("gpu", 24_000), ("gpu-memory", 81_920), ("gpu-slices", 7)), pending_jobs=3,
    used=10**24, share_ppm=123_456, weight_ppm=500_000, credit=-36 * 10**9, rate_milli=40_500,
    days=((20_454, 10**15), (20_455, 0)), users=(("", 1), ("ada", 10**24 - 1)),
    jobs=(("vision/train", 10**18), ("1d9e", 1)), as_of_ms=1_767_312_000_250, problem=None, warning="", head="job",
    money=MoneyBudget(10**9), next_guarantee=(1_767_340_800_000, (("gpu", 8000),)),
)  # fmt: skip


@pytest.mark.plane
async def test_a_real_server_keeps_the_spec_and_all_that_the_scheduler_reports(defined: Plane) -> None:
    apply(defined, EXAMPLE)
    now_ms = SNAPSHOT.as_of_ms
    head = ("vision/train", "GangDoesNotFit", Expected(Sure.KNOWN, now_ms + 60_000))
    month = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)
    spent = MoneySpent("1000.000001", "USD", *month, month[0], "2.0 GPU-hours have no price.")
    async with Client(load_kubeconfig([defined.kubeconfig])) as client:
        patch = [{"op": "add", "path": "/status", "value": queue_status(SNAPSHOT, now_ms, head, None, spent)}]
        await client.request(
            "PATCH", QUEUES.path(name="vision", subresource="status"), patch, content_type="application/json-patch+json"
        )
    found = await read(defined, "vision")
    assert found.spec == msgspec.convert(EXAMPLE, Queue).spec
    assert money_spent(found) == spent
    assert found.status["calendar"] == {"changesAt": "2026-01-02T08:00:00.000Z", "guarantee": {"gpu": "8"}}
    usage, findings = queues.read_usage(found)
    assert findings == ()
    assert usage is not None
    assert (usage.used, usage.rate_milli, usage.days, usage.users, usage.jobs, usage.as_of_ms) == (
        SNAPSHOT.used, SNAPSHOT.rate_milli, SNAPSHOT.days, SNAPSHOT.users, tuple(sorted(SNAPSHOT.jobs)), now_ms,
    )  # fmt: skip
    shown = defined.kubectl("get", "queues", "vision")
    assert re.search(r"NAME +PARENT +WEIGHT +GPUS +DUE +GUARANTEED +PENDING +READY", shown)
    assert re.search(r"vision +research +2 +40.5 +36 +32 +3 +True", shown)
    defined.kubectl("delete", "queue", "vision")


@pytest.mark.plane
async def test_a_real_server_fills_in_the_defaults_of_the_translation(defined: Plane) -> None:
    apply(defined, {"apiVersion": "dovetail.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "bare"}, "spec": {}})
    found = await read(defined, "bare")
    assert (found.spec, found.status) == (QueueSpec(), None)
    defined.kubectl("delete", "queue", "bare")


WINDOW = {"start": "08:00", "end": "20:00", "guarantee": {"gpu": 8}}


def refused(**spec: Any) -> Any:
    field = spec.pop("field")
    return pytest.param(spec, field, id=f"{field}={next(iter(spec.values()))}")


@pytest.mark.plane
@pytest.mark.parametrize(
    ("spec", "field"),
    [
        refused(weight=0, field="spec.weight"),
        refused(weight=-1, field="spec.weight"),
        refused(weight=1_000_001, field="spec.weight"),
        refused(weight=1.5, field="spec.weight"),
        refused(priority=2_000_000_000, field="spec.priority"),
        refused(halfLife="0s", field="spec.halfLife"),
        refused(halfLife="", field="spec.halfLife"),
        refused(halfLife="1h1d", field="spec.halfLife"),
        refused(halfLife=7, field="spec.halfLife"),
        refused(minRuntime={"reclaim": "30 minutes"}, field="spec.minRuntime.reclaim"),
        refused(minRuntime={"preempt": ""}, field="spec.minRuntime.preempt"),
        refused(guarantee={"gpu": -1}, field="spec.guarantee.gpu"),
        refused(guarantee={"gpu": "-1"}, field="spec.guarantee.gpu"),
        refused(guarantee={"cpu": "many"}, field="spec.guarantee.cpu"),
        refused(guarantee={"gpu": 0.5}, field="spec.guarantee.gpu"),
        refused(guarantee={"gpus": 1}, field="spec.guarantee.gpus"),
        refused(guarantee={"models": {"A100": "x"}}, field="spec.guarantee.models.A100"),
        refused(guarantee={"gpu": "8.5"}, limit={"gpu": 8}, field="spec.guarantee.gpu"),
        refused(guarantee={"memory": "2Gi"}, limit={"memory": "2G"}, field="spec.guarantee.memory"),
        refused(guarantee={"models": {"A": 3}}, limit={"models": {"A": "2"}}, field="spec.guarantee.models"),
        refused(budget={"period": "Day"}, field="spec.budget"),
        refused(budget={"money": {"amount": 5}}, field="spec.budget.money.currency"),
        refused(budget={"money": {"amount": 5, "currency": "usd"}}, field="spec.budget.money.currency"),
        refused(budget={"money": {"amount": -5, "currency": "USD"}}, field="spec.budget.money.amount"),
        refused(calendar={"windows": []}, field="spec.calendar.windows"),
        refused(calendar={"windows": [WINDOW] * 33}, field="spec.calendar.windows"),
        refused(calendar={"windows": [WINDOW | {"start": "8:00"}]}, field="spec.calendar.windows[0].start"),
        refused(calendar={"windows": [WINDOW | {"end": "24:01"}]}, field="spec.calendar.windows[0].end"),
        refused(calendar={"windows": [WINDOW | {"days": ["Monday"]}]}, field="spec.calendar.windows[0].days[0]"),
        refused(calendar={"windows": [WINDOW | {"guarantee": {}}]}, field="spec.calendar.windows[0].guarantee"),
        refused(calendar={"windows": [WINDOW], "timeZone": ""}, field="spec.calendar.timeZone"),
        refused(parent="refused", field="spec.parent"),
        refused(namespaces={}, field="spec.namespaces"),
        refused(namespaces={"names": ["Team A"]}, field="spec.namespaces.names[0]"),
        refused(
            namespaces={"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
            field="spec.namespaces.selector.matchExpressions[0].values",
        ),
        refused(
            namespaces={"selector": {"matchExpressions": [{"key": "a", "operator": "Is", "values": ["b"]}]}},
            field="spec.namespaces.selector.matchExpressions[0].operator",
        ),
    ],
)
def test_a_real_server_refuses_what_the_scheduler_could_not_honour(defined: Plane, spec: Document, field: str) -> None:
    document = deepcopy(EXAMPLE) | {"metadata": {"name": "refused"}, "spec": spec}
    with pytest.raises(RequestFailed, match=re.escape(field)):
        apply(defined, document)


@pytest.mark.plane
def test_a_real_server_refuses_a_name_that_no_label_can_hold(defined: Plane) -> None:
    with pytest.raises(RequestFailed, match=r"metadata\.name"):
        apply(defined, deepcopy(EXAMPLE) | {"metadata": {"name": "q" * 64}})


@pytest.mark.plane
@pytest.mark.parametrize(
    ("usage", "field"),
    [
        ({"used": "-1"}, "status.usage.used"),
        ({"rate": "1.5"}, "status.usage.rate"),
        ({"asOf": "yesterday"}, "status.usage.asOf"),
        ({"days": [{"day": "2026-13-01", "used": "1"}]}, "status.usage.days[0].day"),
        ({"users": [{"name": "a", "used": "1"}, {"name": "a", "used": "2"}]}, "status.usage.users"),
    ],
)
def test_a_real_server_refuses_an_impossible_history(defined: Plane, usage: Document, field: str) -> None:
    known = {"asOf": "2026-01-02T00:00:00.250Z", "used": "1", "rate": "1"}
    apply(defined, deepcopy(EXAMPLE))
    document = deepcopy(EXAMPLE) | {"status": {"usage": known | usage}}
    with pytest.raises(RequestFailed, match=re.escape(field)):
        apply(defined, document, "status")
    defined.kubectl("delete", "queue", "vision")
