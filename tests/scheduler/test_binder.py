# SPDX-License-Identifier: Apache-2.0
"""Whatever happens to a bind, the core hears the truth about it, once, and nothing is written that must not be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.core.decisions import Bind, VolumePick
from dovetail.core.events import BindFailed
from dovetail.core.model import Pod, Request
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.nodes.admissions import Admissions
from dovetail.kube.nodes.device_differences import DeviceDifferences
from dovetail.kube.objects.base import ObjectMeta
from dovetail.kube.objects.storage import (
    ClaimReference,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
)
from dovetail.kube.objects.topology import GPUNode
from dovetail.playground import Playground
from dovetail.scheduler import binder as module
from dovetail.scheduler.binder import Binder, NotLeader
from dovetail.scheduler.clock import Clock
from tests.patience import PATIENCE_S
from tests.scheduler.scripted import AWAY, BROKEN, BUSY, FORBIDDEN, GONE, TAKEN, Scripted, until

pytestmark = pytest.mark.usefixtures("short_waits")
NOW_MS = 1_000_000
POD = Pod("u", "d", "p", Request())
PICK = Bind("u", "n", 1, volumes=(VolumePick("d/data", "disk"),))
PROVISION = Bind("u", "n", 1, volumes=(VolumePick("d/data", ""),))
CHOSEN = {"volume.kubernetes.io/selected-node": "n"}
DONE = {"pv.kubernetes.io/bind-completed": "yes"}


def pod(node: str = "", uid: str = "u") -> dict[str, Any]:
    return {"metadata": {"name": "p", "namespace": "d", "uid": uid}, "spec": {"nodeName": node}}


def claim(volume: str = "", version: str = "7", **annotations: str) -> PersistentVolumeClaim:
    meta = ObjectMeta(name="data", namespace="d", uid="c", resource_version=version, annotations=annotations)
    return PersistentVolumeClaim(meta, PersistentVolumeClaimSpec(volume_name=volume))


def disk(version: str = "9", taken_by: str = "") -> PersistentVolume:
    ref = ClaimReference("d", taken_by) if taken_by else None
    return PersistentVolume(ObjectMeta(name="disk", resource_version=version), PersistentVolumeSpec(claim_ref=ref))


class Bench:
    """A binder on a scripted server, and what it reported."""

    def __init__(self, client: Any) -> None:
        self.pods = {"u": Pod("u", "d", "p", Request())}
        self.mirror: Any = SimpleNamespace(
            nodes=SimpleNamespace(known={("", "n"): object()}),
            claims=SimpleNamespace(known={("d", "data"): claim()}),
            volumes=SimpleNamespace(known={("", "disk"): disk()}),
            feed=SimpleNamespace(
                reported=lambda uid: self.pods.get(uid, Pod(uid, "d", uid, Request()) if uid != "u" else None),
                admissions=Admissions(),
                device_differences=DeviceDifferences(),
                node_records=SimpleNamespace(gpu_node=lambda node: None),
            ),
        )
        self.leads = True
        self.bound: list[str] = []
        self.failed: list[BindFailed] = []
        self.reported_why: list[Pod | None] = []
        self.binder = Binder(
            client,
            Clock(lambda: NOW_MS / 1000, lambda: 0.0),
            self.mirror,
            may_write=lambda: self.leads,
            failed=self._note_failure,
            bound=lambda bind, _: self.bound.append(f"{bind.uid} to {bind.node}"),
            run_id="run",
        )

    def _note_failure(self, event: BindFailed, target: Pod | None) -> None:
        self.failed.append(event)
        self.reported_why.append(target)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        task = asyncio.create_task(self.binder.run())
        await asyncio.sleep(0)
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def carry_out(self, bind: Bind = Bind("u", "n", 1)) -> None:  # noqa: B008
        """Bind the pod and wait until it is over."""
        async with self.running():
            self.binder.put(bind, POD, "{}")
            await asyncio.wait_for(self.binder.idle.wait(), PATIENCE_S)

    async def prepare(self, bind: Bind) -> None:
        """The same where volumes come first: until the core has the event."""
        async with self.running():
            self.binder.put(bind, POD, "{}")
            await until(lambda: bool(self.bound or self.failed))


@pytest.fixture
def server() -> Scripted:
    return Scripted()


@pytest.fixture
def bench(server: Scripted) -> Bench:
    return Bench(server)


async def test_a_bind_names_the_pod_by_uid_and_the_decision(bench: Bench, server: Scripted) -> None:
    await bench.carry_out(Bind("u", "n", 17))
    (body,) = server.bodies("POST", "/namespaces/d/pods/p/binding")
    assert body["metadata"]["uid"] == "u"
    assert body["metadata"]["annotations"] == {"dovetail.dev/bound": "{}", "dovetail.dev/decision": "run-17"}
    assert body["target"]["name"] == "n"
    assert (bench.bound, bench.failed) == (["u to n"], [])


@pytest.mark.parametrize("stands", [True, False])
async def test_whose_turn_is_next_depends_on_whether_the_fence_stood(bench: Bench, stands: bool) -> None:
    behind: list[str] = []

    async def put_up(bind: Bind) -> bool:
        return stands

    bench.mirror.feed.node_records.gpu_node = lambda node: GPUNode()
    bench.binder._fences.put_up = put_up  # type: ignore[method-assign]
    bench.binder._turns.fence_stands = behind.append  # type: ignore[method-assign]
    await bench.carry_out()
    assert bench.bound == ["u to n"] and behind == (["u"] if stands else [])


async def test_a_bind_carries_the_gpus_and_the_rank(bench: Bench, server: Scripted) -> None:
    await bench.carry_out(Bind("u", "n", 17, gang="g", devices=(0, 1, 10), rank=0))
    (body,) = server.bodies("POST", "/namespaces/d/pods/p/binding")
    assert body["metadata"]["annotations"] == {
        "dovetail.dev/bound": "{}", "dovetail.dev/decision": "run-17", "dovetail.dev/devices": "0,1,10",
        "dovetail.dev/rank": "0",
    }  # fmt: skip


@pytest.mark.parametrize("error", [TAKEN, FORBIDDEN, BROKEN, BUSY, AWAY], ids=lambda error: error.reason)
async def test_a_bind_that_worked_is_a_success_whatever_the_answer_was(
    bench: Bench, server: Scripted, error: Exception
) -> None:
    """The answer of an earlier attempt may be lost, and a timeout of etcd is a 500 that may have been written."""
    server.will("POST", "binding", error)
    server.will("GET", "pods/p", pod("n"))
    await bench.carry_out()
    assert (bench.bound, bench.failed) == (["u to n"], [])


@pytest.mark.parametrize(
    ("error", "retry_ms"), [(TAKEN, 1_000), (AWAY, 1_000), (FORBIDDEN, 10_000), (BROKEN, 10_000), (BUSY, 10_000)]
)
async def test_a_bind_that_did_not_work_goes_back_to_the_core(
    bench: Bench, server: Scripted, error: Exception, retry_ms: int
) -> None:
    """No node is to blame for it, so the place that was chosen stays open to the pod."""
    server.will("POST", "binding", error)
    server.will("GET", "pods/p", pod())
    await bench.carry_out()
    assert bench.bound == []
    assert bench.failed == [BindFailed("u", "", str(error), NOW_MS + retry_ms)]
    assert bench.reported_why == [POD]


@pytest.mark.parametrize("answer", [GONE, pod("", uid="another"), pod("n", uid="another")])
async def test_a_pod_that_is_gone_is_assumed_no_longer(
    bench: Bench, server: Scripted, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that was made again under its name; and ten thousand deleted pods are no ten thousand warnings."""
    server.will("POST", "binding", TAKEN)
    server.will("GET", "pods/p", answer)
    await bench.carry_out()
    assert bench.bound == []
    assert bench.failed == [BindFailed("u", "", "the pod is gone", NOW_MS + 10_000)]
    assert bench.reported_why == [None]
    assert caplog.records == []


async def test_a_pod_that_another_took_is_left_to_the_watch(bench: Bench, server: Scripted) -> None:
    server.will("POST", "binding", TAKEN)
    server.will("GET", "pods/p", pod("elsewhere"))
    await bench.carry_out()
    assert (bench.bound, bench.failed) == ([], [])


async def test_a_server_that_is_away_is_asked_until_it_answers(
    bench: Bench, server: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a line in the log for each bind and second."""
    server.will("POST", "binding", AWAY)
    server.will("GET", "pods/p", *[AWAY] * 30, pod("n"))
    await bench.carry_out()
    assert caplog.records == []
    assert (bench.bound, bench.failed) == (["u to n"], [])
    assert len(server.bodies("POST", "binding")) == 1


async def test_a_scheduler_that_may_not_read_pods_reports_it(
    bench: Bench, server: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    server.will("POST", "binding", TAKEN)
    server.will("GET", "pods/p", FORBIDDEN, pod("n"))
    await bench.carry_out()
    assert "it is not known whether d/p was bound to n" in caplog.text
    assert "RBAC" in caplog.text


async def test_a_node_deleted_meanwhile_gets_no_pod(
    bench: Bench, server: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    bench.mirror.nodes.known.clear()
    await bench.carry_out()
    assert server.asked == []
    assert bench.failed == [BindFailed("u", "n", "the node was deleted", NOW_MS + 5_000)]
    assert "pod d/p was not bound to n" in caplog.text


async def test_nothing_is_written_after_the_lease_is_lost(bench: Bench, server: Scripted) -> None:
    async def answer() -> dict[str, Any]:
        bench.leads = bench.leads and len(server.asked) < 500
        return {}

    server.will("POST", "binding", answer)
    async with bench.running() as task:
        for number in range(10_000):
            bench.binder.put(Bind(f"u{number}", "n", 1), Pod(f"u{number}", "d", f"p{number}", Request()), "{}")
        await asyncio.wait([task], timeout=PATIENCE_S)
        error = task.exception()
        assert isinstance(error, BaseExceptionGroup)
        assert error.subgroup(NotLeader) is not None
        assert error.split(NotLeader)[1] is None
        # Those that were under way at that moment had been asked for while the lease was ours.
        assert len(server.asked) <= 500 + module.WORKERS
        asked = len(server.asked)
        await asyncio.sleep(0.05)
        assert len(server.asked) == asked


async def test_a_server_that_stays_away_does_not_outlast_the_lease(bench: Bench, server: Scripted) -> None:
    server.will("POST", "binding", AWAY)
    server.will("GET", "pods/p", AWAY)
    async with bench.running() as task:
        bench.binder.put(Bind("u", "n", 1), POD, "{}")
        await asyncio.sleep(0.05)
        assert not task.done()
        bench.leads = False
        done, _ = await asyncio.wait([task], timeout=PATIENCE_S)
        assert done


async def test_a_volume_is_reserved_only_in_the_version_that_was_chosen(bench: Bench, server: Scripted) -> None:
    async def controller() -> dict[str, Any]:
        bench.mirror.claims.known["d", "data"] = claim("disk", **DONE)
        return {}

    server.will("PATCH", "persistentvolumes/disk", controller)
    await bench.prepare(PICK)
    (body,) = server.bodies("PATCH", "persistentvolumes/disk")
    assert body["metadata"]["resourceVersion"] == "9"
    assert body["spec"]["claimRef"]["uid"] == "c"
    assert bench.bound == ["u to n"]


async def test_a_volume_that_another_claim_took_is_not_stolen() -> None:
    """On a server that checks versions: the watch has not reported yet that the volume is another's."""
    playground = Playground()
    await playground.start()
    try:
        spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "local": {"path": "/d"}}
        document = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"}, "spec": spec}
        version = playground.put(document)["metadata"]["resourceVersion"]
        theirs = {"kind": "PersistentVolumeClaim", "namespace": "d", "name": "theirs", "uid": "t"}
        playground.put(document | {"spec": spec | {"claimRef": theirs}})
        async with Client(ClusterConfig(playground.url)) as client:
            bench = Bench(client)
            bench.mirror.volumes.known["", "disk"] = disk(version)
            await bench.prepare(PICK)
            stored = await client.request("GET", "/api/v1/persistentvolumes/disk", decode=dict[str, Any])
        assert stored["spec"]["claimRef"]["name"] == "theirs"
        assert bench.failed[0].node == "n"
        assert "409" in bench.failed[0].message
    finally:
        await playground.stop()


async def test_a_volume_known_to_be_taken_is_not_asked_for(bench: Bench, server: Scripted) -> None:
    bench.mirror.volumes.known["", "disk"] = disk(taken_by="theirs")
    await bench.prepare(PICK)
    assert server.asked == []
    assert "disk was taken by d/theirs" in bench.failed[0].message


async def test_a_claim_that_is_provisioned_for_another_node_stays_there(bench: Bench, server: Scripted) -> None:
    """Two pods may share a claim: the second must not send the volume away from the first."""
    bench.mirror.claims.known["d", "data"] = claim(**{"volume.kubernetes.io/selected-node": "other"})
    await bench.prepare(PROVISION)
    assert server.asked == []
    assert "d/data is being made for node other" in bench.failed[0].message


async def test_a_claim_deleted_while_its_pod_waits_ends_the_wait(bench: Bench, server: Scripted) -> None:
    async with bench.running():
        bench.binder.put(PROVISION, POD, "{}")
        await until(lambda: bool(server.bodies("PATCH", "persistentvolumeclaims/data")))
        bench.mirror.claims.known.clear()
        await until(lambda: bool(bench.failed))
    assert "d/data was deleted" in bench.failed[0].message


async def test_a_provisioner_that_gives_the_claim_back_ends_the_wait(bench: Bench, server: Scripted) -> None:
    """The external provisioner takes the annotation off where the node's storage is full."""
    async with bench.running():
        bench.binder.put(PROVISION, POD, "{}")
        await until(lambda: bool(server.asked))
        # Our own annotation is not seen yet, which is no refusal: several looks at the claim long.
        await asyncio.sleep(0.02)
        bench.mirror.claims.known["d", "data"] = claim(**CHOSEN)
        await asyncio.sleep(0.02)
        assert bench.failed == []
        bench.mirror.claims.known["d", "data"] = claim()
        await until(lambda: bool(bench.failed))
    assert bench.failed[0].node == "n"
    assert "d/data" in bench.failed[0].message
    assert server.bodies("POST", "binding") == []


async def test_a_wait_for_volumes_that_is_too_long_states_for_which(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PREPARE_TIMEOUT_S", 0.02)
    await bench.prepare(PROVISION)
    assert "d/data" in bench.failed[0].message


async def test_a_pod_deleted_while_it_waits_for_volumes_is_not_bound(bench: Bench, server: Scripted) -> None:
    async with bench.running():
        bench.binder.put(PROVISION, POD, "{}")
        await until(lambda: bool(server.asked))
        bench.pods.clear()
        await asyncio.sleep(0.02)
        bench.mirror.claims.known["d", "data"] = claim("made", **DONE)
        await asyncio.sleep(0.02)
    assert server.bodies("POST", "binding") == []
    assert bench.failed == []


async def test_pods_that_wait_for_volumes_hold_up_nobody(bench: Bench) -> None:
    """More of them than there are workers; and the reporter need not hold back for them either."""
    async with bench.running():
        for number in range(2 * module.WORKERS):
            waits = Bind(f"w{number}", "n", 1, volumes=PROVISION.volumes)
            bench.binder.put(waits, Pod(f"w{number}", "d", f"w{number}", Request()), "{}")
        bench.binder.put(Bind("u", "n", 1), POD, "{}")
        await asyncio.wait_for(bench.binder.idle.wait(), PATIENCE_S)
        assert bench.bound == ["u to n"]
        bench.mirror.claims.known["d", "data"] = claim("made", **DONE)
        await until(lambda: len(bench.bound) == 1 + 2 * module.WORKERS)


async def test_it_ends_at_once_with_binds_under_way(bench: Bench, server: Scripted) -> None:
    never = asyncio.Event()
    server.will("POST", "binding", never.wait)
    async with bench.running() as task:
        for number in range(1_000):
            bench.binder.put(Bind(f"u{number}", "n", 1), Pod(f"u{number}", "d", f"p{number}", Request()), "{}")
        await asyncio.sleep(0.02)
        began_s = time.monotonic()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert time.monotonic() - began_s < 1
        assert task.cancelled()
    assert (bench.bound, bench.failed) == ([], [])


async def test_an_error_of_our_own_ends_it_loudly(bench: Bench, server: Scripted) -> None:
    server.will("POST", "binding", ZeroDivisionError("a bug"))
    async with bench.running() as task:
        bench.binder.put(Bind("u", "n", 1), POD, "{}")
        await asyncio.wait([task], timeout=PATIENCE_S)
        error = task.exception()
        assert isinstance(error, BaseExceptionGroup)
        assert error.subgroup(ZeroDivisionError) is not None
