# SPDX-License-Identifier: Apache-2.0
"""Which metrics GPUs have, of several products, as the stand-in library answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.agent.exporter.accounting import NOT_VISIBLE
from dovetail.agent.exporter.counter_list import default
from dovetail.agent.exporter.coverage import coverage, shortened
from dovetail.agent.machine.nvml import Nvml
from tools.standin.fixture import MakeStandin


def test_an_h100_has_at_least_120_kinds(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    with Nvml() as nvml:
        found = coverage(nvml, machine.proc)
    assert set(found.read) == {gpu.index for gpu in machine.description.gpus}
    assert min(found.read.values()) >= 120


@pytest.mark.parametrize("host", ["dgx-h100", "dgx1-v100", "pcie-l40s", "gh200"])
def test_each_kind_that_nvml_could_have_is_read_or_absent_with_a_reason(standin: MakeStandin, host: str) -> None:
    machine = standin(host)
    with Nvml() as nvml:
        found = coverage(nvml, machine.proc)
    for gpu, read in found.read.items():
        absent = [kind for group in found.absent if gpu in group.gpus for kind in group.kinds]
        assert len(absent) == len(set(absent))
        assert read + len(absent) <= len(default())
    assert all(group.why for group in found.absent)


def test_without_gpm_the_profiling_values_are_absent(standin: MakeStandin) -> None:
    machine = standin("dgx1-v100")
    with Nvml() as nvml:
        found = coverage(nvml, machine.proc)
    why = {kind: group.why for group in found.absent for kind in group.kinds}
    assert why["DCGM_FI_PROF_SM_ACTIVE"].startswith("nvmlGpmQueryDeviceSupport: ")


def test_without_the_processes_of_the_host_their_metrics_are_absent(standin: MakeStandin, tmp_path: Path) -> None:
    machine = standin("pcie-l40s")
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "comm").write_text("kthreadd\n")
    own = tmp_path / "own"
    with Nvml() as nvml:
        host, container = coverage(nvml, tmp_path), coverage(nvml, own)
    assert all(group.why != NOT_VISIBLE for group in host.absent)
    (group,) = (group for group in container.absent if group.why == NOT_VISIBLE)
    assert group.gpus == tuple(gpu.index for gpu in machine.description.gpus)
    assert {"dovetail_gpu_processes", "dovetail_gpu_pod_memory_used_bytes"} <= set(group.kinds)


def test_a_gpu_that_is_lost_lacks_all(standin: MakeStandin) -> None:
    machine = standin("pcie-l40s")
    machine.lose(1)
    with Nvml() as nvml:
        found = coverage(nvml, machine.proc)
    assert found.read[1] == 0
    assert found.read[0] > 0
    assert any(group.kinds == ("all",) and group.gpus == (1,) for group in found.absent)


def test_long_lists_are_shortened() -> None:
    assert shortened(["a", "b"]) == "a, b"
    assert shortened(["a", "b", "c"], 2) == "a, b and 1 more"
