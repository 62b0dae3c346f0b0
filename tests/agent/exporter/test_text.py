# SPDX-License-Identifier: Apache-2.0
"""The text format, read back by Prometheus' own client library."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from dovetail.agent.exporter.kinds import table
from dovetail.agent.exporter.text import Series, Writer, labels_of

_NAMES = ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "dovetail_gpu_xids_total")
_LABEL = st.text(st.characters(codec="utf-8"), max_size=12)
_NUMBER = st.one_of(st.integers(0, 2**64), st.floats(allow_nan=False, allow_infinity=False))
_SERIES = st.lists(
    st.tuples(st.integers(0, 99), _LABEL, st.dictionaries(st.sampled_from(_NAMES), _NUMBER, min_size=1)),
    max_size=6,
    unique_by=lambda one: one[0],
)


def printable(text: str) -> str:
    return "".join(char for char in text if char == "\n" or not ("\x00" <= char < " " or "\x7f" <= char <= "\x9f"))


@given(_SERIES)
@pytest.mark.slow
def test_what_is_written_is_read_back(series: list[tuple[int, str, dict[str, float]]]) -> None:
    writer = Writer(table()[name] for name in _NAMES)
    all_series = [Series(labels_of((("gpu", str(gpu)), ("pod", pod))), values) for gpu, pod, values in series]
    for _ in range(2):  # the second time from what is kept
        text = "".join(writer.write(all_series).values())
        read = {
            (sample.name, sample.labels["gpu"], sample.labels["pod"]): float(sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert read == {
            (name, str(gpu), printable(pod)): float(value)
            for gpu, pod, values in series
            for name, value in values.items()
        }


def test_the_lines_of_a_kind_are_together_after_its_head() -> None:
    writer = Writer(table()[name] for name in _NAMES)
    one = Series('gpu="0"', {"DCGM_FI_DEV_POWER_USAGE": 84.5, "DCGM_FI_DEV_GPU_TEMP": 31})
    two = Series('gpu="1"', {"DCGM_FI_DEV_GPU_TEMP": 30.0}, {"dovetail_gpu_xids_total": (("xid", "79", 2),)})
    lines = "".join(writer.write([one, two]).values()).splitlines()
    assert [line for line in lines if not line.startswith("# HELP")] == [
        "# TYPE DCGM_FI_DEV_GPU_TEMP gauge",
        'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 31',
        'DCGM_FI_DEV_GPU_TEMP{gpu="1"} 30',
        "# TYPE DCGM_FI_DEV_POWER_USAGE gauge",
        'DCGM_FI_DEV_POWER_USAGE{gpu="0"} 84.5',
        "# TYPE dovetail_gpu_xids_total counter",
        'dovetail_gpu_xids_total{gpu="1",xid="79"} 2',
    ]
