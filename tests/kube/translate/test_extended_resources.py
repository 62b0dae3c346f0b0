# SPDX-License-Identifier: Apache-2.0
"""What is reported of pods that ask for resources for which devices by claim may stand in."""

from __future__ import annotations

from dovetail.core.model import Container, Pod
from dovetail.kube.translate import pods
from tests.kube.yaml_objects import pod

GPU = "nvidia.com/gpu"
IMPLICIT = "deviceclass.resource.kubernetes.io/mig"
STATUS = f"""
  extendedResourceClaimStatus:
    resourceClaimName: p-extended-resources-x7k2p
    requestMappings: [{{containerName: a, resourceName: {GPU}, requestName: container-0-request-1}}]"""


def reported(containers: str, more: str = "", *, scheduler: str = "dovetail", status: str = "{}") -> Pod:
    return pods.pod(pod(f"spec: {{schedulerName: {scheduler}, {containers}{more}}}\nstatus: {status}"))


def asking(name: str, **amounts: str) -> str:
    limits = ", ".join(f"{'nvidia.com/gpu' if key == 'gpu' else key}: {amount}" for key, amount in amounts.items())
    return f"{{name: {name}, resources: {{limits: {{{limits}}}, requests: {{{limits}}}}}}}"


def test_all_containers_are_reported_in_their_order_with_all_that_they_request() -> None:
    sidecar = asking("s", gpu="1")[:-1] + ", restartPolicy: Always}"
    record = reported(f"containers: [{asking('a', cpu='2', gpu='2')}, {{name: b}}], initContainers: [{sidecar}, "
                  f"{asking('i', gpu='1')}]")  # fmt: skip
    assert record.containers == (
        Container("s", ((GPU, 1),)),
        Container("i", ((GPU, 1),), passing=True),
        Container("a", (("cpu", 2000), (GPU, 2))),
        Container("b", ()),
    )


def test_an_amount_of_zero_has_its_place_in_the_order_of_names() -> None:
    assert reported(f"containers: [{asking('a', cpu='0', gpu='1')}]").containers == (
        Container("a", (("cpu", 0), (GPU, 1))),
    )


def test_a_class_may_be_asked_for_by_its_name() -> None:
    limits = f"{{name: a, resources: {{limits: {{{IMPLICIT}: 1}}, requests: {{{IMPLICIT}: 1}}}}}}"
    assert reported(f"containers: [{limits}]").containers == (Container("a", ((IMPLICIT, 1),)),)


def test_pods_that_nothing_can_be_claimed_for_have_no_containers() -> None:
    gpus = f"containers: [{asking('a', gpu='1')}]"
    assert reported(f"containers: [{asking('a', cpu='2', memory='1Gi')}]").containers == ()
    assert reported(gpus, scheduler="other").containers == ()
    assert reported(gpus, ", nodeName: n").containers == ()


def test_equal_pods_of_other_container_names_have_one_request() -> None:
    one, other = (reported(f"containers: [{asking(name, gpu='1')}]") for name in "ab")
    assert one.request is other.request
    assert one.containers != other.containers


def test_a_bound_pod_has_what_its_status_states_by_the_claim_that_it_names() -> None:
    containers = f"containers: [{asking('a', cpu='2', gpu='2')}]"
    bound = reported(containers, ", nodeName: n", status=STATUS)
    assert (bound.by_claim, bound.device_claims) == ((GPU,), ("ml/p-extended-resources-x7k2p",))
    assert reported(containers, ", nodeName: n").by_claim == ()
    waiting = reported(containers, status=STATUS)
    assert (waiting.by_claim, waiting.device_claims) == ((GPU,), ())
