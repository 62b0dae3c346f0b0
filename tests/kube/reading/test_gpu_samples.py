# SPDX-License-Identifier: Apache-2.0
"""Devices and their holders out of series."""

from __future__ import annotations

from dovetail.kube.reading.exposition import SeriesValues
from dovetail.kube.reading.gpu_samples import MEMORY_USED, SM, UTILIZATION, DeviceKey, devices_of

GPU = {"gpu": "3", "UUID": "GPU-a", "modelName": "H100", "hostname": "n1"}


def test_a_free_gpu_has_no_holder() -> None:
    (device,) = devices_of([SeriesValues(GPU, {UTILIZATION: 0.0, "dovetail_gpu_allocated_share": 0.0})])
    assert (device.key, device.index, device.holders) == (DeviceKey("n1", "GPU-a", ""), 3, ())


def test_without_our_share_a_pod_label_is_a_holder() -> None:
    (device,) = devices_of([SeriesValues(GPU | {"namespace": "a", "pod": "p", "container": "c"}, {UTILIZATION: 50.0})])
    assert [(one.namespace, one.pod, one.share) for one in device.holders] == [("a", "p", 1.0)]


def shared_by(*pods: str) -> list[SeriesValues]:
    values = {UTILIZATION: 70.0, MEMORY_USED: 200.0, SM: 0.6, "dovetail_gpu_allocated_share": 0.5}
    return [SeriesValues(GPU | {"namespace": "a", "pod": pod, "container": "c", "vgpu": pod}, values) for pod in pods]


def test_a_shared_gpu_has_the_sum_over_the_processes_of_its_holders() -> None:
    use = [
        SeriesValues(
            GPU | {"namespace": "a", "pod": pod},
            {"dovetail_gpu_pod_sm_ratio": sm, "dovetail_gpu_pod_memory_used_bytes": 100.0 * 2**20},
        )
        for pod, sm in (("p", 0.5), ("q", 0.25))
    ]
    (device,) = devices_of([*shared_by("p", "q"), *use])
    assert (device.values[UTILIZATION], device.values[MEMORY_USED], device.values[SM]) == (75.0, 200.0, 0.6)
    assert [(one.pod, one.share, one.utilization, one.memory_mib) for one in device.holders] == [
        ("p", 0.5, 50.0, 100.0),
        ("q", 0.5, 25.0, 100.0),
    ]


def test_without_processes_the_parts_of_holders_are_not_known() -> None:
    (device,) = devices_of(shared_by("p", "q"))
    assert (device.values[UTILIZATION], device.values[MEMORY_USED]) == (70.0, 200.0)
    assert [(one.utilization, one.memory_mib) for one in device.holders] == [(None, None)] * 2


def test_total_less_free_memory_is_used_where_it_is_known() -> None:
    values = {MEMORY_USED: 100.0, "DCGM_FI_DEV_FB_TOTAL": 1000.0, "DCGM_FI_DEV_FB_FREE": 700.0}
    shared = [SeriesValues(GPU | {"namespace": "a", "pod": pod}, values) for pod in ("p", "q")]
    (device,) = devices_of(shared)
    assert device.values[MEMORY_USED] == 300.0


def test_instances_are_devices_of_their_own_in_order() -> None:
    instances = [GPU | {"GPU_I_ID": number, "GPU_I_PROFILE": "1g.10gb"} for number in ("10", "9")]
    found = devices_of(SeriesValues(labels, {MEMORY_USED: 1.0}) for labels in (*instances, GPU))
    assert [one.key.instance for one in found] == ["", "9", "10"]


def test_health_state_and_processes_are_of_the_device() -> None:
    series = [
        SeriesValues(GPU, {"dovetail_gpu_healthy": 0.0}),
        SeriesValues(GPU | {"state": "healthy"}, {"dovetail_gpu_health_state": 0.0}),
        SeriesValues(GPU | {"state": "quarantined"}, {"dovetail_gpu_health_state": 1.0}),
        SeriesValues(GPU | {"holder": "no_pod"}, {"dovetail_gpu_processes": 2.0}),
    ]
    (device,) = devices_of(series)
    assert (device.state, dict(device.processes)) == ("quarantined", {"no_pod": 2})


def test_memory_and_use_of_a_pod_are_those_of_its_processes() -> None:
    labels = GPU | {"namespace": "a", "pod": "p"}
    series = [
        SeriesValues(labels | {"container": "c"}, {MEMORY_USED: 900.0, "dovetail_gpu_allocated_share": 1.0}),
        SeriesValues(
            labels, {"dovetail_gpu_pod_memory_used_bytes": float(64 << 20), "dovetail_gpu_pod_sm_ratio": 0.25}
        ),
    ]
    (holder,) = devices_of(series)[0].holders
    assert (holder.container, holder.utilization, holder.memory_mib) == ("c", 25.0, 64.0)


def test_labels_of_job_and_queue_are_taken_over() -> None:
    labels = GPU | {"namespace": "a", "pod": "p", "job": "train", "queue": "research", "owner": "ann"}
    (holder,) = devices_of([SeriesValues(labels, {UTILIZATION: 1.0})])[0].holders
    assert (holder.job, holder.queue, holder.user) == ("train", "research", "ann")


def test_indices_that_are_no_numbers_do_not_fail() -> None:
    (device,) = devices_of([SeriesValues({"UUID": "x", "gpu": "²", "GPU_I_ID": "one"}, {UTILIZATION: 1.0})], "node")
    assert (device.key.node, device.index) == ("node", 0)
