# SPDX-License-Identifier: Apache-2.0
"""When what is advised: each rule at its edges, and what is never advised."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.advice.sizing.advise import advice_for
from dovetail.advice.sizing.rule import HourPrice, JobAdvice, SizeChange
from dovetail.advice.sizing.rules import RULES
from dovetail.advice.sizing.seen import JobSeen
from dovetail.history.records import HOUR_MS
from tests.advice.sizing.jobs import A100, BUSY, H100, HOURS, L4, QUIET, T4, device, gpus, job

IO = {"sm": 150, "tensor": 50, "dram": 150, "engine": 400, "utilization": 500, "pcie_rx": 2_000_000_000}
MEMORY = {"sm": 400, "tensor": 50, "dram": 700, "engine": 900, "utilization": 950, "memory_copy": 600}
SMALLER = {"unused-gpus", "mig", "fewer-gpus", "smaller-gpu", "share"}


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


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 40)), min_size=1, max_size=8),
    st.sampled_from([H100, A100, L4, T4, "unknown"]), st.integers(1, 90_000), st.integers(1, 4),
)  # fmt: skip
def test_a_service_with_a_high_p95_keeps_its_size(
    use: list[tuple[int, int]], model: str, peak_mib: int, number: int
) -> None:
    used = [(value, hours) for value, hours in use] + [(850, 1 + sum(hours for _, hours in use) // 10)]
    for per_pod in (True, False):
        seen = job(*gpus(number, used, model=model, peak_mib=peak_mib, per_pod=per_pod), kind="Deployment",
                   models=[H100, A100, L4, T4])  # fmt: skip
        assert seen.p95 >= 800
        assert SMALLER.isdisjoint(rules(seen))


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
    swings = {**QUIET, "sm": 350, "nvlink_tx": 20_000_000_000}
    links = one_rule(job(*gpus(4, [(100, HOURS // 2), (500, HOURS // 2)], swings)), "communication-bound")
    assert links.change == SizeChange("gpus", 2)
    over_pods = one_rule(job(*gpus(4, [(100, 96), (500, 96)], swings, per_pod=False)), "communication-bound")
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
    seen = job(*gpus(2, [(200, HOURS)], peak_mib=60 * 1024), models=[A100, L4, T4])
    assert rules(job(*gpus(2, [(200, HOURS)], peak_mib=60 * 1024))) == []
    (found,) = advice_for(seen, prices.get).advice
    assert found.rule == "smaller-gpu" and "A100-SXM4-80GB" in found.action
    saving = found.saving
    assert (saving.gpu_s, saving.cost_micro) == (0, 2 * HOURS * 4_000_000)
    assert (saving.currency, saving.price_date) == ("USD", "2026-07-01")
    # Prices in two currencies are not subtracted.
    prices["A100-SXM4-80GB"] = HourPrice(2_000_000, "EUR", "2026-07-01")
    assert advice_for(seen, prices.get).advice[0].saving.cost_micro is None


def test_money_is_gpu_hours_times_the_price_with_its_date() -> None:
    seen = job(device([(60, HOURS)]), kind="Deployment")
    (found,) = advice_for(seen, lambda model: HourPrice(2_500_000, "USD", "2026-07-20")).advice
    assert found.saving.cost_micro == found.saving.gpu_s * 2_500_000 // 3600 and found.saving.price_date == "2026-07-20"
    assert advice_for(seen, lambda model: None).advice[0].saving.cost_micro is None


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
    failed = job(device([(90, HOURS)]), messages=("torch.OutOfMemoryError: CUDA out of memory. Tried ...",))
    assert rules(failed) == ["out-of-memory"]
    assert rules(job(device([(90, HOURS)]), messages=("OOMKilled",))) == ["mig"]


def test_spot_is_advised_beside_another_rule() -> None:
    seen = job(device([(90, HOURS)]), interrupted=3, spot_models={H100})
    assert rules(seen) == ["mig", "spot"]
    assert rules(job(device([(90, HOURS)]), interrupted=3, spot_models={A100})) == ["mig"]
    assert rules(job(device([(90, HOURS)]), interrupted=3, spot=True, spot_models={H100})) == ["mig"]
    assert rules(job(device([(90, HOURS)]), spot_models={H100})) == ["mig"]


def test_mixed_models_and_unknown_models_get_no_size() -> None:
    assert SMALLER.isdisjoint(rules(job(device(), device(model=A100, gpu="g1", pod="p1"), kind="Deployment")))
    assert SMALLER.isdisjoint(rules(job(device(model="Vendor-X"), kind="Deployment")))


def test_nothing_measured() -> None:
    found: JobAdvice = advice_for(job(device([], {})))
    assert (found.verdict, found.coverage_milli, found.p95_milli) == ("not enough data", 0, 0)
    assert found.missing.startswith("0 % of the time was measured")


def test_names_of_rules_are_unique_and_each_states_risk_source_and_falsifier() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert all((rule.title, rule.when, rule.risk, rule.falsifier, rule.source))
