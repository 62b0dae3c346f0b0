# SPDX-License-Identifier: Apache-2.0
"""Lengths of requests in traces: the columns of known traces, and traces with holes."""

from __future__ import annotations

import pytest

from dovetail.advice.serve.request_lengths import LengthsError, fixed, read_lengths

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,4808,10\n2023-11-16 18:17:04.0,3180,8\n"
MOONCAKE = '{"timestamp": 0, "input_length": 40160, "output_length": 6, "hash_ids": [0]}\n\n' \
           '{"timestamp": 1, "input_length": 1000, "output_length": 600}\n'  # fmt: skip


def test_known_traces() -> None:
    azure = read_lengths(AZURE, "azure.csv")
    assert (azure.input, azure.output, azure.input_p95, azure.longest, azure.requests) == (3994, 9, 4808, 4818, 2)
    mooncake = read_lengths(MOONCAKE, "m.jsonl")
    assert (mooncake.input, mooncake.output, mooncake.longest, mooncake.requests) == (20_580, 303, 40_166, 2)


def test_the_95th_percentile() -> None:
    text = "input,output\n" + "".join(f"{n},1\n" for n in range(1, 101))
    assert read_lengths(text, "t.csv").input_p95 == 96
    assert fixed(7, 3).input_p95 == 7


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("input,output\n5,5\n7,\n", "t:3: output is missing; each request needs a number from 1 to 16777216"),
        ("input,output\n5\n", "t:2: output is missing"),
        ("input,output\n0,5\n", "t:2: input is '0'"),
        ("input,output\n-3,5\n", "t:2: input is '-3'"),
        ("input,output\n1.5,5\n", "t:2: input is '1.5'"),
        ("input,output\n99999999999,5\n", "t:2: input is '99999999999'"),
        (f"input,output\n{'9' * 5000},5\n", "t:2: input is '9999"),
        (f"input,output\n{'9' * 200_000},5\n", "t:2: field larger than field limit"),
        ("input,output\n", "t: no request in it"),
        ("", "t: none of the pairs of columns"),
        ("prompt,answer\n1,2\n", "t: none of the pairs of columns that are known: ContextTokens and GeneratedTokens"),
        ('{"input": 5, "output": 5}\n{"input": 5}\n', "t:2: output is missing"),
        ('{"input": true, "output": 5}\n', "t:1: input is True"),
        ('{"input": 5, "output": 5}\n{"input": \n', "t:2: "),
        ("{}\n", "t:1: none of the pairs"),
    ],
)
def test_a_hole_is_an_error_with_its_line(text: str, error: str) -> None:
    with pytest.raises(LengthsError) as raised:
        read_lengths(text, "t")
    assert str(raised.value).startswith(error)
