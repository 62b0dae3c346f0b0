# SPDX-License-Identifier: Apache-2.0
"""Lists: pages, versions, selectors."""

import pytest

from tests.contract.api import Api, config_map


async def _some(api: Api, count: int) -> None:
    for number in range(count):
        await api.create_map(f"m{number}", labels={"number": str(number), "parity": "odd" if number % 2 else "even"})


async def test_a_list_is_sorted_and_has_a_version(api: Api) -> None:
    for name in ("b", "a", "c"):
        await api.create_map(name, labels={"mine": ""})
    reply = await api.get(api.path("configmaps"), labelSelector="mine")
    assert (reply.status, reply.body["kind"], reply.body["apiVersion"]) == (200, "ConfigMapList", "v1")
    assert reply.names == ["a", "b", "c"]
    assert int(reply.version) >= max(int(item["metadata"]["resourceVersion"]) for item in reply.body["items"])


async def test_a_list_of_all_namespaces_holds_what_is_in_one(api: Api) -> None:
    await _some(api, 2)
    everywhere = await api.get("/api/v1/configmaps", fieldSelector=f"metadata.namespace={api.namespace}")
    assert {"m0", "m1"} <= set(everywhere.names)
    assert {item["metadata"]["namespace"] for item in everywhere.body["items"]} == {api.namespace}


async def test_pages_show_one_moment(api: Api) -> None:
    await _some(api, 5)
    first = await api.get(api.path("configmaps"), limit="2", fieldSelector="metadata.name!=kube-root-ca.crt")
    assert first.names == ["m0", "m1"]
    await api.delete(api.path("configmaps", "m3"))
    await api.create_map("m9")
    await api.patch(api.path("configmaps", "m4"), {"data": {"key": "later"}})
    token, seen = first.body["metadata"]["continue"], []
    while token:
        query = {"limit": "2", "continue": token, "fieldSelector": "metadata.name!=kube-root-ca.crt"}
        page = await api.get(api.path("configmaps"), **query)
        assert page.version == first.version
        seen += [(item["metadata"]["name"], item["data"]["key"]) for item in page.body["items"]]
        token = page.body["metadata"].get("continue", "")
    assert seen == [("m2", "value"), ("m3", "value"), ("m4", "value")]


async def test_pages_report_how_much_is_left(api: Api) -> None:
    leases = api.path("leases", version="coordination.k8s.io/v1")
    for name in "abc":
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}}
        await api.create(leases, lease)
    page = await api.get(leases, limit="1")
    assert page.names == ["a"] and page.body["metadata"]["remainingItemCount"] == 2
    whole = await api.get(leases, limit="3")
    assert whole.names == ["a", "b", "c"] and "continue" not in whole.body["metadata"]


async def test_a_bad_continue_token_is_refused(api: Api) -> None:
    reply = await api.get(api.path("configmaps"), **{"continue": "nonsense"})
    assert (reply.status, reply.body["reason"]) == (400, "BadRequest")


async def test_a_list_at_an_exact_version(api: Api) -> None:
    made = await api.create_map("one")
    later = await api.patch(api.path("configmaps", "one"), {"data": {"key": "later"}})
    version = made["metadata"]["resourceVersion"]
    query = {"fieldSelector": "metadata.name=one", "resourceVersion": version}
    exact = await api.get(api.path("configmaps"), resourceVersionMatch="Exact", **query)
    assert exact.version == version and exact.body["items"][0]["data"] == {"key": "value"}
    # A real server may answer from a cache that has not seen the change yet, unless it is asked for that version.
    query["resourceVersion"] = later.body["metadata"]["resourceVersion"]
    newer = await api.get(api.path("configmaps"), resourceVersionMatch="NotOlderThan", **query)
    assert newer.body["items"][0]["data"] == {"key": "later"}


async def test_a_version_match_needs_a_version(api: Api) -> None:
    reply = await api.get(api.path("configmaps"), resourceVersionMatch="Exact")
    assert (reply.status, reply.body["reason"]) == (422, "Invalid")


async def test_a_version_that_is_none_is_refused(api: Api) -> None:
    reply = await api.get(api.path("configmaps"), resourceVersion="yesterday")
    assert (reply.status, reply.body["reason"]) == (400, "BadRequest")


async def test_a_version_to_come_is_a_timeout(api: Api) -> None:
    made = await api.create_map("one")
    future = str(int(made["metadata"]["resourceVersion"]) + 1_000_000)
    reply = await api.get(api.path("configmaps"), resourceVersion=future)
    assert (reply.status, reply.body["reason"]) == (504, "Timeout")
    assert reply.body["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("number=1", ["m1"]),
        ("parity==even,number!=0", ["m2"]),
        ("number in (0, 3)", ["m0", "m3"]),
        ("number notin (0,1,2),number", ["m3"]),
        ("!number,mine", []),
        ("number>1", ["m2", "m3"]),
        ("number<1", ["m0"]),
    ],
)
async def test_label_selectors(api: Api, selector: str, names: list[str]) -> None:
    await _some(api, 4)
    assert (await api.get(api.path("configmaps"), labelSelector=selector)).names == names


async def test_events_are_selected_by_reason(api: Api) -> None:
    for name, reason in (("a", "FailedCreatePodSandBox"), ("b", "Scheduled")):
        event = {
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": name}, "reason": reason,
            "note": "n", "type": "Warning", "action": "x", "reportingController": "kubelet", "reportingInstance": "n",
            "regarding": {"kind": "Pod", "namespace": api.namespace, "name": "p"},
            "eventTime": "2026-01-31T12:00:00.000000Z",
        }  # fmt: skip
        await api.create(api.path("events", version="events.k8s.io/v1"), event)
    found = await api.get(api.path("events", version="events.k8s.io/v1"), fieldSelector="reason=FailedCreatePodSandBox")
    assert found.names == ["a"]


async def test_pods_are_selected_by_node_scheduler_and_phase(api: Api) -> None:
    await api.create_pod("placed")
    await api.create_pod("waiting", schedulerName="dovetail")
    assert (await api.bind("placed", "node-1")).status == 201
    pods = api.path("pods")
    assert (await api.get(pods, fieldSelector="spec.nodeName=node-1")).names == ["placed"]
    assert (await api.get(pods, fieldSelector="spec.nodeName=,status.phase=Pending")).names == ["waiting"]
    assert (await api.get(pods, fieldSelector="spec.schedulerName=dovetail")).names == ["waiting"]
    assert (await api.get(pods, fieldSelector="spec.schedulerName!=dovetail")).names == ["placed"]


async def test_bad_selectors_are_refused(api: Api) -> None:
    for query in ({"fieldSelector": "spec.colour=red"}, {"labelSelector": "a=b=c"}, {"labelSelector": "a in b"}):
        reply = await api.get(api.path("pods"), **query)
        assert (reply.status, reply.body["reason"]) == (400, "BadRequest"), query


async def test_lists_come_as_tables_and_as_metadata(api: Api) -> None:
    await api.create(api.path("configmaps"), config_map("one"))
    for kind, accept in (
        ("Table", "application/json;as=Table;v=v1;g=meta.k8s.io"),
        ("PartialObjectMetadataList", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"),
    ):
        reply = await api.get(api.path("configmaps"), fieldSelector="metadata.name=one", accept=accept)
        assert (reply.body["kind"], reply.body["apiVersion"]) == (kind, "meta.k8s.io/v1")
    table = await api.get(
        api.path("configmaps"),
        fieldSelector="metadata.name=one",
        accept="application/json;as=Table;v=v1;g=meta.k8s.io",
    )
    assert table.body["columnDefinitions"][0]["name"] == "Name"
    assert table.body["rows"][0]["cells"][0] == "one"
