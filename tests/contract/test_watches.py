# SPDX-License-Identifier: Apache-2.0
"""Watches: resume, bookmarks, streaming lists, selectors, ends and errors."""

from tests.contract.api import Api, summary

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
STREAMING_LIST = {
    "sendInitialEvents": "true",
    "resourceVersionMatch": "NotOlderThan",
    "allowWatchBookmarks": "true",
}


async def test_a_watch_reports_all_that_happens_after_its_version(api: Api) -> None:
    first = await api.create_map("first")
    async with api.watch(api.path("configmaps"), resourceVersion=first["metadata"]["resourceVersion"]) as events:
        made = await api.create_map("second")
        changed = await api.patch(api.path("configmaps", "second"), {"data": {"key": "new"}})
        await api.delete(api.path("configmaps", "first"))
        seen = [await events.next() for _ in range(3)]
    assert [summary(event) for event in seen] == [("ADDED", "second"), ("MODIFIED", "second"), ("DELETED", "first")]
    assert [event["object"] for event in seen[:2]] == [made, changed.body]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in seen]
    assert versions == sorted(set(versions))


async def test_a_watch_resumes_where_it_was_cut(api: Api) -> None:
    first = await api.create_map("a")
    second = await api.create_map("b")
    await api.create_map("c")
    for start, names in ((first, ["b", "c"]), (second, ["c"])):
        async with api.watch(api.path("configmaps"), resourceVersion=start["metadata"]["resourceVersion"]) as events:
            assert [summary(await events.next()) for _ in names] == [("ADDED", name) for name in names]


async def test_a_watch_without_version_starts_with_what_there_is(api: Api) -> None:
    await api.create_map("one", labels={"mine": ""})
    for query in ({}, {"resourceVersion": "0"}):
        async with api.watch(api.path("configmaps"), labelSelector="mine", **query) as events:
            assert summary(await events.next()) == ("ADDED", "one")


async def test_a_streaming_list_ends_with_a_bookmark_and_goes_on_as_a_watch(api: Api) -> None:
    for name in ("a", "b"):
        await api.create_map(name, labels={"mine": ""})
    async with api.watch(api.path("configmaps"), labelSelector="mine", **STREAMING_LIST) as events:
        initial = sorted([summary(await events.next()) for _ in range(2)])
        bookmark = await events.next()
        await api.create_map("c", labels={"mine": ""})
        later = await events.next()
        while later["type"] == "BOOKMARK":
            later = await events.next()
    assert initial == [("ADDED", "a"), ("ADDED", "b")]
    assert bookmark["type"] == "BOOKMARK"
    assert bookmark["object"]["kind"] == "ConfigMap"
    assert bookmark["object"]["metadata"]["annotations"] == {INITIAL_EVENTS_END: "true"}
    assert int(bookmark["object"]["metadata"]["resourceVersion"]) > 0
    assert summary(later) == ("ADDED", "c")


async def test_a_streaming_list_of_nothing_is_a_bookmark(api: Api) -> None:
    async with api.watch(api.path("pods"), **STREAMING_LIST) as events:
        bookmark = await events.next()
    assert bookmark["type"] == "BOOKMARK" and INITIAL_EVENTS_END in bookmark["object"]["metadata"]["annotations"]


async def test_a_streaming_list_has_to_name_the_versions_that_will_do(api: Api) -> None:
    reply = await api.get(api.path("pods"), watch="true", sendInitialEvents="true")
    assert (reply.status, reply.body["reason"]) == (422, "Invalid")


async def test_a_watch_times_out_after_a_bookmark_for_what_it_did_not_show(api: Api, server: str) -> None:
    start = (await api.create_map("one"))["metadata"]["resourceVersion"]
    # The real server sends it two seconds before the end.
    query = {
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "4" if server == "plane" else "1",
        "fieldSelector": "metadata.name=none",
    }
    async with api.watch(api.path("configmaps"), resourceVersion=start, **query) as events:
        later = (await api.create_map("two"))["metadata"]["resourceVersion"]
        bookmarks = await events.rest()
    assert bookmarks and {event["type"] for event in bookmarks} == {"BOOKMARK"}
    assert int(bookmarks[-1]["object"]["metadata"]["resourceVersion"]) >= int(later)
    assert (bookmarks[-1]["object"]["kind"], bookmarks[-1]["object"]["apiVersion"]) == ("ConfigMap", "v1")


async def test_a_watch_from_any_version_marks_its_start_with_a_bookmark(api: Api) -> None:
    await api.create_map("one", labels={"mine": ""})
    async with api.watch(api.path("configmaps"), labelSelector="mine", allowWatchBookmarks="true") as events:
        assert summary(await events.next()) == ("ADDED", "one")
        bookmark = await events.next()
    assert bookmark["type"] == "BOOKMARK"


async def test_without_a_request_no_bookmark_comes(api: Api) -> None:
    made = await api.create_map("one")
    async with api.watch(
        api.path("pods"), resourceVersion=made["metadata"]["resourceVersion"], timeoutSeconds="1"
    ) as events:
        assert await events.rest() == []


async def test_an_object_that_ceases_to_match_is_deleted_for_the_watcher(api: Api) -> None:
    made = await api.create_map("one", labels={"colour": "red"})
    start = made["metadata"]["resourceVersion"]
    async with api.watch(api.path("configmaps"), labelSelector="colour=blue", resourceVersion=start) as events:
        path, versions = api.path("configmaps", "one"), []
        for colour in ("blue", "blue", "green"):
            patch = {"metadata": {"labels": {"colour": colour}}, "data": {str(len(versions)): colour}}
            versions.append((await api.patch(path, patch)).version)
        seen = [await events.next() for _ in range(3)]
    assert [event["type"] for event in seen] == ["ADDED", "MODIFIED", "DELETED"]
    assert [event["object"]["metadata"]["resourceVersion"] for event in seen] == versions
    assert seen[2]["object"]["metadata"]["labels"] == {"colour": "blue"}


async def test_a_binding_moves_a_pod_from_one_watcher_to_the_other(api: Api) -> None:
    made = await api.create_pod("one")
    start = made["metadata"]["resourceVersion"]
    async with (
        api.watch(api.path("pods"), fieldSelector="spec.nodeName=", resourceVersion=start) as pending,
        api.watch(api.path("pods"), fieldSelector="spec.nodeName!=", resourceVersion=start) as placed,
    ):
        await api.bind("one")
        assert summary(await pending.next()) == ("DELETED", "one")
        assert summary(await placed.next()) == ("ADDED", "one")


async def test_a_watch_that_selects_finished_pods_sees_how_a_pod_ended(api: Api) -> None:
    made = await api.create_pod("one")
    start = made["metadata"]["resourceVersion"]
    unfinished = "status.phase!=Succeeded"
    async with (
        api.watch(api.path("pods"), resourceVersion=start) as scheduler,
        api.watch(api.path("pods"), fieldSelector=unfinished, resourceVersion=start) as other,
    ):
        status = {"phase": "Succeeded", "reason": "Completed"}
        await api.patch(f"{api.path('pods', 'one')}/status", {"status": status})
        seen, last = await scheduler.next(), await other.next()
    assert (seen["type"], seen["object"]["status"]["reason"]) == ("MODIFIED", "Completed")
    assert last["type"] == "DELETED"
    assert (last["object"]["status"]["phase"], last["object"]["status"].get("reason")) == ("Pending", None)


async def test_a_watch_in_one_namespace_is_silent_about_others(api: Api) -> None:
    name = f"{api.namespace}-elsewhere"
    await api.create_namespace(name)
    async with api.watch(api.path("leases", version="coordination.k8s.io/v1"), **STREAMING_LIST) as events:
        await events.next()
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "there"}}
        await api.create(f"/apis/coordination.k8s.io/v1/namespaces/{name}/leases", lease)
        await api.create(api.path("leases", version="coordination.k8s.io/v1"), lease | {"metadata": {"name": "here"}})
        event = await events.next()
        while event["type"] == "BOOKMARK":
            event = await events.next()
    assert summary(event) == ("ADDED", "here")
