# SPDX-License-Identifier: Apache-2.0
"""The parser of Prometheus' text format against that of prometheus_client."""

from __future__ import annotations

from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from dovetail.kube.reading.exposition import SeriesValues, has_data, parse

NAMES = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "dovetail_gpu_healthy")
label_names = st.sampled_from(("UUID", "gpu", "pod", "GPU_I_ID"))
texts = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\r"), max_size=8) | st.sampled_from(
    ("\\", '"', 'a"b', "\\n", "\n", "}", "{", 'x="y",', "} 5", "a,b", "=", "#", "\x1b[31m")
)
labels = st.dictionaries(label_names, texts, max_size=3)
values = st.floats() | st.integers(-5, 10**6).map(float)
lines = st.tuples(st.sampled_from((*NAMES, "other_metric")), labels, values, st.sampled_from(("", " 1700000000000")))


def written(name: str, of: dict[str, str], value: float, time: str) -> str:
    escaped = (f'{k}="{_escape(v)}"' for k, v in of.items())
    return f"{name}{{{','.join(escaped)}}} {value}{time}\n" if of else f"{name} {value}{time}\n"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def flat(found: list[SeriesValues]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {(name, frozenset(one.labels.items())): value for one in found for name, value in one.values.items()}


@given(st.lists(lines, max_size=8))
@pytest.mark.slow
def test_it_reads_what_prometheus_client_reads(written_lines: list[tuple[str, dict[str, str], float, str]]) -> None:
    text = "# HELP x A {} 1\n# TYPE x gauge\n" + "".join(written(*line) for line in written_lines)
    expected = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in NAMES and has_data(sample.value)
    }
    assert flat(parse(text, NAMES)) == expected


def test_values_of_one_label_set_are_joined() -> None:
    text = 'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 5\nDCGM_FI_DEV_FB_USED{gpu="0"} 7\nDCGM_FI_DEV_GPU_UTIL{gpu="1"} 6\n'
    assert [(dict(one.labels), dict(one.values)) for one in parse(text, NAMES)] == [
        ({"gpu": "0"}, {"DCGM_FI_DEV_GPU_UTIL": 5.0, "DCGM_FI_DEV_FB_USED": 7.0}),
        ({"gpu": "1"}, {"DCGM_FI_DEV_GPU_UTIL": 6.0}),
    ]


@pytest.mark.parametrize("line", ["", "x", "{} 1", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL{gpu=", "\x00", "= 5"])
def test_lines_that_are_not_in_the_format_are_left_out(line: str) -> None:
    assert parse(f'{line}\nDCGM_FI_DEV_FB_USED{{gpu="0"}} 7\n', NAMES) == parse(
        'DCGM_FI_DEV_FB_USED{gpu="0"} 7\n', NAMES
    )


@pytest.mark.parametrize("blank", [9223372036854775794, 2147483632, 140737488355328, "NaN", "+Inf"])
def test_values_that_mean_no_data_are_left_out(blank: object) -> None:
    assert parse(f'DCGM_FI_DEV_FB_USED{{gpu="0"}} {blank}\n', NAMES) == []


@given(st.floats())
def test_only_finite_values_have_data(value: float) -> None:
    assert isfinite(value) or not has_data(value)
