# SPDX-License-Identifier: Apache-2.0
"""Quantities: the integers are those that k8s.io/apimachinery v0.37.1 gives for the same texts."""

import pytest

from dovetail.core.quantities import MAX_QUANTITY, QuantityError, amount, display, milli, parse, units

VALUES = [
    # text, Value(), MilliValue()
    ("0", 0, 0),
    ("1", 1, 1000),
    ("+1", 1, 1000),
    ("100m", 1, 100),
    ("1500m", 2, 1500),
    ("1m", 1, 1),
    ("0.1m", 1, 1),
    ("1u", 1, 1),
    ("1n", 1, 1),
    ("999999999n", 1, 1000),
    ("1000000001n", 2, 1001),
    ("1e-10", 1, 1),
    ("0.0001", 1, 1),
    ("1.0005", 2, 1001),
    ("0.5", 1, 500),
    (".5", 1, 500),
    ("1.", 1, 1000),
    ("1.5", 2, 1500),
    ("2k", 2_000, 2_000_000),
    ("1M", 10**6, 10**9),
    ("1G", 10**9, 10**12),
    ("1T", 10**12, 10**15),
    ("1P", 10**15, 10**18),
    ("1e3", 1000, 1_000_000),
    ("1E3", 1000, 1_000_000),
    ("1e+3", 1000, 1_000_000),
    ("1e-3", 1, 1),
    ("1E-1", 1, 100),
    ("1e0", 1, 1000),
    ("1.5e3", 1500, 1_500_000),
    ("12e6", 12_000_000, 12_000_000_000),
    ("1Ki", 1024, 1_024_000),
    ("0.1Ki", 103, 102_400),
    ("1.5Ki", 1536, 1_536_000),
    ("3.3Mi", 3_460_301, 3_460_300_800),
    ("1.5Gi", 1_610_612_736, 1_610_612_736_000),
    ("1Ti", 2**40, 2**40 * 1000),
    ("1Pi", 2**50, 2**50 * 1000),
    ("-1", -1, -1000),
    ("-1.5", -2, -1500),
    ("-0.1", -1, -100),
    ("-1n", -1, -1),
]

NO_QUANTITIES = [
    "", " ", "1 ", "1 Gi", "1gi", "1KiB", "1K", "1i", "1mi", "1Ei5", "abc", "1..5", "1.5.5", "--1", "1e", "1ee3",
    "0x10", "1_000", "NaN", "inf", "1\n", "\N{ARABIC-INDIC DIGIT ONE}", "1" * 5000,
]  # fmt: skip


@pytest.mark.parametrize(("text", "whole", "thousandths"), VALUES)
def test_a_quantity_is_rounded_as_kubernetes_rounds_it(text: str, whole: int, thousandths: int) -> None:
    assert (units(text), milli(text)) == (whole, thousandths)


@pytest.mark.parametrize("text", NO_QUANTITIES)
def test_what_kubernetes_does_not_parse_is_refused_with_the_text(text: str) -> None:
    with pytest.raises(QuantityError) as error:
        parse(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize("text", ["8Ei", "9223372036854775808", "1e30", "1e999", "1000E"])
def test_what_is_more_than_64_bits_hold_is_the_most_that_they_hold(text: str) -> None:
    assert units(text) == milli(text) == MAX_QUANTITY
    assert units(f"-{text}") == milli(f"-{text}") == -MAX_QUANTITY


def test_the_largest_amounts_are_exact() -> None:
    assert units("9223372036854775806") == MAX_QUANTITY - 1
    assert units("7Ei") == 7 * 2**60
    assert milli("9223372036854775806m") == MAX_QUANTITY - 1


@pytest.mark.parametrize("text", ["1E", "10P", "1Ei"])
def test_cpu_is_bounded_in_thousandths_too(text: str) -> None:
    assert amount("cpu", text) == MAX_QUANTITY
    assert MAX_QUANTITY > amount("memory", text) > 0


def test_only_cpu_counts_in_thousandths() -> None:
    assert amount("cpu", "250m") == 250
    assert amount("memory", "250m") == 1
    assert amount("nvidia.com/gpu", "8") == 8


@pytest.mark.parametrize(
    ("resource", "value", "text"),
    [
        ("cpu", 2000, "2"),
        ("cpu", 1500, "1500m"),
        ("cpu", 0, "0"),
        ("cpu", -500, "-500m"),
        ("memory", 2 * 2**30, "2Gi"),
        ("memory", 1536 * 2**20, "1.5Gi"),
        ("memory", 1023, "1023"),
        ("memory", -(3 * 2**20), "-3Mi"),
        ("ephemeral-storage", 2**40, "1Ti"),
        ("hugepages-2Mi", 2**21, "2Mi"),
        ("nvidia.com/gpu", 2048, "2048"),
    ],
)
def test_a_number_is_shown_as_people_write_it(resource: str, value: int, text: str) -> None:
    assert display(resource, value) == text
