# SPDX-License-Identifier: Apache-2.0
"""What is done for one plane, from the facts of a moment."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from dovetail.agentplanes import names, statuses
from dovetail.agentplanes.carry_actions import (
    Announce,
    BindOnEndpoint,
    CreateOnHost,
    DeleteOnHost,
    GiveBack,
    Negotiate,
    RemoveFromEndpoint,
    Renew,
    ShowStatus,
    Withdraw,
)
from dovetail.agentplanes.decisions import decide
from dovetail.agentplanes.facts import CarryLimits, HostPod, HostRefusal, OpenRequest, RequestKey
from dovetail.agentplanes.wants import PodWant, gang_of, want_of
from dovetail.apiserver.objects import Object, condition_of
from dovetail.core.bargaining.types import ServiceClass
from tests.agentplanes.builders import MINUTE, NOW_MS, facts, lease, pod

RUNNING = {
    "phase": "Running", "podIP": "10.0.0.1",
    "conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}],
    "containerStatuses": [{"name": "main", "ready": True, "state": {"running": {}}}],
}  # fmt: skip


def host(found: Object, phase: str = "Running", **fields: Any) -> HostPod:
    uid = found["metadata"]["uid"]
    status = RUNNING | {"phase": phase}
    return HostPod(f"host-{uid}", f"h-{uid}", uid, phase, **{"node": "node-0", "status": status} | fields)


def gang(found: Object) -> str:
    return gang_of(found, {}).digest


def key(found: Object) -> RequestKey:
    want = want_of(found)
    assert isinstance(want, PodWant)
    return RequestKey(gang(found), want)


def shown(found: Object, *, reason: str = "", **more: Any) -> Object:
    """The pod as it is once the plan's status is written, which the caller expects to be there."""
    (status,) = [one.status for one in decide(facts(found, **more)).actions if isinstance(one, ShowStatus)]
    after = found | {"status": status}
    assert not reason or condition_of(after, "PodScheduled").get("reason") == reason
    return after


def settled(found: Object, on_host: HostPod, **more: Any) -> Object:
    """The pod after its status was shown, and bound."""
    after = shown(found, hosts={on_host.pod_uid: on_host}, **more)
    return after | {"spec": after["spec"] | {"nodeName": on_host.node}}


def test_a_pod_without_gpus_is_created_at_once() -> None:
    (action,) = decide(facts(pod())).actions
    assert isinstance(action, CreateOnHost) and names.LEASE not in action.document["metadata"]["annotations"]


def test_the_pods_of_a_job_are_one_request() -> None:
    pods = [pod(f"p{n}", 2, owner="job") for n in range(3)]
    plan = decide(facts(*pods))
    (asked,) = [one for one in plan.actions if isinstance(one, Negotiate)]
    assert asked.key == key(pods[0]) and asked.pods == 3
    assert asked.key.want.alternative(3).count == 6 and asked.key.want.alternative(3).per_node == 2
    waits = [one for one in plan.actions if isinstance(one, ShowStatus)]
    assert [condition_of({"status": one.status}, "PodScheduled")["reason"] for one in waits] == ["WaitingForLease"] * 3
    assert not any(isinstance(one, CreateOnHost) for one in plan.actions)


def test_term_class_model_and_amounts_are_those_of_the_pod() -> None:
    annotations = {"dovetail.dev/lease-duration": "1h30m", "dovetail.dev/lease-class": "Scavenger"}
    found = pod("a", 2, annotations=annotations, nodeSelector={"nvidia.com/gpu.product": "NVIDIA-H100"})
    container = found["spec"]["containers"][0]
    container["resources"]["requests"] |= {"cpu": "7", "memory": "9"}
    assert want_of(found) == PodWant(
        2, "nvidia.com/gpu", ("NVIDIA-H100",), 3500, 5, 90 * MINUTE, ServiceClass.SCAVENGER
    )  # fmt: skip
    by_deadline = want_of(pod("b", 1, activeDeadlineSeconds=90))
    assert isinstance(by_deadline, PodWant) and by_deadline.duration_ms == 90_000


def test_what_cannot_be_asked_for_is_shown_on_the_pod() -> None:
    shown(pod("a", 1, annotations={"dovetail.dev/lease-duration": "soon"}), reason="InvalidInput")
    shown(pod("a", 1, annotations={"dovetail.dev/lease-class": "First"}), reason="InvalidInput")
    shown(pod("a", 65), reason="NotCarried")
    after = shown(pod("a", hostNetwork=True), reason="NotCarried")
    assert "spec.hostNetwork" in condition_of(after, "PodScheduled")["message"]
    assert after["status"]["reason"] == "NotCarried" and "spec.hostNetwork" in after["status"]["message"]
    assert decide(facts(after)).actions == ()


def test_a_gang_negotiates_when_it_is_complete() -> None:
    annotations = {"dovetail.dev/gang": "g", "dovetail.dev/gang-min": "2"}
    one, two = (pod(name, 1, annotations=annotations) for name in "ab")
    after = shown(one, reason="GangIncomplete")
    assert condition_of(after, "PodScheduled")["message"] == "1 of 2 pods of the gang are there"
    assert [n.pods for n in decide(facts(one, two)).actions if isinstance(n, Negotiate)] == [2]


def test_a_pod_group_has_the_number_and_must_be_there() -> None:
    group = {"schedulingGroup": {"podGroupName": "g"}}
    one, two = (pod(name, 1, **group) for name in "ab")
    shown(one, reason="PodGroupMissing")
    shown(one, reason="GangIncomplete", groups={("default", "g"): 2})
    asked = decide(facts(one, two, groups={("default", "g"): 2})).actions
    assert [n.pods for n in asked if isinstance(n, Negotiate)] == [2]


def test_a_held_lease_takes_the_pods_of_its_gang_alone() -> None:
    pods, other = [pod(f"p{n}", 2, owner="job") for n in range(3)], pod("other", 2)
    plan = decide(facts(*pods, other, leases=[lease("l", gang(pods[0]), 2, 4, 2)]))
    made = [one for one in plan.actions if isinstance(one, CreateOnHost)]
    assert {one.pod_uid for one in made} == {"uid-p0", "uid-p1", "uid-p2"}
    for one in made:
        annotations = one.document["metadata"]["annotations"]
        assert (annotations[names.LEASE], annotations[names.FENCE]) == ("l", "7")
    assert [one.key for one in plan.actions if isinstance(one, Negotiate)] == [key(other)]
    assert plan.unused == frozenset()


def test_devices_of_pods_that_run_are_not_taken_twice() -> None:
    pods = [pod(f"p{n}", 2, owner="job") for n in range(3)]
    held = lease("l", gang(pods[0]), 2, 4)
    inside = host(pods[0], lease="l", fence=7)
    plan = decide(facts(settled(pods[0], inside, leases=[held]), *pods[1:], leases=[held], hosts={"uid-p0": inside}))
    assert [one.pod_uid for one in plan.actions if isinstance(one, CreateOnHost)] == ["uid-p1"]
    assert [one.pods for one in plan.actions if isinstance(one, Negotiate)] == [1]


def test_a_lease_that_ends_or_is_not_sure_takes_no_pod() -> None:
    found = pod("a", 1)
    for fields in ({"live": False}, {"revoked": "Reclaimed"}, {"over": "Expired"}):
        plan = decide(facts(found, leases=[lease("l", gang(found), 1, 4, **fields)]))
        assert not any(isinstance(one, CreateOnHost) for one in plan.actions)


def test_an_open_request_is_not_made_twice_and_its_reason_is_shown() -> None:
    found = pod("a", 1)
    waits = {key(found): OpenRequest(1, "It waits: no GPU is free.")}
    after = shown(found, reason="WaitingForLease", negotiations=waits)
    assert condition_of(after, "PodScheduled")["message"] == "It waits: no GPU is free."
    assert decide(facts(after, negotiations=waits)).actions == ()
    assert decide(facts(negotiations=waits)).actions == (Withdraw(key(found)),)


def test_a_request_that_failed_is_made_again_later() -> None:
    found = pod("a", 1)
    failed = {key(found): OpenRequest(1, "denied: too many", True, NOW_MS + 5000)}
    after = shown(found, reason="LeaseNotGranted", negotiations=failed)
    plan = decide(facts(after, negotiations=failed))
    assert plan.actions == () and plan.wake_ms == NOW_MS + 5000
    later = decide(facts(after, negotiations=failed, now_ms=NOW_MS + 5000)).actions
    assert any(isinstance(one, Negotiate) for one in later)


def test_limits_are_shown_on_the_pods_beyond_them() -> None:
    found = [pod(f"p{n}") for n in range(3)]
    plan = decide(facts(*found, limits=CarryLimits(pods=2)))
    assert sum(isinstance(one, CreateOnHost) for one in plan.actions) == 2
    shown(found[0], reason="TooManyPods", limits=CarryLimits(pods=0))
    shown(found[0], reason="TooManyWrites", creations=0)
    assert decide(facts(found[0], creations=0)).wake_ms == NOW_MS + 1000
    shown(pod("g", 1), reason="TooManyRequests", limits=CarryLimits(requests=0))


def test_refused_pods_count_so_that_a_decision_costs_no_more_for_thousands() -> None:
    found = [pod(f"p{n}", hostNetwork=True) for n in range(3)]
    plan = decide(facts(*found, limits=CarryLimits(pods=2)))
    reasons = [one.status["reason"] for one in plan.actions if isinstance(one, ShowStatus)]
    assert reasons == ["NotCarried", "NotCarried", "TooManyPods"]


def test_a_refusal_of_the_host_is_shown_and_tried_again() -> None:
    found, refusal = pod("a"), HostRefusal("exceeded quota: cpu", NOW_MS + 5000)
    after = shown(found, reason="HostRefused", refusals={"uid-a": refusal})
    assert condition_of(after, "PodScheduled")["message"] == "exceeded quota: cpu"
    (again,) = decide(facts(after, refusals={"uid-a": refusal}, now_ms=NOW_MS + 5000)).actions
    assert isinstance(again, CreateOnHost)


def test_the_status_comes_back_once_and_the_pod_is_bound() -> None:
    found = pod("a")
    plan = decide(facts(found, hosts={"uid-a": host(found)}))
    assert BindOnEndpoint(("default", "a"), "uid-a", "node-0") in plan.actions
    after = settled(found, host(found))
    assert after["status"]["phase"] == "Running" and after["status"]["podIP"] == "10.0.0.1"
    assert after["status"]["qosClass"] == "BestEffort"
    assert decide(facts(after, hosts={"uid-a": host(found)})).actions == ()


def test_messages_that_may_name_others_do_not_come_back() -> None:
    secret = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "job X of team Y"}
    taken = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "for team Y"}
    found = pod("a")
    after = shown(found, hosts={"uid-a": host(found, node="", status=RUNNING | {"conditions": [secret, taken]})})
    assert condition_of(after, "PodScheduled") == {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    assert "team Y" not in str(after["status"])


def test_the_end_is_shown_before_the_pod_is_deleted_on_the_host() -> None:
    found = pod("a")
    running = settled(found, host(found))
    done = host(found, "Succeeded")
    (first,) = decide(facts(running, hosts={"uid-a": done})).actions
    assert isinstance(first, ShowStatus) and first.status["phase"] == "Succeeded"
    (second,) = decide(facts(running | {"status": first.status}, hosts={"uid-a": done})).actions
    assert isinstance(second, DeleteOnHost) and second.uid == "h-uid-a"
    assert decide(facts(running | {"status": first.status})).actions == ()


def test_a_pod_that_has_ended_is_kept_on_the_host_for_its_logs() -> None:
    found = pod("a")
    at = datetime.fromtimestamp(NOW_MS / 1000 - 100, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ended = {"name": "main", "state": {"terminated": {"exitCode": 0, "finishedAt": at}}}
    done = host(found, "Succeeded", status={"phase": "Succeeded", "containerStatuses": [ended]})
    after = settled(found, done)
    plan = decide(facts(after, hosts={"uid-a": done}))
    assert plan.actions == () and plan.wake_ms == NOW_MS + 500_001
    for limits in (CarryLimits(logs_s=100), CarryLimits(pods=0)):
        (action,) = decide(facts(after, hosts={"uid-a": done}, limits=limits)).actions
        assert isinstance(action, DeleteOnHost)


def test_a_deletion_goes_to_the_host_and_comes_back() -> None:
    found = pod("a")
    running = settled(found, host(found))
    doomed = running | {
        "metadata": running["metadata"]
        | {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30}
    }
    assert decide(facts(doomed, hosts={"uid-a": host(found)})).actions == (DeleteOnHost("host-uid-a", "h-uid-a", 30),)
    assert decide(facts(doomed, hosts={"uid-a": host(found, deleting=True)})).actions == ()
    assert decide(facts(doomed)).actions == (RemoveFromEndpoint(("default", "a"), "uid-a"),)


def test_a_pod_of_the_host_without_one_of_the_endpoint_is_deleted() -> None:
    (action,) = decide(facts(hosts={"uid-a": host(pod("a"))})).actions
    assert isinstance(action, DeleteOnHost)


def test_a_pod_that_vanished_from_the_host_has_failed_with_the_cause() -> None:
    found = pod("a", 1)
    inside = host(found, lease="l", fence=7)
    held = lease("l", gang(found), 1, 1)
    running = settled(found, inside, leases=[held])
    over = replace(held, over="Reclaimed", message="another workload has a better right")
    after = shown(running, last={"uid-a": inside}, leases=[over])
    assert after["status"]["phase"] == "Failed" and after["status"]["reason"] == "Reclaimed"
    assert after["status"]["message"] == "another workload has a better right"
    assert "terminated" in after["status"]["containerStatuses"][0]["state"]
    plain = pod("b")
    gone = shown(settled(plain, host(plain)))
    assert gone["status"]["reason"] == "HostPodGone"
    evicted = host(plain, status=RUNNING | {"conditions": [
        {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "by team Y"}
    ]})  # fmt: skip
    assert shown(settled(plain, host(plain)), last={"uid-b": evicted})["status"]["reason"] == "EvictionByEvictionAPI"


def test_a_lease_that_is_over_fails_its_pods_before_they_are_deleted() -> None:
    found = pod("a", 1)
    inside, held = host(found, lease="l", fence=7), lease("l", gang(found), 1, 1)
    running = settled(found, inside, leases=[held])
    for leases in ([replace(held, over="Expired")], [], [replace(held, end_ms=NOW_MS)]):
        after = shown(running, hosts={"uid-a": inside}, leases=leases)
        assert after["status"]["phase"] == "Failed"
        (action, *_) = decide(facts(after, hosts={"uid-a": inside}, leases=leases)).actions
        assert isinstance(action, DeleteOnHost)


def test_a_pod_that_was_stopped_has_failed_whatever_it_returned() -> None:
    found = pod("a")
    running = settled(found, host(found))
    after = shown(running, hosts={"uid-a": host(found, "Succeeded", deleting=True)})
    assert after["status"]["phase"] == "Failed"


def test_a_revocation_is_announced_once_on_each_pod() -> None:
    found = pod("a", 1)
    inside, held = host(found, lease="l", fence=7), lease("l", gang(found), 1, 1)
    running = settled(found, inside, leases=[held])
    ending = replace(held, revoked="Reclaimed", message="others are due", end_ms=NOW_MS + MINUTE)
    more = {"hosts": {"uid-a": inside}, "leases": [ending]}
    plan = decide(facts(running, **more))
    (event,) = [one for one in plan.actions if isinstance(one, Announce)]
    assert event.reason == "Reclaimed" and event.message.startswith("save a checkpoint now: the pod is deleted at ")
    after = shown(running, **more)
    assert condition_of(after, statuses.ENDING)["message"] == event.message
    plan = decide(facts(after, **more))
    assert plan.actions == () and plan.wake_ms == NOW_MS + MINUTE


def test_a_lease_is_renewed_while_its_pods_run_and_else_its_end_is_announced() -> None:
    found = pod("a", 1)
    inside, held = host(found, lease="l", fence=7), lease("l", gang(found), 1, 1)
    running = settled(found, inside, leases=[held])
    near_ms = held.notice_ms
    plan = decide(facts(running, hosts={"uid-a": inside}, leases=[held], now_ms=near_ms))
    assert plan.actions == (Renew("l", 10 * MINUTE),)
    refused = replace(held, refused="others wait")
    plan = decide(facts(running, hosts={"uid-a": inside}, leases=[refused], now_ms=near_ms))
    assert [one.reason for one in plan.actions if isinstance(one, Announce)] == ["Expired"]
    finished = host(found, "Succeeded", lease="l", fence=7)
    plan = decide(facts(running, hosts={"uid-a": finished}, leases=[held], now_ms=near_ms))
    assert not any(isinstance(one, Renew) for one in plan.actions)


def test_a_lease_that_no_pod_needs_is_returned_after_a_while() -> None:
    held = lease("l", "gang", 1, 1)
    plan = decide(facts(leases=[held]))
    assert plan.actions == () and plan.unused == {"l"} and plan.wake_ms == NOW_MS + 5000
    assert decide(facts(leases=[replace(held, unused_ms=NOW_MS - 5000)])).actions == (GiveBack("l"),)
    assert decide(facts(leases=[replace(held, gang="")])).actions == (GiveBack("l"),)


def test_gated_pods_wait() -> None:
    assert decide(facts(pod("a", schedulingGates=[{"name": "x"}]))).actions == ()
