# SPDX-License-Identifier: Apache-2.0
"""When what is advised: each rule at its edges, and what is never advised."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.advice.interruptions import Interrupted
from dovetail.advice.sizing.advise import advice_for
from dovetail.advice.sizing.market import HourPrice, InstanceOffer, Market
from dovetail.advice.sizing.rule import JobAdvice, SizeChange
from dovetail.advice.sizing.rules import RULES
from dovetail.advice.sizing.seen import JobSeen
from dovetail.advice.sizing.workload import SERVING
from dovetail.history.job_use import DeviceUse
from dovetail.history.records import HOUR_MS, GpuSpan, HoldKind
from tests.advice.sizing.jobs import A100, BUSY, H100, HOURS, L4, QUIET, T4, device, gpus, job

IO = {"sm": 150, "tensor": 50, "dram": 150, "engine": 400, "utilization": 500, "pcie_rx": 2_000_000_000}
MEMORY = {"sm": 400, "tensor": 50, "dram": 700, "engine": 900, "utilization": 950, "memory_copy": 600}
SMALLER = {"unused-gpus", "mig", "fewer-gpus", "smaller-gpu", "share"}
SHRINKS = SMALLER | {"idle", "communication-bound"}


def rules(seen: JobSeen) -> list[str]:
    return [one.rule for one in advice_for(seen).advice]


def one_rule(seen: JobSeen, name: str) -> Any:
    """The only advice, which is of this rule."""
    (found,) = advice_for(seen).advice
    assert found.rule == name
    return found


def test_a_right_sized_job_gets_no_advice() -> None:
    found = advice_for(job(device([(700, HOURS)], BUSY)))
    assert (found.verdict, found.advice, found.missing) == ("right-sized", (), "")


def test_a_gpu_of_an_unknown_size_is_not_called_right() -> None:
    found = advice_for(job(device([(60, HOURS)], model="NVIDIA-Z9")))
    assert found.verdict == "not enough data"
    assert found.missing == "the memory of a GPU of the model NVIDIA-Z9 is not known"
    assert rules(job(device([(0, HOURS)], model="NVIDIA-Z9"), kind="Deployment")) == ["idle"]


@pytest.mark.parametrize("hours", [6 * 24, 7 * 24])
def test_less_than_a_week_is_not_enough(hours: int) -> None:
    found = advice_for(job(device([(60, hours)]), kind="Deployment"))
    assert (found.verdict == "advice") == (hours == 7 * 24)
    assert ("measured days: 6, runs: 1" in found.missing) == (hours < 7 * 24)


def test_twenty_runs_are_enough() -> None:
    few = [device([(60, 12)], run=run, pod=f"p{run}") for run in range(20)]
    assert advice_for(job(*few)).verdict == "not enough data"  # 12 h of 192 h were measured.
    enough = [device([(60, 120)], run=run, pod=f"p{run}") for run in range(20)]
    assert rules(job(*enough)) == ["mig"]
    assert advice_for(job(*enough[:19])).verdict == "not enough data"


def test_a_mean_alone_triggers_nothing() -> None:
    """A mean of 20 % with a p95 of 95 %."""
    bursty = device([(100, HOURS - 24), (950, 24)])
    assert bursty.mean_milli < 210
    for kind in ("Deployment", "Job", "StatefulSet"):
        assert advice_for(job(bursty, kind=kind)).verdict == "right-sized"


SWINGS = {**QUIET, "sm": 350, "nvlink_tx": 20_000_000_000}


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 40)), min_size=1, max_size=8),
    st.sampled_from([H100, A100, L4, T4, "unknown"]), st.integers(1, 90_000), st.integers(1, 4),
    st.sampled_from(["", *sorted(SERVING)]), st.sampled_from([QUIET, SWINGS]),
)  # fmt: skip
@pytest.mark.slow
def test_a_service_with_a_high_p95_keeps_its_size(
    use: list[tuple[int, int]], model: str, peak_mib: int, number: int, kind: str, activity: dict[str, int]
) -> None:
    used = [(value, hours) for value, hours in use] + [(850, 1 + sum(hours for _, hours in use) // 10)]
    for per_pod in (True, False):
        seen = job(*gpus(number, used, activity, model=model, peak_mib=peak_mib, per_pod=per_pod), kind=kind,
                   models=[H100, A100, L4, T4])  # fmt: skip
        assert seen.p95 >= 800
        assert SHRINKS.isdisjoint(rules(seen))


def test_what_is_missing_does_not_keep_from_seeing_a_hang() -> None:
    found = one_rule(job(*gpus(8, [(600, 10)], BUSY, hung_ms=3 * HOUR_MS)), "hung")
    assert "for 3 h" in found.cause and found.saving.gpu_s == 0 and found.change is None
    assert rules(job(*gpus(8, [(600, 10)], BUSY, hung_ms=HOUR_MS - 1))) == []


def test_gpus_that_the_program_does_not_use() -> None:
    used, unused = gpus(2, [(600, HOURS)], BUSY), [device([(0, HOURS)], {"sm": 0}, gpu=f"u{i}") for i in range(6)]
    found = one_rule(job(*used, *unused), "unused-gpus")
    assert found.change == SizeChange("gpus", 2) and found.saving.gpu_s == 6 * HOURS * 3600
    # One hour in ten in which they are used is a reason to have them.
    rare = [device([(0, HOURS - 24), (500, 24)], BUSY, gpu=f"u{i}") for i in range(6)]
    assert "unused-gpus" not in rules(job(*used, *rare))


def test_a_straggler_is_no_matter_of_size() -> None:
    slow = device([(300, HOURS)], {**BUSY, "sm": 300, "tensor": 200}, gpu="slow")
    assert rules(job(*gpus(3, [(600, HOURS)], BUSY), slow)) == ["straggler"]
    # Replicas of a service are not compared: their load is not the same.
    apart = device([(300, HOURS)], {**BUSY, "sm": 300, "tensor": 200}, gpu="slow", pod="slow")
    assert "straggler" not in rules(job(*gpus(3, [(600, HOURS)], BUSY, per_pod=False), apart, kind="Deployment"))


def test_idle_notebooks_and_idle_services() -> None:
    third = device([(0, 140), (600, 52)], {"sm": 150, "engine": 200, "dram": 50, "tensor": 10})
    found = one_rule(job(third, kind="Notebook"), "idle")
    assert "culled" in found.action and found.saving.gpu_s == HOURS * 3600 * 729 // 1000
    assert rules(job(third, kind="Deployment")) == []
    assert rules(job(third, name="jupyter-ada", kind="StatefulSet")) == ["idle"]
    nothing = device([(0, 24)], {"sm": 0, "engine": 0, "dram": 0})
    assert "scale it to zero" in one_rule(job(nothing, kind="Deployment"), "idle").action
    assert rules(job(device([(0, 23)], {"sm": 0}), kind="Deployment")) == []
    # A service that is used 3 % does serve: it is small, not idle.
    assert rules(job(device([(30, HOURS)]), kind="Deployment")) == ["mig"]


def test_data_bandwidth_and_links_come_before_sizes() -> None:
    io = one_rule(job(device([(150, HOURS)], IO)), "io-bound")
    assert "not a smaller GPU" in io.action and io.change == SizeChange("cpu", 2) and io.saving.gpu_s == 0
    memory = one_rule(job(device([(400, HOURS)], MEMORY), models=[A100]), "memory-bound")
    assert "none that is known" in memory.action and memory.change is None
    better = one_rule(job(device([(400, HOURS)], MEMORY, model=A100), models=[H100, "NVIDIA-H200"]), "memory-bound")
    assert "H100-SXM5" in better.action
    links = one_rule(job(*gpus(4, [(100, HOURS // 2), (500, HOURS // 2)], SWINGS)), "communication-bound")
    assert links.change == SizeChange("gpus", 2)
    for kind, peak in (("Job", 950), ("", 600)):
        waits = job(*gpus(4, [(100, 96), (400, 86), (peak, 10)], SWINGS, peak_mib=60 * 1024), kind=kind)
        assert rules(waits) == ["communication-bound"]
    peaks = job(*gpus(4, [(100, 96), (400, 86), (950, 10)], SWINGS, peak_mib=60 * 1024), kind="")
    assert rules(peaks) == []
    over_pods = one_rule(job(*gpus(4, [(100, 96), (500, 96)], SWINGS, per_pod=False)), "communication-bound")
    assert over_pods.change is None


def test_gaps_between_epochs() -> None:
    gaps = device([(0, 30), (700, HOURS - 30)], BUSY, gap_ms=30 * HOUR_MS)
    found = one_rule(job(gaps), "epoch-gaps")
    assert found.saving.gpu_s == HOURS * 3600 * 156 // 1000 and "not a smaller GPU" in found.action
    assert rules(job(gaps, kind="Deployment")) == []


@pytest.mark.parametrize(
    ("use", "peak_gib", "resource"),
    [(90, 8, "nvidia.com/mig-1g.10gb"), (110, 8, "nvidia.com/mig-2g.20gb"), (90, 9, "nvidia.com/mig-1g.20gb"),
     (90, 18, "nvidia.com/mig-3g.40gb"), (380, 8, "nvidia.com/mig-3g.40gb")],
)  # fmt: skip
def test_the_smallest_mig_profile_that_holds_p99_and_memory(use: int, peak_gib: int, resource: str) -> None:
    seen = job(device([(use, HOURS)], peak_mib=peak_gib * 1024), kind="Deployment")
    assert one_rule(seen, "mig").change == SizeChange("mig", resource=resource)


def test_mig_is_not_for_gpus_that_work_together_nor_for_high_peaks() -> None:
    assert "mig" not in rules(job(*gpus(2, [(90, HOURS)], per_pod=False), kind="Job"))
    assert rules(job(*gpus(2, [(90, HOURS)], per_pod=False), kind="Deployment")) == ["mig"]
    # The p95 is low, but users wait for the peaks.
    assert rules(job(device([(90, HOURS - 4), (900, 4)]), kind="Deployment")) == []
    assert rules(job(device([(90, HOURS)], peak_mib=40 * 1024), kind="Deployment")) != ["mig"]
    assert rules(job(device([(410, HOURS)], peak_mib=40 * 1024), kind="Deployment")) == []


def test_fewer_gpus_hold_load_and_memory() -> None:
    found = one_rule(job(*gpus(8, [(160, HOURS)], peak_mib=8 * 1024)), "fewer-gpus")
    assert found.change == SizeChange("gpus", 2) and found.saving.gpu_s == 6 * HOURS * 3600
    assert one_rule(job(*gpus(8, [(160, HOURS)], peak_mib=20 * 1024)), "fewer-gpus").change == SizeChange("gpus", 4)
    assert rules(job(*gpus(8, [(160, HOURS)], peak_mib=40 * 1024))) == []
    assert rules(job(*gpus(8, [(420, HOURS)]))) == []


def test_a_smaller_model_of_the_cluster_in_money() -> None:
    prices = {
        "H100-SXM5": HourPrice(6_000_000, "USD", "2026-07-20"),
        "A100-SXM4-80GB": HourPrice(2_000_000, "USD", "2026-07-01"),
    }
    market = Market(prices.get)
    seen = job(*gpus(2, [(200, HOURS)], peak_mib=60 * 1024), models=[A100, L4, T4], market=market)
    assert rules(job(*gpus(2, [(200, HOURS)], peak_mib=60 * 1024))) == []
    (found,) = advice_for(seen).advice
    assert found.rule == "smaller-gpu" and "A100-SXM4-80GB" in found.action
    saving = found.saving
    assert (saving.gpu_s, saving.cost_micro) == (0, 2 * HOURS * 4_000_000)
    assert (saving.currency, saving.price_date) == ("USD", "2026-07-01")
    # Prices in two currencies are not subtracted.
    prices["A100-SXM4-80GB"] = HourPrice(2_000_000, "EUR", "2026-07-01")
    assert advice_for(seen).advice[0].saving.cost_micro is None


def test_money_is_gpu_hours_times_the_price_with_its_date() -> None:
    market = Market(lambda model: HourPrice(2_500_000, "USD", "2026-07-20"))
    (found,) = advice_for(job(device([(60, HOURS)]), kind="Deployment", market=market)).advice
    assert found.saving.cost_micro == found.saving.gpu_s * 2_500_000 // 3600 and found.saving.price_date == "2026-07-20"
    assert advice_for(job(device([(60, HOURS)]), kind="Deployment")).advice[0].saving.cost_micro is None
    # Where no time is saved there is no price of it.
    hung = job(*gpus(8, [(600, 10)], BUSY, hung_ms=3 * HOUR_MS), market=market)
    assert advice_for(hung).advice[0].saving.cost_micro is None


def test_sharing_is_for_services_whose_memory_fits_together() -> None:
    small = device([(200, HOURS)], model=T4, peak_mib=5 * 1024)
    found = one_rule(job(small, kind="Deployment"), "share")
    assert (
        found.change == SizeChange("share", 5689, "nvidia.com/gpu.shared") and found.saving.gpu_s == HOURS * 3600 // 2
    )
    assert rules(job(small, kind="Job")) == []
    assert rules(job(device([(200, HOURS)], model=T4, peak_mib=7 * 1024), kind="Deployment")) == []
    assert rules(job(device([(410, HOURS)], model=T4, peak_mib=1024), kind="Deployment")) == []


def test_lack_of_memory() -> None:
    for message in (
        "torch.OutOfMemoryError: CUDA out of memory. Tried ...", "RuntimeError: CUDA out of memory. Tried ...",
        "CUDA error: out of memory", "CUDA_ERROR_OUT_OF_MEMORY",
    ):  # fmt: skip
        assert rules(job(device([(90, HOURS)]), messages=(message,))) == ["out-of-memory"], message
    assert rules(job(device([(90, HOURS)]), messages=("OOMKilled",))) == ["mig"]


def test_spot_is_advised_beside_another_rule() -> None:
    seen = job(device([(90, HOURS)]), interrupted=3, spot_models={H100})
    assert rules(seen) == ["mig", "spot"]
    assert rules(job(device([(90, HOURS)]), interrupted=3, spot_models={A100})) == ["mig"]
    assert rules(job(device([(90, HOURS)]), interrupted=3, spot=True, spot_models={H100})) == ["mig"]
    assert rules(job(device([(90, HOURS)]), spot_models={H100}, kind="Deployment")) == ["mig"]
    assert rules(job(device([(90, HOURS)]))) == ["mig"]


def test_work_that_is_not_saved_is_not_for_spot() -> None:
    """What shows that it is saved, one by one."""
    assert rules(job(device([(700, HOURS)], BUSY), spot_models={H100})) == ["checkpoints"]
    declared = one_rule(
        job(device([(700, HOURS)], BUSY), spot_models={H100}, pod={"checkpoint_interval_ms": 1_800_000}), "spot"
    )
    assert declared.cause == "it declares to save its work every 30 min" and declared.saving.cost_micro is None
    runs = [device([(700, 1)], BUSY, run=run, pod=f"p{run}", held_ms=HOUR_MS - 1) for run in range(20)]
    assert rules(job(*runs, spot_models={H100}, pod={"ended_ms": 1})) == ["spot"]
    longer = device([(700, 1)], BUSY, run=20, pod="p20", held_ms=HOUR_MS)
    assert rules(job(*runs, longer, spot_models={H100}, pod={"ended_ms": 1})) == ["checkpoints"]
    # It may still run for days.
    assert rules(job(*runs, spot_models={H100})) == ["checkpoints"]


def cents_of(cents: int) -> HourPrice:
    return HourPrice(cents * 10_000, "USD", "2026-11-01")


def place(node: str = "n", **more: Any) -> GpuSpan:
    return GpuSpan("g", node, 0, more.pop("gpus", 8), H100, "healthy", 0, **more)


def prices(now: int, spot: int | None) -> Market:
    """A GPU of a node in cents, and on spot."""

    def of(span: GpuSpan) -> HourPrice | None:
        cents = spot if span.spot else now
        return cents_of(cents) if cents is not None else None

    return Market(place=of)


def test_spot_in_money_has_the_interruptions_in_it() -> None:
    saves = {"checkpoint_interval_ms": 3_600_000}
    busy = device([(700, HOURS)], BUSY, peak_mib=60 * 1024, place=place())
    found = one_rule(job(busy, market=prices(500, 200), pod=saves), "spot")
    # One hour of work and two minutes to save; each eight hours half of that anew, and ten minutes to restart.
    slowdown = Interrupted(120, 600, 8 * 3600).slowdown(3600)
    assert 1.1 < slowdown < 1.15
    assert found.saving.cost_micro == HOURS * (5_000_000 - round(2_000_000 * slowdown))
    assert (found.saving.currency, found.saving.price_date) == ("USD", "2026-11-01")
    assert "takes 113 % of its time if a node is interrupted every 8.0 h (assumed)" in found.action
    # A start that takes longer is a restart that does.
    slow = job(busy, market=prices(500, 200), pod={**saves, "bound_ms": 1, "started_ms": 3_600_001})
    slowdown = Interrupted(120, 3600, 8 * 3600).slowdown(3600)
    assert one_rule(slow, "spot").saving.cost_micro == HOURS * (5_000_000 - round(2_000_000 * slowdown))
    # It needs no spot nodes in the cluster, but a price at which it pays, with the interruptions.
    for spot, expected in ((390, ["spot"]), (405, []), (500, []), (None, [])):
        assert rules(job(busy, market=prices(500, spot), pod=saves)) == expected
    assert rules(job(busy, market=prices(500, 500), spot_models={H100}, pod=saves)) == []
    assert "an hour of useful work 2.24 USD in place of 5.00 USD (prices of 2026-11-01)" in one_rule(
        job(busy, market=prices(500, 200)), "checkpoints"
    ).cause  # fmt: skip


def test_on_more_nodes_interruptions_come_more_often() -> None:
    saves = {"checkpoint_interval_ms": 3_600_000}
    over = [
        device([(700, HOURS)], BUSY, gpu=f"g{i}", pod=f"p{i}", place=place(f"n{i}", gpus=1)) for i in range(16)
    ]  # fmt: skip
    assert rules(job(*over[:2], market=prices(500, 300), pod=saves)) == ["spot"]
    assert rules(job(*over, market=prices(500, 300), pod=saves)) == []


EXCHANGE = {**QUIET, "sm": 350, "pcie_tx": 400_000_000, "pcie_rx": 500_000_000}


def spread(*nodes: str, activity: dict[str, int] = EXCHANGE, **more: Any) -> JobSeen:
    """A job with a GPU in each of these nodes, of eight GPUs."""
    found = [
        device([(300, HOURS)], activity, gpu=f"g{i}", pod=f"p{i}", place=place(node, **more))
        for i, node in enumerate(nodes)
    ]
    return job(*found)


def test_gpus_that_exchange_and_are_apart_are_to_be_in_one_place() -> None:
    apart = one_rule(spread("a", "b", "a", "b"), "link")
    assert apart.change == SizeChange("annotate", key="dovetail.dev/topology-required", value="host")
    assert "its 4 GPUs exchange much, and were in 2 nodes of 8 GPUs" in apart.cause
    # Together already: fewer GPUs, as before. With room for one in a node: no node has them all.
    assert rules(spread("a", "a", "a", "a")) == ["communication-bound"]
    assert rules(spread("a", "b", gpus=1)) == ["communication-bound"]
    larger = one_rule(spread("a", "b", "c", "d", gpus=2), "link")
    assert larger.change is None and "pods with 2 GPUs each" in larger.action
    zones = job(*[
        device([(300, HOURS)], EXCHANGE, gpu=f"g{i}", pod=f"p{i}", place=place(f"n{i}", gpus=1, zone=f"z{i}"))
        for i in range(2)
    ])  # fmt: skip
    assert one_rule(zones, "link").change == SizeChange("annotate", key="dovetail.dev/topology-required", value="zone")
    # Of a node that is not known nothing is advised.
    assert rules(spread("a", "")) == ["communication-bound"]


def test_data_that_is_only_received_is_no_exchange() -> None:
    loads = {**EXCHANGE, "sm": 150, "pcie_tx": 100_000_000, "pcie_rx": 3_000_000_000}
    assert rules(spread("a", "b", activity=loads)) == ["io-bound"]
    assert "link" not in rules(spread("a", "b", activity={**EXCHANGE, "sm": 520}))
    # A service waits for requests.
    served = [device([(300, HOURS)], EXCHANGE, gpu=f"g{i}", pod=f"p{i}", place=place(f"n{i}")) for i in range(2)]
    assert rules(job(*served, kind="LeaderWorkerSet")) == ["fewer-gpus"]


def test_gpus_of_a_pod_that_nvlink_does_not_connect() -> None:
    quiet = {**EXCHANGE, "nvlink_tx": 1_000_000, "nvlink_rx": 1_000_000}

    def pair(model: str, activity: dict[str, int] = quiet, models: tuple[str, ...] = ()) -> JobSeen:
        return job(*gpus(2, [(300, HOURS)], activity, model=model, peak_mib=40 * 1024), models=models)

    bridged = one_rule(pair("NVIDIA-A100-80GB-PCIe"), "link")
    assert bridged.change == SizeChange("annotate", key="dovetail.dev/nvlink", value="required")
    switched = one_rule(pair(H100), "link")
    assert switched.change is None and "NCCL_P2P_DISABLE" in switched.action
    assert rules(pair(H100, {**EXCHANGE, "nvlink_tx": 100_000_000})) == ["communication-bound"]
    # Whether NVLink carries anything is not known.
    assert rules(pair(H100, EXCHANGE)) == ["communication-bound"]
    none = one_rule(pair("NVIDIA-L40S", models=(H100, "NVIDIA-A100-80GB-PCIe", T4)), "link")
    assert none.change == SizeChange("select", key="nvidia.com/gpu.product", value=H100)
    assert rules(pair("NVIDIA-L40S", models=(T4,))) == ["communication-bound"]
    # Of cards with bridges not every pair has one.
    bridges = one_rule(pair("NVIDIA-L40S", models=("NVIDIA-A100-80GB-PCIe", "NVIDIA-H200")), "link")
    assert bridges.change is not None and bridges.change.value == "NVIDIA-H200"


SMALL_KERNELS = {"sm": 200, "tensor": 50, "dram": 150, "engine": 700, "utilization": 800}


def test_few_cpus_for_each_gpu() -> None:
    def asked(cpu_milli: int, number: int = 1) -> JobSeen:
        found = gpus(number, [(200, HOURS)], SMALL_KERNELS, peak_mib=60 * 1024)
        return job(*found, pod={"cpu_milli": cpu_milli})

    found = one_rule(asked(2000), "few-cpus")
    assert found.change == SizeChange("cpu", 4) and "requests 2 CPUs for each GPU" in found.cause
    assert one_rule(asked(6000, 2), "few-cpus").change == SizeChange("cpu", 3)
    assert rules(asked(4000)) == [] and rules(asked(0)) == []


def hosted(cpu_milli: int, memory_mib: int, hours: int = HOURS, **more: object) -> DeviceUse:
    """A GPU whose pod used so much of its node for each of its GPUs, which is known of so many hours."""
    found = device(**more)  # type: ignore[arg-type]
    return replace(found, host_cpu_milli=cpu_milli, host_memory_mib=memory_mib, host_ms=hours * HOUR_MS)


def test_cpus_that_are_not_used_are_no_reason_to_ask_for_more() -> None:
    def asked(used_milli: int, activity: dict[str, int], hours: int = HOURS) -> JobSeen:
        one = hosted(used_milli, 4096, hours, use=[(200, HOURS)], activity=activity, peak_mib=60 * 1024)
        return job(one, pod={"cpu_milli": 3000})

    assert rules(asked(1400, SMALL_KERNELS)) == [] and rules(asked(1600, SMALL_KERNELS)) == ["few-cpus"]
    assert "requests 3 CPUs for each GPU, and used 1.6 in its" in one_rule(asked(1600, SMALL_KERNELS), "few-cpus").cause
    waits = one_rule(asked(1400, IO), "io-bound")
    assert waits.change is None and "not more CPUs, which it has" in waits.action
    assert one_rule(asked(1600, IO), "io-bound").change == SizeChange("cpu", 2)
    # Of a few hours nothing follows.
    assert rules(asked(1400, SMALL_KERNELS, HOURS // 3)) == ["few-cpus"]


def test_requests_of_the_node_that_are_not_used() -> None:
    def asked(cpu_milli: int, memory_mib: int, hours: int = HOURS) -> JobSeen:
        some = [
            hosted(3000, 6000, hours, use=[(700, HOURS)], activity=BUSY, gpu=f"g{i}", peak_mib=60 * 1024)
            for i in range(2)
        ]
        return job(*some, pod={"cpu_milli": cpu_milli, "memory_mib": memory_mib})

    # 2 x 3 CPUs and 15 % more are 7; 2 x 6000 MiB and 15 % more are 14 GiB.
    both = one_rule(asked(14_000, 28 * 1024), "host-requests")
    seen = advice_for(asked(14_000, 28 * 1024))
    assert (seen.host_cpu_milli, seen.host_memory_mib) == (3000, 6000)
    assert both.change == SizeChange("host", 7000, value="14Gi") and both.saving.gpu_s == 0
    assert "requests 14 CPUs and 28.0 GiB of its node, and used 6 CPUs on average in the busiest hour" in both.cause
    assert one_rule(asked(13_999, 28 * 1024), "host-requests").change == SizeChange("host", 0, value="14Gi")
    assert one_rule(asked(14_000, 0), "host-requests").change == SizeChange("host", 7000)
    assert rules(asked(13_999, 27 * 1024)) == rules(asked(64_000, 0, HOURS // 3)) == rules(asked(0, 0)) == []


def test_use_beyond_the_requests_counts_for_another_machine() -> None:
    at, market = place(gpus=1, instance_type="t64"), offers(t64=340, t16=105, t8=90)

    def found(used_milli: int, memory_mib: int, asked: dict[str, int] | None = None) -> str:
        one = hosted(used_milli, memory_mib, use=[(700, HOURS)], activity=BUSY, place=at)
        advised = advice_for(job(one, market=market, pod=asked)).advice
        return "".join(one.change.value for one in advised if one.rule == "instance" and one.change is not None)

    assert found(5000, 20_000) == "t8"
    assert found(7000, 20_000) == found(5000, 27_000) == found(2000, 20_000, {"cpu_milli": 8000}) == "t16"


def test_prices_in_two_currencies_are_not_compared() -> None:
    dear, cheap = cents_of(500), cents_of(100)
    assert dear.above(cheap, 800) and not dear.above(cheap, 801)
    assert not dear.above(HourPrice(1, "EUR", "2026-11-01"), 0)


def offers(**price_of: int) -> Market:
    """Instance types with one GPU each and so many CPUs, at so many cents for each GPU: `t8=100`."""
    table = [
        InstanceOffer(name, 1, int(name[1:]) * 1000, int(name[1:]) * 4096, cents_of(cents))
        for name, cents in price_of.items()
    ]
    return Market(offers=lambda span: table)


def test_the_same_gpus_on_another_instance_type() -> None:
    at = place(gpus=1, instance_type="t64")
    busy = device([(700, HOURS)], BUSY, place=at)
    market = offers(t64=340, t16=105, t8=90, t4=80, t2=70)
    found = one_rule(job(busy, market=market, pod={"cpu_milli": 7000, "memory_mib": 20_000}), "instance")
    assert found.change == SizeChange("select", key="node.kubernetes.io/instance-type", value="t8")
    assert found.saving.cost_micro == HOURS * 2_500_000 and found.saving.price_date == "2026-11-01"
    # CPUs of which the system keeps a tenth; memory; and a pod that requests nothing may use all that it has.
    for asked, expected in (
        ({"cpu_milli": 7300, "memory_mib": 20_000}, "t16"), ({"cpu_milli": 1000, "memory_mib": 30_000}, "t16"),
        ({"cpu_milli": 1000}, ""),
    ):  # fmt: skip
        seen = job(busy, market=market, pod=asked)
        assert [one.change.value for one in advice_for(seen).advice if one.change] == [expected] * bool(expected)
    fits = {"cpu_milli": 7000, "memory_mib": 20_000}
    assert rules(job(busy, market=offers(t64=99, t8=90), pod=fits)) == []
    assert rules(job(busy, market=offers(t8=90), pod=fits)) == []
    spot = device([(700, HOURS)], BUSY, place=place(gpus=1, instance_type="t64", spot=True))
    assert rules(job(spot, market=market, pod=fits)) == []


def test_gpus_that_work_together_stay_in_one_machine() -> None:
    def machine(name: str, number: int, cents: int) -> InstanceOffer:
        return InstanceOffer(name, number, number * 8000, number * 65_536, cents_of(cents))

    table = [machine("x8", 8, 500), machine("x1", 1, 200), machine("x4", 4, 300), machine("x6", 6, 100)]
    found = gpus(4, [(700, HOURS)], BUSY, place=place(instance_type="x8"))
    fits = {"cpu_milli": 8000, "memory_mib": 65_536}
    seen = job(*found, market=Market(offers=lambda span: table), pod=fits)
    assert one_rule(seen, "instance").change.value == "x4"
    apart = [device([(700, HOURS)], BUSY, gpu=f"g{i}", pod=f"p{i}", place=place(instance_type="x8")) for i in range(4)]
    fits = {"cpu_milli": 2000, "memory_mib": 16_384}
    seen = job(*apart, kind="Deployment", market=Market(offers=lambda span: table), pod=fits)
    assert one_rule(seen, "instance").change.value == "x6"
    # Pods that work together are not spread over machines with one GPU each, as replicas may be.
    for kind, expected in (("Job", "x4"), ("Deployment", "x1")):
        seen = job(*apart, kind=kind, market=Market(offers=lambda span: table[:3]), pod=fits)
        assert one_rule(seen, "instance").change.value == expected


def test_a_machine_with_more_cpus_for_what_waits_for_data() -> None:
    at = place(gpus=1, instance_type="t8")
    seen = job(device([(150, HOURS)], IO, place=at), market=offers(t8=100, t16=120, t64=300), pod={"cpu_milli": 6000})
    assert "its t8 has 8 CPUs for each GPU, t16 has 16, for 1.20 USD in place of 1.00 USD" in one_rule(
        seen, "io-bound"
    ).action  # fmt: skip
    seen = job(device([(150, HOURS)], IO, place=at), market=offers(t8=100, t16=120), pod={"cpu_milli": 3000})
    assert "has 8 CPUs" not in one_rule(seen, "io-bound").action


def test_mixed_models_and_unknown_models_get_no_size() -> None:
    assert SMALLER.isdisjoint(rules(job(device(), device(model=A100, gpu="g1", pod="p1"), kind="Deployment")))
    assert SMALLER.isdisjoint(rules(job(device(model="Vendor-X"), kind="Deployment")))


def test_nothing_measured() -> None:
    found: JobAdvice = advice_for(job(device([], {})))
    assert (found.verdict, found.coverage_milli, found.p95_milli) == ("not enough data", 0, 0)
    assert found.missing.startswith("0 % of the time was measured")


@pytest.mark.parametrize("kind", ["share", "instance"])
def test_parts_of_gpus_are_right_where_no_smaller_one_is_enough(kind: HoldKind) -> None:
    for use in (520, 480):
        full = job(device([(use, HOURS)], {"utilization": use}, kind=kind), kind="Deployment")
        assert (advice_for(full).verdict, advice_for(full).missing) == ("right-sized", "")
    unknown = advice_for(job(device([(480, HOURS)], {"utilization": 480}, kind="claimed"), kind="Deployment"))
    assert (unknown.verdict, unknown.advice) == ("not enough data", ())
    assert unknown.missing.startswith("its p99 of real use is at most 50 % of what it holds; it is not known which")
    assert rules(job(device([(0, HOURS)], {"utilization": 0}, kind=kind), kind="Deployment")) == ["idle"]
    whole = advice_for(job(device([(410, HOURS)], peak_mib=40 * 1024), kind="Deployment"))
    assert (whole.verdict, whole.missing) == ("right-sized", "")


def test_what_the_use_of_a_shared_gpu_needs() -> None:
    needs = "needs the agent's function `processes`, and no MPS"
    assert needs in advice_for(job(device([(480, 12)], kind="share"))).missing
    assert needs not in advice_for(job(device([(480, 12)], kind="instance"))).missing


def test_names_of_rules_are_unique_and_each_states_risk_source_and_falsifier() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert all((rule.title, rule.when, rule.risk, rule.falsifier, rule.source))
