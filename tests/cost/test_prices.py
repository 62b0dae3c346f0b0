# SPDX-License-Identifier: Apache-2.0
"""Which price a GPU has, and what is wrong with a file of prices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.advice.price_table import PriceError
from dovetail.advice.prices import COLUMNS as OF_INSTANCES
from dovetail.advice.prices import built_in
from dovetail.cost import list_prices, opencost
from dovetail.cost.price_files import COLUMNS, read
from dovetail.cost.price_rules import CurrencyError, GpuPart, PriceBook, Priced, PriceRule, Unpriced, model_of
from dovetail.history.records import GpuSpan

SPAN = GpuSpan("g", "n1", 0, 8, "NVIDIA-H100-80GB-HBM3", "healthy", 0, 0, "p5.48xlarge", "us-east-1", "us-east-1a")
HEAD = "per,price_h,currency,price_date,source,valid_from,node,instance_type,gpu_model,region,zone,spot\n"
TWIN = "gpu,{},USD,2026-01-01,,,n1,,,,,\n"
OPENCOST_HEAD = ",".join(opencost.COLUMNS) + "\n"


def own(*lines: str) -> list[PriceRule]:
    return read(HEAD + "".join(f"{line}\n" for line in lines), "own.csv")


def micro(book: PriceBook, span: GpuSpan = SPAN, at_ms: int = 0) -> int:
    found = book.price(span, at_ms)
    assert isinstance(found, Priced), found
    return found.micro


def missing(book: PriceBook, span: GpuSpan = SPAN, at_ms: int = 0) -> Unpriced:
    found = book.price(span, at_ms)
    assert isinstance(found, Unpriced)
    return found


@given(st.integers(0, 10**12), st.integers(1, 16))
def test_the_prices_of_the_gpus_of_a_node_add_up_to_its_price(price: int, gpus: int) -> None:
    book = PriceBook([[PriceRule(price, "USD", "2026-01-01", "a bill", node="n1")]])
    parts = [micro(book, replace(SPAN, index=index, gpus=gpus)) for index in range(gpus)]
    assert sum(parts) == price and max(parts) - min(parts) <= 1


def test_what_names_more_comes_first_and_files_before_the_list() -> None:
    rows = own(
        "gpu,1,USD,2026-01-01,any,,,,,,,",
        "gpu,2,USD,2026-01-01,model,,,,H100-SXM5,,,",
        "gpu,3,USD,2026-01-01,type,,,p5.48xlarge,,,,",
        "gpu,4,USD,2026-01-01,zone,,,p5.48xlarge,,,us-east-1a,",
        "gpu,5,USD,2026-01-01,node,,n1,,,,,",
        "gpu,6,USD,2026-01-01,spot,,n1,,,,,yes",
    )
    listed = list(list_prices.rules(built_in()))
    for count, expected in ((6, 5), (4, 4), (3, 3), (2, 2), (1, 6.88)):
        assert micro(PriceBook([rows[:count]], listed)) == expected * 10**6
    assert micro(PriceBook([rows], listed), replace(SPAN, spot=True)) == 6_000_000
    assert micro(PriceBook([rows[:1]])) == 1_000_000
    other = replace(SPAN, instance_type="", node="n7", model="Z9")
    assert micro(PriceBook([rows[:1]], listed), other) == 1_000_000
    assert micro(PriceBook([own("gpu,9,USD,2026-01-01,,,,,H100-SXM5,,,"), rows])) == 9_000_000


def test_the_list_price_is_of_its_region_and_never_that_on_demand_for_spot() -> None:
    book = PriceBook([], list(list_prices.rules(built_in())))
    assert micro(book) == 55_040_000 // 8
    assert micro(book, replace(SPAN, region="", zone="")) == 55_040_000 // 8
    assert "that of us-east-1, not of eu-west-1" in missing(book, replace(SPAN, region="eu-west-1")).why
    assert "no spot price of p5.48xlarge" in missing(book, replace(SPAN, spot=True)).why
    gcp = replace(SPAN, instance_type="a3-highgpu-8g", region="us-central1", spot=True)
    assert micro(book, gcp) == 50_609_500 // 8 + 1
    none = missing(book, replace(SPAN, instance_type=""))
    assert "no price fits" in none.why and "NVIDIA-H100-80GB-HBM3" in none.fix


def test_prices_change_on_the_day_from_which_they_are_valid() -> None:
    day = 1_772_323_200_000
    book = PriceBook(
        [own("gpu,2,USD,2026-03-01,new,2026-03-01,n1,,,,,", "gpu,1,USD,2026-01-01,old,2026-01-01,n1,,,,,")]
    )
    assert [micro(book, at_ms=at) for at in (day - 1, day)] == [1_000_000, 2_000_000]
    assert sorted(book.changes()) == [1_767_225_600_000, day]
    assert "valid only later" in missing(book).why


def test_currencies_are_added_only_with_a_rate() -> None:
    rows = own("gpu,10,EUR,2026-01-01,a bill,,,,H100-SXM5,,,")
    both = PriceBook([rows], list(list_prices.rules(built_in())))
    assert micro(both) == 10_000_000 and both.currency == "EUR"
    with pytest.raises(CurrencyError, match=r"in EUR and in USD .*--currency EUR --rate USD=1.08"):
        both.price(replace(SPAN, model="Z9"), 0)
    assert micro(PriceBook([rows], currency="USD", rates={"EUR": 1_080_000})) == 10_800_000
    with pytest.raises(CurrencyError):
        PriceBook([rows], currency="USD").price(SPAN, 0)


def test_the_ratio_takes_cpus_and_memory_out_of_the_price() -> None:
    # OpenCost's example: parts of 30, 30 and 10 of a node of 35 are 15, 15 and 5.
    rule = PriceRule(35_000_000, "USD", "2026-01-01", "a bill", node="n1", cpu_milli=1000, memory_mib=1024)
    part = GpuPart(30, 30, 10)
    assert micro(PriceBook([[rule]], gpu_part=part), replace(SPAN, gpus=1)) == 5_000_000
    unknown = missing(PriceBook([[replace(rule, cpu_milli=0)]], gpu_part=part))
    assert "CPUs and the memory" in unknown.why and "vcpus" in unknown.fix
    listed = micro(PriceBook([], list(list_prices.rules(built_in())), opencost.BASE))
    assert 0 < listed < 55_040_000 // 8


def test_models_are_found_by_any_of_their_names() -> None:
    names = ("NVIDIA-H100-80GB-HBM3", "NVIDIA H100 80GB HBM3", "H100-SXM5", "nvidia-h100-80gb-hbm3-SHARED",
             "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb")  # fmt: skip
    assert {model_of(name) for name in names} == {"h100-sxm5"}
    assert model_of("My GPU") == "my-gpu" and model_of("") == ""


def test_a_table_of_instances_is_read_too() -> None:
    row = "acme,p5.48xlarge,H100-SXM5,8,80,96,1024,3200,EFA,1000,us-east-1,40,9,16,2026-01-31,a bill"
    book = PriceBook([read(f"{','.join(OF_INSTANCES)}\n{row}\n", "own.csv")])
    assert micro(book) == 5_000_000 and micro(book, replace(SPAN, spot=True)) == 2_000_000


DEFAULT = '{"provider": "custom", "CPU": "0.031611", "RAM": "0.004237", "GPU": "0.95", "storage": "0.00005479452"}'


def test_custom_pricing_of_opencost_is_of_any_gpu_and_comes_last() -> None:
    rows = read(DEFAULT, "default.json")
    assert micro(PriceBook([rows])) == 950_000
    assert micro(PriceBook([rows], list(list_prices.rules(built_in())))) == 6_880_000
    assert opencost.gpu_part(DEFAULT, "default.json") == opencost.BASE
    spot = read('{"GPU": "0.95", "spotGPU": "0.308", "currencyCode": "EUR"}', "default.json")
    book = PriceBook([spot])
    assert (micro(book), micro(book, replace(SPAN, spot=True)), book.currency) == (950_000, 308_000, "EUR")


def test_the_table_of_opencost_adds_gpus_to_nodes() -> None:
    text = OPENCOST_HEAD + (
        "# a comment\n"
        "2019-04-17 23:34:22 UTC,n1,,node,metadata.name,,0.1337,\n"
        "2028-01-06 23:34:45 UTC,h100-sxm5,,gpu,nvidia.com/gpu_type,,0.5,\n"
        ",ssd,fsn1,pv,spec.storageClassName,hcloud,0.000072,2026.01\n"
        ",i-1,us-east-1,node,spec.providerID,p5.48xlarge,8,\n"
        ",i-2,us-east-1,node,spec.providerID,p5.48xlarge,16,\n"
        ",gx.1,,node,metadata.labels.node.kubernetes.io/instance-type,,0.13370357,\n"
    )
    book = PriceBook([read(text, "opencost.csv")])
    named = [micro(book, replace(SPAN, index=index)) for index in range(8)]
    assert sum(named) == 133_700 + 8 * 500_000
    assert sum(micro(book, replace(SPAN, node="n2", index=index)) for index in range(8)) == 12_000_000 + 8 * 500_000
    other = replace(SPAN, node="n3", instance_type="gx.1", region="", model="Z9", gpus=1)
    assert micro(book, other) == 133_704
    assert micro(book, replace(other, instance_type="", model="H100-SXM5")) == 500_000


@pytest.mark.parametrize(
    ("line", "column", "rule"),
    [
        ("gpu,-1,USD,2026-01-01,,,,,,,,", "price_h", "'-1' is not a price for an hour from 0 to 1000000"),
        ("gpu,1e3,USD,2026-01-01,,,,,,,,", "price_h", "'1e3' is not a price"),
        ("gpu,99999999,USD,2026-01-01,,,,,,,,", "price_h", "is not a price"),
        ("gpu,,USD,2026-01-01,,,,,,,,", "price_h", "leave the row out if it is not known"),
        ("gpu,nan,USD,2026-01-01,,,,,,,,", "price_h", "is not a price"),
        ("both,1,USD,2026-01-01,,,,,,,,", "per", "'both' is not node or gpu"),
        ("gpu,1,$,2026-01-01,,,,,,,,", "currency", "three letters, such as USD"),
        ("gpu,1,USD,yesterday,,,,,,,,", "price_date", "a date such as"),
        ("gpu,1,USD,2026-01-01,,2026-02-30,,,,,,", "valid_from", "a date such as"),
        ("gpu,1,USD,2026-01-01,,,,,,,,maybe", "spot", "yes, no or empty"),
        ("gpu,1,USD,2026-01-01", "", "has 4 cells, the first line names 12"),
        ('gpu,"1,USD', "", "is not CSV"),
    ],
)
def test_a_bad_row_is_refused_with_its_place(line: str, column: str, rule: str) -> None:
    with pytest.raises(PriceError) as caught:
        own("gpu,1,USD,2026-01-01,,,n9,,,,,", line)
    assert (caught.value.file, caught.value.column) == ("own.csv", column)
    assert caught.value.line >= 3 and rule in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "own.csv:1, column per: is missing"),
        (HEAD, "own.csv:1: no price follows"),
        ("per,price_h,currency\n", "column price_date: is missing; the first line must name"),
        (HEAD.replace("zone", "where"), "column 'where': is not known; expected are per, price_h"),
        (HEAD + TWIN.format(1) + "\n" + TWIN.format(2), "own.csv:4: is for the same GPUs as line 2"),
        (HEAD.strip() + ",vcpus\ngpu,1,USD,2026-01-01,,,,,,,,,0\n", "vcpus: '0' is not a number of CPUs above 0"),
        ('{"GPU": 1}', "own.csv:1: is not OpenCost's custom pricing"),
        ('{"CPU": "1"}', 'own.csv:1, column GPU: is missing: name the price of a GPU for an hour, as in "GPU": "0.95"'),
        ('{"GPU": "-1"}', "column GPU: '-1' is not a price for an hour"),
        ("{", "is not OpenCost's custom pricing"),
        (OPENCOST_HEAD, "no price follows"),
        (OPENCOST_HEAD + ",n1,,disk,metadata.name,,1,\n", "column AssetClass: 'disk' is not node, gpu or pv"),
        (OPENCOST_HEAD + ",n1,,node,metadata.name,,free,\n", "own.csv:2, column MarketPriceHourly: 'free' is not"),
        (OPENCOST_HEAD.replace(",Version", ""), "column Version: is missing"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_its_place(text: str, expected: str) -> None:
    with pytest.raises(PriceError) as caught:
        read(text, "own.csv")
    assert expected in str(caught.value)


def test_own_columns_are_all_known() -> None:
    assert set(HEAD.strip().split(",")) | {"vcpus", "memory_gib"} == set(COLUMNS)


def test_nodes_of_which_no_kind_is_known_have_one_sentence() -> None:
    spans = [replace(SPAN, node=node, model="", instance_type="") for node in ("n1", "n2")]
    first, second = (missing(PriceBook([]), span).fix for span in spans)
    assert first == second == "name each node in a file of --prices"
