# SPDX-License-Identifier: Apache-2.0
"""Plans: they hold what is wanted, each layout is planned or rejected with a reason, and the fewest GPUs are shown."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dovetail.advice import catalog, gpus
from dovetail.advice.config import read
from dovetail.advice.layout import PlanError
from dovetail.advice.prices import built_in
from dovetail.advice.serve.engines import BY_NAME
from dovetail.advice.serve.offers import of_list, priced
from dovetail.advice.serve.plan import plan
from dovetail.advice.serve.request_lengths import fixed
from dovetail.advice.serve.types import AGGREGATED, DISAGGREGATED, MODES, GpuOffer, ServePlan, ServeQuestion

TRTLLM = ("tensorrt-llm",)


def offer(model: str, nodes: int, each: int, price: int | None = None) -> GpuOffer:
    found = gpus.named(model)
    assert found is not None
    return GpuOffer(found, nodes, each, price)


def question(model: str = "llama-3.1-70b", **other: object) -> ServeQuestion:
    entry = catalog.find(model)
    assert entry is not None
    known = read(entry.config)
    asked = ServeQuestion(
        known, entry.name, 4.0, fixed(2000, 300), 1000, 50_000, (offer("H100-SXM5", 4, 8),), tuple(BY_NAME), MODES,
        known.weights, "bf16",
    )  # fmt: skip
    return replace(asked, **other)


def combinations(found: ServePlan) -> set[tuple[str, str]]:
    """The engines and modes that are planned or rejected."""
    return {(one.engine, one.mode) for one in found.options} | {(one.engine, one.mode) for one in found.rejected}


@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b", "gpt-oss-120b", "deepseek-v3"])
@pytest.mark.parametrize("rate", [0.01, 3.0, 40.0])
@pytest.mark.slow
def test_a_plan_holds_what_is_wanted(model: str, rate: float) -> None:
    asked = question(model, rate=rate, offers=(offer("H200-SXM5", 16, 8, 5_000_000),))
    found = plan(asked)
    assert combinations(found) == {(engine, mode) for engine in BY_NAME for mode in MODES}
    assert all(one.reason for one in found.rejected)
    for one in found.options:
        assert one.ttft_ms <= asked.ttft_ms and one.tpot_us <= asked.tpot_us
        assert one.tokens_per_s >= rate * 300 * 0.99
        assert one.gpus == sum(role.replicas * role.gpus_each for role in one.roles) <= 128
        assert one.nodes <= 16
        assert [role.role for role in one.roles] == (["all"] if one.mode == AGGREGATED else ["prefill", "decode"])
        assert one.micro_usd_per_hour == one.gpus * 5_000_000
        for role in one.roles:
            assert role.gpus_each == role.layout.gpus
            assert role.running <= max(role.concurrency, 1) or role.role == "prefill"
    prices = [one.micro_usd_per_hour or 0 for one in found.options]
    assert prices == sorted(prices)


def test_looser_times_and_smaller_formats_need_no_more_gpus() -> None:
    strict = plan(question(tpot_us=15_000, rate=20.0, offers=(offer("H100-SXM5", 64, 8),), engines=TRTLLM))
    loose = plan(question(tpot_us=60_000, rate=20.0, offers=(offer("H100-SXM5", 64, 8),), engines=TRTLLM))
    fp8 = plan(question(rate=20.0, weights="fp8", offers=(offer("H100-SXM5", 64, 8),), engines=TRTLLM))
    by_mode = [{one.mode: one.gpus for one in found.options} for found in (strict, loose, fp8)]
    for mode in MODES:
        assert by_mode[1][mode] <= by_mode[0][mode]
        assert by_mode[2][mode] <= by_mode[1][mode]


def test_cached_prefixes_save_gpus_where_the_router_knows_them() -> None:
    asked = question("llama-3.1-8b", rate=60.0, lengths=fixed(6000, 200), modes=(AGGREGATED,),
                     offers=(offer("H100-SXM5", 32, 8),), engines=("vllm", "llm-d"))  # fmt: skip

    def needed(reuse: int) -> dict[str, int]:
        return {one.engine: one.gpus for one in plan(replace(asked, reuse_percent=reuse)).options}

    without, some = needed(0), needed(80)
    assert without["vllm"] == without["llm-d"]
    assert some["llm-d"] < some["vllm"] <= without["vllm"]


def test_tensor_parallelism_that_does_not_divide_the_heads_names_the_nearest() -> None:
    with pytest.raises(PlanError, match=r"--tp 3 does not divide the 64 attention heads .*: 2 and 4$"):
        plan(question(tp=3))
    with pytest.raises(PlanError, match=r"nearest that do: 64$"):
        plan(question(tp=128))


def test_a_model_that_does_not_fit_names_what_holds_it() -> None:
    found = plan(question(offers=(offer("L4", 1, 4),)))
    assert found.options == ()
    assert found.nearest == "8 x L4 (TP8)"
    assert all("does not fit" in one.reason for one in found.rejected if one.layout)
    # No number of T4 within a pipeline of nodes holds it: another GPU does.
    found = plan(question("deepseek-v3", offers=(offer("T4", 1, 1),), engines=("vllm",)))
    assert found.options == ()
    assert found.nearest
    assert plan(question()).nearest == ""


def test_a_model_that_fits_and_is_too_slow_is_not_reported_not_to_fit() -> None:
    found = plan(question(tpot_us=100))
    assert (found.options, found.nearest) == ((), "")
    assert any("a sequence alone takes" in one.reason for one in found.rejected)
    found = plan(question(ttft_ms=1))
    assert any("a prompt alone takes" in one.reason for one in found.rejected)


def test_room_for_the_longest_request() -> None:
    short = replace(fixed(1000, 100), longest=1100)
    for longest, fits in ((1100, True), (130_000, False)):
        asked = question("llama-3.1-70b", weights="fp8", lengths=replace(short, longest=longest), tp=1, pp=1,
                         offers=(offer("H100-SXM5", 32, 1),), modes=(AGGREGATED,), tpot_us=200_000)  # fmt: skip
        assert bool(plan(asked).options) is fits


def test_a_slower_network_delays_the_first_token_of_prefill_apart() -> None:
    asked = question(modes=(DISAGGREGATED,), engines=("llm-d",))
    fast, slow = plan(asked), plan(replace(asked, transfer_mb_per_s=5000))
    # 2,000 tokens of 320 KiB, of which each rank sends its part: 131 ms at 5 GB/s for all of one rank.
    assert slow.options[0].ttft_ms - fast.options[0].ttft_ms >= 2000 * 320 * 1024 / 8 / 5e9 * 1000 * 0.9 - 1


def test_stages_are_only_for_what_a_node_does_not_hold() -> None:
    small = plan(question("llama-3.1-8b"))
    assert {role.layout.pp for one in small.options for role in one.roles} == {1}
    assert not any("PP" in one.layout for one in small.rejected)
    large = plan(question("llama-3.1-405b", weights="bf16", rate=1.0, tpot_us=100_000, ttft_ms=4000))
    assert {role.layout.pp for one in large.options for role in one.roles} == {2}
    assert {role.nodes_each for one in large.options for role in one.roles} == {2}


def test_the_limit_of_price_and_of_nodes() -> None:
    dear = plan(question(price_limit=1_000_000, offers=(offer("H100-SXM5", 4, 8, 3_000_000),)))
    assert dear.options == ()
    assert any("dollars per hour, and the limit is 1.00" in one.reason for one in dear.rejected)
    unknown = plan(question(price_limit=1_000_000))
    assert any("the price of H100-SXM5 is not known" in one.reason for one in unknown.rejected)
    few = plan(question(rate=500.0))
    assert any("and 4 are at hand" in one.reason for one in few.rejected)


def test_engines_lack_kernels() -> None:
    found = plan(question(weights="nvfp4", modes=(AGGREGATED,)))
    assert "llm-d is vLLM with one" in plan(question(modes=(DISAGGREGATED,), engines=("vllm",))).rejected[0].reason
    reasons = {one.engine: one.reason for one in found.rejected if not one.layout}
    assert set(reasons) == {"tensorrt-llm"}
    assert "compute capability 10.0" in reasons["tensorrt-llm"]
    found = plan(question("bloom-7b1", engines=TRTLLM, modes=(AGGREGATED,)))
    assert "does not list the model family bloom" in found.rejected[0].reason
    found = plan(question(offers=(offer("RTX4090", 1, 8),), modes=(AGGREGATED,), engines=("vllm",)))
    assert any("the speed of RTX4090 is not known" in one.reason for one in found.rejected)


def test_the_choice_has_its_reason() -> None:
    found = plan(question())
    assert found.choice.startswith(found.options[0].engine)
    assert plan(question(engines=("vllm",))).choice == "vllm: no other engine has a plan"


def test_offers_of_a_price_list() -> None:
    listed = of_list(built_in())
    assert all(one.micro_usd_per_gpu_hour for one in listed)
    assert len({one.gpu.model for one in listed}) == len(listed)
    (mine,) = priced((offer("H100-SXM5", 2, 4),), built_in())
    assert (mine.nodes, mine.gpus_per_node) == (2, 4)
    assert mine.micro_usd_per_gpu_hour == next(
        one.micro_usd_per_gpu_hour for one in listed if one.gpu.model == "H100-SXM5"
    )
    (unknown,) = priced((offer("H20", 1, 8),), built_in())
    assert unknown.micro_usd_per_gpu_hour is None


def test_modes_that_are_asked_for() -> None:
    found = plan(question(modes=(DISAGGREGATED,), engines=("llm-d",)))
    assert combinations(found) == {("llm-d", DISAGGREGATED)}


def test_a_plan_holds_the_rate_however_high_it_is() -> None:
    rate, lengths = 1e6, fixed(10, 1000)
    found = plan(
        question("llama-3.1-8b", rate=rate, lengths=lengths, offers=(offer("L4", 1 << 30, 8),), tpot_us=60_000)
    )
    assert {option.mode for option in found.options} == set(MODES)
    assert all(option.tokens_per_s >= rate * lengths.output for option in found.options)


def test_blackwell_ultra_is_quicker_in_fp4_and_does_not_multiply_int8() -> None:
    one = {"modes": (AGGREGATED,), "engines": ("vllm",), "tp": 4, "rate": 2.0}
    older, newer = (plan(question(offers=(offer(name, 8, 8),), weights="nvfp4", **one)) for name in ("B200", "B300"))
    assert newer.options[0].tokens_per_s > older.options[0].tokens_per_s
    rejected = plan(question(offers=(offer("GB300", 8, 4),), weights="int8", **one))
    assert not rejected.options
    assert "GB300 multiplies INT8 at a fifteenth of its 16-bit rate: use fp8" in {
        one.reason for one in rejected.rejected
    }
    assert plan(question(offers=(offer("GB200", 8, 4),), weights="int8", **one)).options
