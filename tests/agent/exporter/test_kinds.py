# SPDX-License-Identifier: Apache-2.0
"""The table of kinds: well-formed, large enough, and with DCGM's names."""

from __future__ import annotations

import re

from dovetail.agent.exporter.kinds import ALL_LINKS, CallSource, FieldSource, OwnSource, table

KINDS = list(table().values())


def test_there_are_enough() -> None:
    read = [kind for kind in KINDS if kind.type != "label" and kind.group not in ("unavailable", "exporter")]
    assert len(read) >= 120
    assert len(table()) == len(KINDS)


def test_each_is_a_valid_metric() -> None:
    for kind in KINDS:
        assert re.fullmatch(r"(DCGM_(FI|EXP)_[A-Z0-9_]+|dovetail_[a-z0-9_]+)", kind.name)
        assert kind.type in ("gauge", "counter", "label"), kind.name
        assert kind.sources, kind.name
        assert kind.help.endswith("."), kind.name
        if kind.name.startswith("dovetail_"):
            assert (kind.type == "counter") == kind.name.endswith("_total"), kind.name


def test_sources_are_parsed() -> None:
    (power, *_) = table()["DCGM_FI_DEV_POWER_USAGE"].sources
    assert power == CallSource("nvmlDeviceGetPowerUsage", factor=0.001)
    (total,) = table()["DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"].sources
    assert total == FieldSource(((138, ALL_LINKS), (139, ALL_LINKS)))
    rows, call = table()["DCGM_FI_DEV_ROW_REMAP_FAILURE"].sources
    assert (rows, call) == (FieldSource(((145, 0),)), CallSource("nvmlDeviceGetRemappedRows", part=3))
    assert table()["DCGM_FI_DEV_VGPU_LICENSE_STATUS"].sources[0] == OwnSource("none", "vGPU is not supported")
