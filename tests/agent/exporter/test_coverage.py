# SPDX-License-Identifier: Apache-2.0
"""Which metrics GPUs have, of several products, as the stand-in library answers."""

from __future__ import annotations

import pytest

from dovetail.agent.exporter.counter_list import default
from dovetail.agent.exporter.coverage import coverage, shortened
from dovetail.agent.machine.nvml import Nvml
from tools.standin.fixture import MakeStandin


def test_an_h100_has_at_least_120_kinds(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    with Nvml() as nvml:
        found = coverage(nvml)
    assert set(found.read) == {gpu.index for gpu in machine.description.gpus}
    assert min(found.read.values()) >= 120


@pytest.mark.parametrize("host", ["dgx-h100", "dgx1-v100", "pcie-l40s", "gh200"])
def test_each_kind_that_nvml_could_have_is_read_or_absent_with_a_reason(standin: MakeStandin, host: str) -> None:
    standin(host)
    with Nvml() as nvml:
        found = coverage(nvml)
    for gpu, read in found.read.items():
        absent = [kind for group in found.absent if gpu in group.gpus for kind in group.kinds]
        assert len(absent) == len(set(absent))
        assert read + len(absent) <= len(default())
    assert all(group.why for group in found.absent)


def test_without_gpm_the_profiling_values_are_absent(standin: MakeStandin) -> None:
    standin("dgx1-v100")
    with Nvml() as nvml:
        found = coverage(nvml)
    why = {kind: group.why for group in found.absent for kind in group.kinds}
    assert why["DCGM_FI_PROF_SM_ACTIVE"].startswith("nvmlGpmQueryDeviceSupport: ")


def test_a_gpu_that_is_lost_lacks_all(standin: MakeStandin) -> None:
    machine = standin("pcie-l40s")
    machine.lose(1)
    with Nvml() as nvml:
        found = coverage(nvml)
    assert found.read[1] == 0
    assert found.read[0] > 0
    assert any(group.kinds == ("all",) and group.gpus == (1,) for group in found.absent)


def test_long_lists_are_shortened() -> None:
    assert shortened(["a", "b"]) == "a, b"
    assert shortened(["a", "b", "c"], 2) == "a, b and 1 more"
