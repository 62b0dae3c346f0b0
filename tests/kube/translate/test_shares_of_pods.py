# SPDX-License-Identifier: Apache-2.0
"""What a pod wants of each of its GPUs, and how it spells the MIG slices that it asks for."""

from __future__ import annotations

import pytest

from dovetail.core.events import GangChanged, PodChanged
from dovetail.core.model import Problem, Request
from dovetail.kube.objects.pods import Pod
from dovetail.kube.translate import pods
from dovetail.kube.translate.bound import Bound, BoundRecords
from dovetail.kube.translate.translator import Translator
from tests.bound import text_of
from tests.kube.yaml_objects import added, wire

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
SLICE = "nvidia.com/mig-1g.10gb"
MIG = "a MIG slice (nvidia.com/mig-<compute slices>g.<memory>gb)"


def pod(*resources: str, scheduler: str = "dovetail", node: str = "", **options: str) -> Pod:
    limits = ", ".join(f"{name}: 1" for name in resources)
    stated = ", ".join(f"dovetail.dev/{key.replace('_', '-')}: '{value}'" for key, value in options.items())
    return wire(
        Pod,
        f"""
metadata: {{name: p, namespace: ns, uid: u, annotations: {{{stated}}}}}
spec:
  schedulerName: {scheduler}
  nodeName: "{node}"
  containers: [{{resources: {{limits: {{cpu: 1}}}}}}, {{resources: {{limits: {{{limits}}}, requests: {{{limits}}}}}}}]
""",
    )


def request(*resources: str, **options: str) -> Request:
    record = pods.pod(pod(*resources, **options))
    assert record.problem is None
    return record.request


def problem(*resources: str, **options: str) -> Problem:
    found = pods.pod(pod(*resources, **options)).problem
    assert found is not None
    return found


@pytest.mark.parametrize("resource", [GPU, SHARED])
def test_memory_fraction_and_isolation_are_of_each_device(resource: str) -> None:
    options = request(resource, gpu_memory="8Gi", gpu_isolation="memory")
    assert (options.gpu_memory_mib, options.gpu_milli, options.isolation) == (8192, 0, "memory")
    options = request(resource, gpu_fraction="0.25")
    assert (options.gpu_memory_mib, options.gpu_milli, options.isolation) == (0, 250, "")
    assert dict(options.resources)[resource] == 1


def test_an_instance_that_can_sleep_takes_turns_with_those_of_its_namespace() -> None:
    found = request(SHARED, gpu_memory="60Gi", gpu_memory_asleep="2Gi", sleep_engine="vllm")
    assert (found.gpu_memory_mib, found.gpu_asleep_mib, found.turn_group) == (61440, 2048, "ns")
    assert request(SHARED, gpu_memory="60Gi").turn_group == ""


def test_what_a_bound_instance_needs_while_it_sleeps_is_in_its_record() -> None:
    kept = BoundRecords().decide(pods.pod(pod(SHARED, gpu_memory="60Gi", gpu_memory_asleep="2Gi")), "q", None, "1", "n")
    forged = pods.pod(pod(SHARED, node="n", gpu_memory="60Gi", gpu_memory_asleep="1Mi"), bound=kept.bound)
    assert (forged.request.gpu_memory_mib, forged.request.gpu_asleep_mib) == (61440, 2048)


def test_no_isolation_is_the_default() -> None:
    assert request(GPU, gpu_isolation="none") == request(GPU)


def test_a_pod_of_another_scheduler_takes_no_share_that_we_would_know_of() -> None:
    record = pods.pod(pod(SHARED, scheduler="other", gpu_memory="8Gi", gpu_fraction="7"))
    assert (record.request.gpu_memory_mib, record.problem) == (0, None)


@pytest.mark.parametrize(
    ("resources", "options", "key", "rule"),
    [
        ((), {"gpu_memory": "8Gi"}, "gpu-memory", f"no container asks for {SHARED}, {GPU} or {MIG}"),
        ((), {"gpu_fraction": "0.5"}, "gpu-fraction", f"no container asks for {SHARED} or {GPU}"),
        ((), {"gpu_isolation": "none"}, "gpu-isolation", f"no container asks for {SHARED}, {GPU} or {MIG}"),
        ((SLICE,), {"gpu_fraction": "0.5"}, "gpu-fraction", f"no container asks for {SHARED} or {GPU}"),
        ((SHARED,), {"gpu_fraction": "0.5", "gpu_memory": "1Gi"}, "gpu-fraction",
         "has the meaning of dovetail.dev/gpu-memory: leave one of them away"),
        ((SHARED,), {"gpu_isolation": "strong"}, "gpu-isolation",
         f"is never promised for {SHARED}: ask for {GPU} or {MIG}"),
        ((SHARED,), {"gpu_memory_asleep": "2Gi"}, "gpu-memory-asleep",
         "needs dovetail.dev/gpu-memory beside it: the memory of the instance while it is awake"),
        ((SHARED,), {"gpu_memory": "2Gi", "gpu_memory_asleep": "2Gi"}, "gpu-memory-asleep",
         "must be less than dovetail.dev/gpu-memory, which is 2048Mi; nearest valid value: 2047Mi"),
        ((SLICE,), {"gpu_memory": "8Gi", "gpu_memory_asleep": "2Gi"}, "gpu-memory-asleep",
         f"no container asks for {SHARED} or {GPU}: a MIG slice has the memory of its profile"),
        ((SHARED,), {"sleep_engine": "vllm"}, "sleep-engine", "needs dovetail.dev/gpu-memory-asleep beside it"),
        ((f"{SLICE}.shared",), {"gpu_memory": "1Gi"}, "gpu-memory",
         f"nothing is promised of {SLICE}.shared: ask for {SLICE}"),
        ((f"{SLICE}.shared",), {"gpu_isolation": "memory"}, "gpu-isolation",
         f"nothing is promised of {SLICE}.shared: ask for {SLICE}"),
        (("nvidia.com/mig-1g.5gb",), {"gpu_memory": "5Gi"}, "gpu-memory",
         "nvidia.com/mig-1g.5gb has 4864 MiB: ask for nvidia.com/mig-1g.10gb"),
        (("nvidia.com/mig-7g.141gb",), {"gpu_memory": "150Gi"}, "gpu-memory",
         f"nvidia.com/mig-7g.141gb has 143104 MiB: ask for {GPU}"),
    ],
)  # fmt: skip
def test_requests_that_nothing_can_fulfil(
    resources: tuple[str, ...], options: dict[str, str], key: str, rule: str
) -> None:
    value = options[key.replace("-", "_")]
    assert problem(*resources, **options) == Problem(f"metadata.annotations[dovetail.dev/{key}]", value, rule)


def test_a_slice_is_never_opened_as_a_share() -> None:
    plain = request(SLICE)
    for options in ({"gpu_memory": "9Gi"}, {"gpu_isolation": "strong"}):
        assert request(SLICE, **options) == plain
    assert request(f"{SLICE}.shared", gpu_isolation="none") == request(f"{SLICE}.shared")


def test_the_larger_of_the_slices_of_one_name_counts_as_the_node_is_not_known_yet() -> None:
    assert request("nvidia.com/mig-1g.10gb", gpu_memory="9984Mi")
    assert problem("nvidia.com/mig-1g.10gb", gpu_memory="9985Mi").rule.startswith("nvidia.com/mig-1g.10gb has 9984 MiB")


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("nvidia.com/gpu.mig-1g.5gb", "nvidia.com/mig-1g.5gb"),
        ("nvidia.com/mig-1g-5gb", "nvidia.com/mig-1g.5gb"),
        ("nvidia.com/MIG-1g.5gb", "nvidia.com/mig-1g.5gb"),
        ("nvidia.com/mig-1g.10gb+me", "nvidia.com/mig-1g.10gb.me"),
        ("nvidia.com/mig-3g.20g", "nvidia.com/mig-3g.20gb"),
    ],
)
def test_a_misspelt_slice_is_named_with_the_right_one(name: str, right: str) -> None:
    found = problem(name)
    assert (found.field, found.value) == (f"spec.containers[1].resources.limits[{name}]", "1")
    assert found.rule == f"must be nvidia.com/mig-<compute slices>g.<memory>gb; nearest valid value: {right}"


def test_misspelt_slices_are_found_wherever_they_are_asked_for() -> None:
    text = """
metadata: {name: p, namespace: ns, uid: u}
spec:
  schedulerName: %s
  initContainers: [{resources: {requests: {nvidia.com/mig-1g5gb: 2}}}]
  containers: [{resources: {limits: {nvidia.com/mig-1g.5gb: 1}}}]
"""
    found = pods.pod(wire(Pod, text % "dovetail")).problem
    assert found is not None
    assert "spec.initContainers[0].resources.requests[nvidia.com/mig-1g5gb]" in str(found)
    assert pods.pod(wire(Pod, text % "other")).problem is None


@pytest.mark.parametrize("name", [SLICE, "nvidia.com/mig-9g.999gb", f"{SLICE}.shared", "example.com/mig-1g5gb", GPU])
def test_a_name_that_a_node_may_offer_is_no_problem(name: str) -> None:
    assert pods.pod(pod(name)).problem is None


@pytest.mark.parametrize(("resource", "devices"), [(SHARED, (1,)), (GPU, (1,)), (SLICE, None)])
def test_the_card_that_was_written_down_is_read_again(resource: str, devices: tuple[int, ...] | None) -> None:
    (event,) = Translator().pods(added(pod(resource, node="n1", bound=text_of(Bound(1, "u", "q", devices="1")))))
    assert isinstance(event, PodChanged)
    assert event.pod.devices == devices


def test_what_a_gang_states_for_its_pods_is_refused_with_the_place_where_it_belongs() -> None:
    feed = Translator()
    asking = pod(SHARED, gang="g", gpu_memory="8Gi")
    (reported,) = [e for e in feed.pods(added(asking)) if isinstance(e, PodChanged)]
    assert (reported.pod.problem, reported.pod.request.gpu_memory_mib) == (None, 8192)

    from dovetail.kube.gangs import declared as gangs
    from dovetail.kube.translate.annotations import WorkloadOptions

    declared = gangs.named(gangs.Membership("id", "ns", "g"))
    (gang,) = gangs.records(
        gangs.Declared(declared.gang, "", options=WorkloadOptions(gpu_memory_mib=8192)), {WorkloadOptions(gang_min=1)}
    )
    assert GangChanged(gang).gang.problem == Problem(
        "metadata.annotations[dovetail.dev/gpu-memory]",
        "8192",
        "is of a pod: write it in the metadata of the pod template",
    )
