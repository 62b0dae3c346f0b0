# SPDX-License-Identifier: Apache-2.0
"""Which instances suit, in which order, and why others do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.advice.instances import InstanceRequest, rank
from dovetail.advice.interruptions import Interrupted
from dovetail.advice.price_table import PriceError
from dovetail.advice.prices import COLUMNS, CloudInstance, built_in, read

HEAD = ",".join(COLUMNS)
ROW = "acme,big.8x,H100-SXM5,8,80,96,1024,3200,EFA,1000,north,40,9,16,2026-01-31,a bill"
OFTEN = Interrupted(120, 600, 28_800)


def offered(**cells: str) -> CloudInstance:
    (one,) = read(f"{HEAD}\n{changed(**cells)}", "own.csv")
    return one


def changed(**cells: str) -> str:
    return ",".join((dict(zip(COLUMNS, ROW.split(","), strict=True)) | cells).values())


def test_dollars_per_useful_gpu_hour() -> None:
    (option,) = rank([offered()], InstanceRequest(12, nodes=2)).options
    assert (option.count, option.idle_gpus, option.slowdown) == (2, 4, 1)
    assert option.micro_usd_per_hour == 80_000_000
    assert option.micro_usd_per_useful == round(80_000_000 / 12)


def test_spot_pays_for_its_interruptions_of_any_instance() -> None:
    found = rank([offered()], InstanceRequest(16, nodes=2, interrupted=OFTEN)).options
    spot = next(option for option in found if option.spot)
    slowdown = Interrupted(120, 600, 14_400).best()
    assert [option.spot for option in found] == [True, False]
    assert spot.micro_usd_per_useful == round(32_000_000 * slowdown / 16)
    assert slowdown > Interrupted(120, 600, 28_800).best()


@pytest.mark.parametrize(
    ("wanted", "cells", "reason"),
    [
        (InstanceRequest(1, cloud="other"), {}, "is of acme, not other"),
        (InstanceRequest(1, region="south"), {}, "has its price in north, not south"),
        (InstanceRequest(1), {"gpu_count": "0.5"}, "has 0.5 of a GPU, and whole ones are needed"),
        (InstanceRequest(1, 90_000), {}, "81079 MiB usable per H100-SXM5, 90000 are needed"),
        (InstanceRequest(16), {}, "has 8 of the 16 GPUs that each instance needs"),
        (InstanceRequest(2, nvlink=True), {"gpu_model": "L4"}, "NVLink does not join 2 L4"),
        (
            InstanceRequest(2, nvlink=True),
            {"gpu_model": "X9"},
            "whether X9 has NVLink is not known; name the model in full",
        ),
        (
            InstanceRequest(2, nvlink=True),
            {"gpu_model": "H100-NVL"},
            "H100-NVL has NVLink only with a bridge between two cards",
        ),
        (InstanceRequest(1, rdma=True), {"rdma": ""}, "has no RDMA"),
        (InstanceRequest(8, cpu_milli_per_gpu=13_000), {}, "has 96 CPUs for 8 GPUs, 13 each needed"),
        (
            InstanceRequest(8, memory_mib_per_gpu=1 << 18),
            {},
            "has 1048576 MiB of host memory for 8 GPUs, 262144 each needed",
        ),
        (InstanceRequest(1), {"price_usd_h": ""}, "no price is known (table of 2026-01-31)"),
    ],
)
def test_the_losing_reason(wanted: InstanceRequest, cells: dict[str, str], reason: str) -> None:
    found = rank([offered(**cells)], wanted)
    assert not found.options
    (over,) = found.passed_over
    assert over.reason.startswith(reason)


def test_without_a_spot_price_only_spot_is_passed_over() -> None:
    found = rank([offered(spot_usd_h_median="", spot_usd_h_min="")], InstanceRequest(8, interrupted=OFTEN))
    assert [option.spot for option in found.options] == [False]
    assert [(over.spot, over.reason) for over in found.passed_over] == [
        (True, "no spot price is known (table of 2026-01-31)")
    ]


def test_what_is_never_finished_is_no_option() -> None:
    always = replace(OFTEN, mtbi_s=1.0)
    (over,) = rank([offered()], InstanceRequest(8, interrupted=always)).passed_over
    assert "nothing is ever finished" in over.reason


def test_the_memory_of_an_unknown_model_is_that_of_the_file() -> None:
    assert offered(gpu_model="X9").usable_mib == 80 * 10**9 // 2**20
    assert offered(gpu_model="NVIDIA H100 80GB HBM3").usable_mib == 81_079


@given(st.integers(1, 64), st.integers(1, 8), st.booleans(), st.integers(0, 200_000))
def test_every_instance_is_ranked_or_passed_over(gpus: int, nodes: int, nvlink: bool, memory_mib: int) -> None:
    instances = built_in()
    wanted = InstanceRequest(gpus, memory_mib, nvlink, nodes)
    found = rank(instances, wanted)
    assert len(found.options) + len(found.passed_over) == len(instances)
    costs = [option.micro_usd_per_useful for option in found.options]
    assert costs == sorted(costs)
    of = {(one.instance_type, one.region): one for one in instances}
    for option in found.options:
        one = of[option.instance_type, option.region]
        assert option.count * one.gpu_milli == 1000 * (gpus + option.idle_gpus)
        assert 0 <= 1000 * option.idle_gpus < one.gpu_milli
        assert option.count <= nodes and one.usable_mib >= memory_mib
    over = {(each.instance_type, each.region) for each in found.passed_over}
    for one in instances:
        holds = one.usable_mib >= memory_mib and one.gpu_milli % 1000 == 0 and one.gpu_milli * nodes >= 1000 * gpus
        if holds and not nvlink and one.price_micro_usd is not None:
            assert (one.instance_type, one.region) not in over


def test_every_price_that_is_built_in_has_date_and_source() -> None:
    assert all(one.price_date.startswith("2026-") and one.source for one in built_in())
    assert {one.gpu_model for one in built_in() if one.gpu is None} == {"T4G"}


@pytest.mark.parametrize(
    ("text", "where", "rule"),
    [
        ("", "own.csv:1, column cloud", "is missing"),
        (HEAD, "own.csv:1", "no instance follows"),
        (HEAD.replace("rdma", "price"), "own.csv:1, column 'price'", "is not known; expected are cloud"),
        (HEAD + ",rdma", "own.csv:1, column 'rdma'", "is there twice"),
        (f"{HEAD}\n{ROW},1", "own.csv:2", "has 17 cells, the first line names 16"),
        (f"{HEAD}\n\n{ROW}\n{ROW}", "own.csv:4, column instance_type", "acme big.8x north is in line 3 already"),
        (f'{HEAD}\n"a"b', "own.csv:2", "is not CSV"),
        *(
            (f"{HEAD}\n{changed(**{column: value})}", f"own.csv:2, column {column}", f"'{value}' is not {expected}")
            for column, value, expected in [
                ("cloud", "", "a name"),
                ("region", "", "a name"),
                ("source", "", "a name"),
                ("gpu_count", "0", "a number above 0"),
                ("gpu_count", "eight", "a number above 0"),
                ("gpu_memory_gb", "80 GB", "GB above 0"),
                ("host_memory_gib", "-1", "GiB above 0"),
                ("vcpus", "", "a number above 0"),
                ("network_gbit", "fast", "a number above 0"),
                ("price_usd_h", "$40", "dollars for an hour above 0"),
                ("price_usd_h", "nan", "dollars for an hour above 0"),
                ("spot_usd_h_median", "8", "at least spot_usd_h_min"),
                ("price_date", "31.01.2026", "a date such as 2026-07-20"),
                ("price_date", "2026-02-30", "a date such as 2026-07-20"),
            ]
        ),
    ],
)
def test_bad_price_files(text: str, where: str, rule: str) -> None:
    with pytest.raises(PriceError) as caught:
        read(text, "own.csv")
    assert str(caught.value).startswith(f"{where}: ") and rule in str(caught.value)
