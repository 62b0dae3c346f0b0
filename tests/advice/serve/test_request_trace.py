# SPDX-License-Identifier: Apache-2.0
"""Times and lengths of requests in traces: known forms, and traces that are cut, not in order, or have holes."""

from __future__ import annotations

import pytest

from dovetail.advice.serve import request_trace
from dovetail.advice.serve.request_lengths import LengthsError
from dovetail.advice.serve.request_trace import TracedRequest, read_trace

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:05.4799600,3180,8"
)
MOONCAKE = (
    '{"timestamp": 27000, "input_length": 400, "output_length": 6, "hash_ids": [0]}\n\n'
    '{"timestamp": 30500, "input_length": 100, "output_length": 60}\n'
)
BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,API\n45,ChatGPT,10,2,12,API\n"
)


@pytest.mark.parametrize(
    ("text", "requests"),
    [
        (AZURE, [(0, 4808, 10), (1.5, 3180, 8)]),
        (MOONCAKE, [(0, 400, 6), (3.5, 100, 60)]),
        (BURSTGPT, [(0, 472, 18), (40, 10, 2)]),
        ("TIMESTAMP,input,output\n2026-01-31T12:00:00Z,1,2\n2026-01-31T13:00:10+01:00,3,4\n", [(0, 1, 2), (10, 3, 4)]),
        ("TIMESTAMP,input,output\n2026-01-31,1,2\n2026-01-31 00:00:01,3,4\n", [(0, 1, 2), (1, 3, 4)]),
    ],
)
def test_known_forms(text: str, requests: list[tuple[float, int, int]]) -> None:
    assert list(read_trace(text, "t").requests) == [TracedRequest(*one) for one in requests]


def trace(*times: float) -> str:
    return "Timestamp,input,output\n" + "".join(f"{time},5,5\n" for time in times)


def test_rates() -> None:
    found = read_trace(trace(*range(0, 1000, 10), *range(1000, 1200)), "t")
    assert (found.seconds, found.mean_rate) == (1199, 300 / 1199)
    assert found.peak_rate == 210 / 300
    assert read_trace(trace(0, 1, 2), "t").peak_rate == 1.5


def test_the_first_hour_is_taken_and_gaps_are_named() -> None:
    found = read_trace(trace(100, 200, 900, 3700, 3701, 9000), "t")
    assert [one.at_s for one in found.requests] == [0, 100, 800, 3600]
    assert (found.later, found.gaps) == (2, ((100, 800), (800, 3600)))


def test_no_more_requests_than_are_simulated_in_a_minute_or_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_trace, "MOST_REQUESTS", 3)
    found = read_trace(trace(0, 1, 2, 3, 900), "t")
    assert (len(found.requests), found.seconds, found.later, found.gaps) == (3, 2, 2, ())


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (trace(5, 7, 6), "t:4: the request is 1 s before that of the line above: sort by time"),
        (trace(5), "t: all 1 requests arrive at one time, so it has no rate"),
        (trace(5, 5, 5), "t: all 3 requests arrive at one time"),
        (trace(), "t: no request in it"),
        ("input,output\n1,2\n", "t:2: no time of arrival: there is none of TIMESTAMP, timestamp, Timestamp"),
        (trace(0, 1) + "2,5", "t:4: output is missing; each request needs a number from 1"),
        (trace(0, 1) + "2,5,0", "t:4: output is '0'"),
        (MOONCAKE[:-10], "t:3: "),
        (AZURE + "\n2023-11-16 18:", "t:4: ContextTokens is missing"),
        (AZURE + "\nyesterday,5,5\n", "t:4: TIMESTAMP is 'yesterday'; each request needs the time of its arrival"),
        (AZURE + "\n,5,5\n", "t:4: TIMESTAMP is missing"),
        (AZURE + "\n9999999999-01-01,5,5\n", "t:4: TIMESTAMP is '9999999999-01-01'"),
        (trace("nan"), "t:2: Timestamp is 'nan'"),  # type: ignore[arg-type]
        (trace("inf"), "t:2: Timestamp is 'inf'"),  # type: ignore[arg-type]
        (trace(-1), "t:2: Timestamp is '-1'"),
        (trace(1e300), "t:2: Timestamp is '1e+300'"),
        (trace("9" * 5000), "t:2: Timestamp is '9999"),  # type: ignore[arg-type]
        ('{"timestamp": true, "input": 5, "output": 5}', "t:1: timestamp is True"),
        ('{"timestamp": 1' + "0" * 400 + ', "input": 5, "output": 5}', "t:1: timestamp is 1000"),
        ('{"timestamp": [], "input": 5, "output": 5}', "t:1: timestamp is []"),
    ],
)  # fmt: skip
def test_bad_traces(text: str, error: str) -> None:
    with pytest.raises(LengthsError) as found:
        read_trace(text, "t")
    assert str(found.value).startswith(error) and len(str(found.value)) < 400
