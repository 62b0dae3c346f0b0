# SPDX-License-Identifier: Apache-2.0
"""The QoS class of a pod, and what it takes from its node."""

import pytest

from dovetail.core.devices.kubelet.pods import Asked, ManagedContainer, ManagedKind, ManagedPod, Qos, amounts

BOTH = amounts({"cpu": 1000, "memory": 100})
MORE = amounts({"cpu": 1000, "memory": 200})
GPU = amounts({"nvidia.com/gpu": 1})


def qos(*containers: ManagedContainer, whole: Asked | None = None, level: bool = True, fixed: bool = True) -> Qos:
    return ManagedPod(containers, whole).qos(level, fixed)


def test_every_container_must_ask_for_all_that_it_may_use_to_be_guaranteed() -> None:
    assert qos(ManagedContainer(BOTH, BOTH)) is Qos.GUARANTEED
    assert qos(ManagedContainer(BOTH, MORE)) is Qos.BURSTABLE
    assert qos(ManagedContainer(amounts({"cpu": 1000}), amounts({"cpu": 1000}))) is Qos.BURSTABLE
    assert qos(ManagedContainer(BOTH, BOTH), ManagedContainer()) is Qos.BURSTABLE


def test_only_cpu_and_memory_count() -> None:
    huge = amounts({"hugepages-2Mi": 1 << 21})
    assert qos(ManagedContainer(GPU, GPU), ManagedContainer(huge, huge)) is Qos.BEST_EFFORT
    assert qos(ManagedContainer(BOTH, BOTH), ManagedContainer(GPU, GPU)) is Qos.BURSTABLE
    assert qos(ManagedContainer(amounts({"cpu": 0}), amounts({"memory": 0}))) is Qos.BEST_EFFORT


def test_init_containers_and_sidecars_count() -> None:
    assert qos(ManagedContainer(kind=ManagedKind.INIT), ManagedContainer(BOTH, BOTH)) is Qos.BURSTABLE
    assert qos(ManagedContainer(BOTH, BOTH, ManagedKind.SIDECAR), ManagedContainer(BOTH, BOTH)) is Qos.GUARANTEED


def test_resources_of_the_whole_pod_decide_alone_where_the_node_knows_them() -> None:
    whole = Asked(BOTH, BOTH)
    assert qos(ManagedContainer(), whole=whole) is Qos.GUARANTEED
    assert qos(ManagedContainer(), whole=whole, level=False) is Qos.BEST_EFFORT
    assert qos(ManagedContainer(BOTH, BOTH), whole=Asked(BOTH, MORE)) is Qos.BURSTABLE


def test_resources_of_the_whole_pod_that_name_nothing_decide_only_on_old_nodes() -> None:
    assert qos(ManagedContainer(BOTH, BOTH), whole=Asked(), fixed=True) is Qos.GUARANTEED
    assert qos(ManagedContainer(BOTH, BOTH), whole=Asked(), fixed=False) is Qos.BEST_EFFORT
    assert qos(ManagedContainer(BOTH, BOTH), whole=Asked(GPU, GPU), fixed=True) is Qos.GUARANTEED


def test_the_class_in_the_status_is_believed() -> None:
    assert ManagedPod((ManagedContainer(BOTH, BOTH),), status_qos=Qos.BURSTABLE).qos(True, True) is Qos.BURSTABLE


def test_a_pod_takes_its_peak_or_what_runs_side_by_side_whichever_is_more() -> None:
    def cpu(milli: int, kind: ManagedKind) -> ManagedContainer:
        return ManagedContainer(amounts({"cpu": milli}), (), kind)

    pod = ManagedPod(
        (
            cpu(1000, ManagedKind.INIT),
            cpu(500, ManagedKind.SIDECAR),
            cpu(4000, ManagedKind.INIT),
            cpu(2000, ManagedKind.APP),
        )
    )
    assert pod.total_requests(True) == {"cpu": 4500}
    assert (
        ManagedPod(
            (cpu(500, ManagedKind.SIDECAR), cpu(2000, ManagedKind.APP), cpu(3000, ManagedKind.APP))
        ).total_requests(True)["cpu"]
        == 5500
    )


def test_resources_of_the_whole_pod_stand_in_for_those_of_its_containers_and_overhead_comes_on_top() -> None:
    asked = ManagedContainer(amounts({"cpu": 500, "nvidia.com/gpu": 2}))
    whole = Asked(amounts({"cpu": 3000, "nvidia.com/gpu": 9}))
    pod = ManagedPod((asked,), whole, overhead=amounts({"cpu": 250, "memory": 7}))
    assert pod.total_requests(True) == {"cpu": 3250, "memory": 7, "nvidia.com/gpu": 2}
    assert pod.total_requests(False) == {"cpu": 750, "memory": 7, "nvidia.com/gpu": 2}


def test_containers_in_an_order_that_no_spec_has_are_refused() -> None:
    with pytest.raises(ValueError, match="come before app containers"):
        ManagedPod((ManagedContainer(), ManagedContainer(kind=ManagedKind.INIT)))
    with pytest.raises(ValueError, match="at least one"):
        ManagedPod(())
