# SPDX-License-Identifier: Apache-2.0
"""`dovetail agent inspect` prints what a machine has and what could not be read, whatever the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pynvml
import pytest
from click.testing import CliRunner, Result

from dovetail.cli.agent.group import command
from dovetail.kube.objects.topology import GPUNode
from tests.cli.answers import answer as checked
from tools.standin import HOSTS, Standin

Machine = Callable[[Any], Standin]


def inspect(machine: Standin, *options: str) -> Result:
    roots = ("--sysfs-root", str(machine.sysfs), "--proc-root", str(machine.proc))
    return CliRunner().invoke(command, ["inspect", *roots, *options], catch_exceptions=False)


def section(text: str, title: str) -> list[list[str]]:
    """The rows of a table, word by word, without its head."""
    body = text.partition(f"\n{title}\n")[2].partition("\n\n")[0]
    return [line.split() for line in body.splitlines()[1:]]


@pytest.mark.parametrize("name", sorted(HOSTS))
@pytest.mark.slow
def test_every_machine_is_printed_whole(standin: Machine, name: str) -> None:
    machine = standin(name)
    done = inspect(machine, "--node", "gpu-1")
    assert done.exit_code == 0
    assert done.output.startswith("gpu-1: ")
    gpus = machine.description.gpus
    assert [row[-2] for row in section(done.output, "GPUs")] == [gpu.uuid for gpu in gpus]
    assert len(section(done.output, "NVLinks between GPUs")) == (len(gpus) if len(gpus) > 1 else 0)
    assert len(section(done.output, "NICs")) == len(machine.description.nics)
    assert "…" not in done.output


def test_links_levels_and_places_of_a_cube_mesh(standin: Machine) -> None:
    text = inspect(standin("dgx1-v100")).output
    assert section(text, "NVLinks between GPUs")[0] == ["GPU0", "X", "1", "1", "2", "2", "0", "0", "0"]
    assert section(text, "PCIe between GPUs")[0] == ["GPU0", "X", "PIX", "PHB", "PHB", "SYS", "SYS", "SYS", "SYS"]
    assert section(text, "NICs")[1] == [
        "mlx5_1",
        "ibp8s0",
        "0",
        "100",
        "yes",
        "0000:08:00.0",
        "PHB",
        "PHB",
        "PIX",
        "PIX",
        "SYS",
        "SYS",
        "SYS",
        "SYS",
    ]
    assert section(text, "NUMA nodes")[1] == ["1", "20-39,60-79", "256.0", "none", "32", "10", "4-7"]
    assert "Not read" not in text
    assert "MIG" not in text.partition("Metrics\n")[0].replace("MIG\n", "")


def test_metrics_that_gpus_lack_are_listed_by_reason(standin: Machine) -> None:
    rows = section(inspect(standin("dgx1-v100")).output, "Metrics")
    assert (rows[0][0], rows[0][2]) == ("0-7", "read")
    (profiling,) = [" ".join(row[2:]) for row in rows if "nvmlGpmQueryDeviceSupport:" in row]
    assert profiling.startswith("absent, nvmlGpmQueryDeviceSupport: ")
    assert "DCGM_FI_PROF_SM_ACTIVE" in profiling
    # The stand-in's procfs has no processes, as that of a container.
    (processes,) = [" ".join(row[2:]) for row in rows if "hostPID:" in row]
    assert processes.startswith("absent, the agent does not see the processes of the host")


def test_mig_instances_and_profiles(standin: Machine) -> None:
    machine = standin("dgx-a100")
    machine.divide(0, [("3g.20gb", 4), ("1g.5gb", 1)])
    machine.set(1, mig_pending=1)
    text = inspect(machine).output
    rows = section(text, "MIG instances")
    assert [row[:3] for row in rows] == [["0", "1g.5gb", "1"], ["0", "3g.20gb", "4-7"]]
    assert rows[0][-1].startswith("MIG-")
    modes = [line.rpartition("GPU-")[2].partition(" ")[2].strip() for line in text.splitlines() if " GPU-" in line]
    assert modes[:3] == ["2 instances", "off, on after a reset", "off"]
    profiles = section(text, "MIG profiles")
    assert profiles[0][1:] == ["1g.5gb", "19", "7", "4864", "1", "0,1,2,3,4,5,6"]


def test_profiles_of_a_driver_without_placements_while_mig_mode_is_off(standin: Machine) -> None:
    machine = standin("pcie-a100-bridged")
    machine.fail("nvmlDeviceGetGpuInstancePossiblePlacements", pynvml.NVML_ERROR_NOT_SUPPORTED)
    text = inspect(machine).output
    assert section(text, "MIG profiles")[0] == [
        "0-3",
        "1g.10gb",
        "19",
        "7",
        "9856",
        "?",
        "known",
        "only",
        "in",
        "MIG",
        "mode",
    ]
    assert "Not read" not in text


@pytest.mark.slow
def test_the_memory_of_a_grace_is_one_row(standin: Machine) -> None:
    rows = section(inspect(standin("gb200-nvl72")).output, "NUMA nodes")
    assert [row[0] for row in rows] == ["0", "1", "2-33"]
    fabric = section(inspect(standin("gb200-nvl72")).output, "NVLink fabric")
    assert fabric[3][-1] == "f2a8d3b1-5c57-4a0e-9f3c-1d2e6b7a8c90.2"


@pytest.mark.slow
def test_json_has_the_host_and_the_gpu_node(standin: Machine) -> None:
    done = inspect(standin("dgx-h100"), "-o", "json", "--node", "gpu-1")
    reported = checked(done.output, "AgentInspection")
    assert set(reported) - {"apiVersion", "kind"} == {"host", "numaNodes", "gpuNode", "metrics", "xidTable"}
    assert reported["metrics"]["read"]["0"] >= 120
    assert {"why", "gpus", "kinds"} == set(reported["metrics"]["absent"][0])
    assert [gpu["minor"] for gpu in reported["host"]["gpus"]] == list(range(8))
    assert reported["host"]["gpus"][0]["profiles"][0]["name"] == "1g.10gb"
    assert [node["id"] for node in reported["numaNodes"]] == [0, 1]
    node = msgspec.convert(reported["gpuNode"], GPUNode)
    assert node.metadata.name == "gpu-1"
    assert (len(node.status.gpus), node.status.nvlinks[0][1]) == (8, 18)
    assert node.status.pcie_levels[0][:2] == ("X", "NODE")


def test_unreadable_fields_are_printed_with_the_reason(standin: Machine) -> None:
    machine = standin({"like": "dgx-h100", "missing": ["nvmlDeviceGetModuleId"]})
    machine.lose(4)
    done = inspect(machine)
    assert done.exit_code == 0
    unread = {row[0]: " ".join(row[1:]) for row in section(done.output, "Not read")}
    assert unread["gpus[4]"] == "nvmlDeviceGetHandleByIndex: the GPU has fallen off the bus"
    assert unread["gpus[0].module"] == "nvmlDeviceGetModuleId: the driver is too old for this call"
    assert [row[0] for row in section(done.output, "NVLinks between GPUs")] == [f"GPU{i}" for i in range(8) if i != 4]


def test_driver_and_library_of_different_versions(standin: Machine) -> None:
    machine = standin("dgx-a100")
    machine.mismatch()
    done = inspect(machine)
    assert done.exit_code == 0
    assert "8 NVIDIA GPUs on the PCI bus that cannot be used" in done.output.splitlines()[0]
    assert "a driver was updated without a reboot" in " ".join(section(done.output, "Not read")[0])


def test_a_machine_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", missing)
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    done = CliRunner().invoke(command, ["inspect", "--sysfs-root", str(tmp_path), "--proc-root", str(tmp_path)])
    assert done.exit_code == 0
    assert "no NVIDIA GPU" in done.output.splitlines()[0]
    assert [row[0] for row in section(done.output, "Not read")] == ["gpus", "machine", "numaNodes"]


def test_a_folder_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["inspect", "--sysfs-root", str(tmp_path / "nothing")])
    assert done.exit_code == 2
    assert "does not exist" in done.output


def test_the_command_finds_the_library_as_any_process_does(standin: Machine) -> None:
    machine = standin("small-2numa")
    argv = [
        sys.executable,
        "-c",
        "from dovetail.cli import main; main()",
        "agent",
        "inspect",
        "-o",
        "json",
        "--sysfs-root",
        str(machine.sysfs),
    ]
    done = subprocess.run(argv, env=os.environ | machine.environment, capture_output=True, check=True, timeout=60)
    assert [gpu["uuid"] for gpu in json.loads(done.stdout)["host"]["gpus"]] == [
        gpu.uuid for gpu in machine.description.gpus
    ]
