# SPDX-License-Identifier: Apache-2.0
"""Extended resources become a claim with the requests, and the names, that kube-scheduler would write."""

from __future__ import annotations

from dovetail.core.dra.extended import ExtendedUse, claim_for
from dovetail.core.dra.types import DeviceClass
from dovetail.core.model import Container
from tests.core.dra.device_worlds import World

GPU = "nvidia.com/gpu"
CLASSES = {GPU: "gpu"}


def container(name: str, gpus: int, passing: bool = False) -> Container:
    return Container(name, (("cpu", 1), ("memory", 1), (GPU, gpus)), passing)


def requested(*containers: Container) -> dict[str, int]:
    spec, _ = claim_for(containers, CLASSES)
    assert all(len(alternatives) == 1 and alternatives[0].device_class == "gpu" for alternatives in spec.requests)
    return {one.name: one.count for (one,) in spec.requests}


def test_each_container_has_a_request_that_is_named_by_its_places() -> None:
    spec, uses = claim_for((container("a", 2), container("b", 0), container("c", 1)), CLASSES)
    assert [(one.name, one.count) for (one,) in spec.requests] == [
        ("container-0-request-2", 2),
        ("container-2-request-2", 1),
    ]
    assert uses == (ExtendedUse("a", GPU, "container-0-request-2"), ExtendedUse("c", GPU, "container-2-request-2"))


def test_init_containers_use_the_devices_of_those_after_them() -> None:
    assert requested(container("init", 3, passing=True), container("a", 2), container("b", 2)) == {
        "container-1-request-2": 2,
        "container-2-request-2": 2,
    }
    _, uses = claim_for((container("init", 1, passing=True), container("a", 2), container("b", 2)), CLASSES)
    assert [use.request for use in uses if use.container == "init"] == ["container-1-request-2"]


def test_what_init_containers_lack_is_requested_once() -> None:
    containers = (container("i0", 3, passing=True), container("i1", 5, passing=True), container("a", 2))
    assert requested(*containers) == {"container-1-request-2": 3, "container-2-request-2": 2}
    assert claim_for(containers, CLASSES)[1] == (
        ExtendedUse("a", GPU, "container-2-request-2"),
        ExtendedUse("i0", GPU, "container-2-request-2"),
        ExtendedUse("i0", GPU, "container-1-request-2"),
        ExtendedUse("i1", GPU, "container-2-request-2"),
        ExtendedUse("i1", GPU, "container-1-request-2"),
    )


def test_sidecars_hold_theirs_and_later_init_containers_cannot_use_them() -> None:
    assert requested(container("sidecar", 1), container("init", 1, passing=True), container("a", 0)) == {
        "container-0-request-2": 1,
        "container-1-request-2": 1,
    }


def test_requests_of_several_resources_are_in_the_order_of_their_names() -> None:
    one = Container("a", (("b.io/x", 2), ("nvidia.com/gpu", 1)))
    spec, uses = claim_for((one,), {GPU: "gpu", "b.io/x": "x"})
    assert [(r.name, r.device_class, r.count) for (r,) in spec.requests] == [
        ("container-0-request-0", "x", 2),
        ("container-0-request-1", "gpu", 1),
    ]
    assert [use.resource for use in uses] == ["b.io/x", GPU]


def test_of_several_classes_the_newest_stands_for_a_resource() -> None:
    claims = World().claims
    assert claims.extended(GPU) is None
    for name, created_ms in (("old", 1), ("b", 2), ("a", 2)):
        claims.put_class(DeviceClass(name, extended_resource=GPU, created_ms=created_ms))
    for expected in ("a", "b", "old"):
        found = claims.extended(GPU)
        assert found is not None and found.name == expected
        claims.remove_class(expected)
    assert claims.extended(GPU) is None


def test_each_class_has_a_resource_of_its_own_name() -> None:
    claims = World().claims
    claims.put_class(DeviceClass("mig", extended_resource=GPU))
    assert claims.extended("deviceclass.resource.kubernetes.io/mig") == claims.classes["mig"]
    assert claims.extended("deviceclass.resource.kubernetes.io/other") is None
