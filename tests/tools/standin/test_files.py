# SPDX-License-Identifier: Apache-2.0
"""The files around the library: what the kernel, the driver and an installer would have laid out."""

import subprocess
import sys
from pathlib import Path

import pynvml as nvml
import pytest

from tests.paths import ROOT
from tools.standin import HOSTS
from tools.standin.fixture import MakeStandin


def read(path: Path) -> str:
    return path.read_text().strip()


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.slow
def test_every_gpu_and_nic_is_a_pci_device_in_the_tree(standin: MakeStandin, host: str) -> None:
    machine = standin(host)
    devices = machine.sysfs / "bus/pci/devices"
    for gpu in machine.description.gpus:
        at = devices / gpu.device.bdf
        assert read(at / "vendor") == "0x10de"
        assert read(at / "class") == "0x030200"
        assert read(at / "numa_node") == str(gpu.device.numa)
        assert (at / "driver").resolve().name == "nvidia"
        place = at.resolve().relative_to(machine.sysfs.resolve()).parts
        assert place[:2] == ("devices", f"pci{gpu.device.root}")
        # Every bridge on the way is a device of its own.
        assert all((devices / bdf).resolve().name == bdf for bdf in place[2:])
    for nic in machine.description.nics:
        if nic.rdma:
            port = machine.sysfs / "class/infiniband" / nic.name / "ports/1"
            assert read(port / "rate").startswith(f"{nic.gbps} Gb/sec")
            assert (machine.sysfs / "class/infiniband" / nic.name / "device").resolve().name == nic.device.bdf
        (interface,) = (devices / nic.device.bdf / "net").iterdir()
        assert (machine.sysfs / "class/net" / interface.name / "device").resolve().name == nic.device.bdf
        assert read(interface / "speed") == str(-1 if nic.down else nic.gbps * 1000)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.slow
def test_each_cpu_is_on_one_numa_node_and_knows_its_siblings(standin: MakeStandin, host: str) -> None:
    machine = standin(host)
    system = machine.sysfs / "devices/system"
    seen = []
    for number, node in enumerate(machine.description.numa):
        folder = system / f"node/node{number}"
        cpus = sorted(int(path.name[3:]) for path in folder.glob("cpu[0-9]*"))
        assert tuple(cpus) == node.cpus
        seen += cpus
        assert f"MemTotal:      {node.memory_mib * 1024:>9} kB" in read(folder / "meminfo")
        distances = read(folder / "distance").split()
        assert distances[number] == "10"
        assert len(distances) == len(machine.description.numa)
        for cpu in cpus:
            topology = system / f"cpu/cpu{cpu}/topology"
            siblings = read(topology / "thread_siblings_list")
            assert str(cpu) in siblings.split(",") or "-" in siblings
            assert read(topology / "physical_package_id") == str(node.socket)
    assert len(seen) == len(set(seen))


def test_threads_of_a_core_share_its_number(standin: MakeStandin) -> None:
    system = standin("dgx-a100").sysfs / "devices/system"
    for cpu in (17, 145):
        assert read(system / f"cpu/cpu{cpu}/topology/thread_siblings_list") == "17,145"
        assert read(system / f"cpu/cpu{cpu}/topology/core_id") == "17"
        assert read(system / f"cpu/cpu{cpu}/cache/index3/shared_cpu_list") == "16-31,144-159"
    assert read(system / "node/node1/distance") == "12 10 12 12 32 32 32 32"


def test_devices_and_the_drivers_files_are_there(standin: MakeStandin) -> None:
    machine = standin("gb200-nvl72")
    names = {path.name for path in machine.dev.iterdir()}
    assert {"nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm", "nvidia-caps"} <= names
    assert (machine.dev / "nvidia-caps-imex-channels/channel0").exists()
    version = machine.description.driver
    library = machine.driver_root / f"usr/lib/x86_64-linux-gnu/libcuda.so.{version}"
    assert library.is_file()
    assert (library.parent / "libcuda.so.1").resolve() == library.resolve()
    information = read(machine.proc / "driver/nvidia/gpus" / machine.description.gpus[0].device.bdf / "information")
    assert f"GPU UUID:        {machine.description.gpus[0].uuid}" in information
    assert "Device Minor:    1" in information
    assert version in read(machine.proc / "driver/nvidia/version")


def test_instances_have_files_by_which_containers_are_let_in(standin: MakeStandin) -> None:
    machine = standin("dgx-a100")
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(2)
    nvml.nvmlDeviceSetMigMode(gpu, 1)
    instance = nvml.nvmlDeviceCreateGpuInstance(gpu, 9)
    compute = nvml.nvmlGpuInstanceCreateComputeInstance(instance, 2)
    gi = nvml.nvmlGpuInstanceGetInfo(instance).id
    mig = machine.proc / "driver/nvidia/capabilities/gpu2/mig"
    minors = dict(line.rsplit(" ", 1) for line in read(machine.proc / "driver/nvidia-caps/mig-minors").splitlines())
    for name in (f"gi{gi}/access", f"gi{gi}/ci0/access"):
        information = dict(line.split(": ") for line in read(mig / name).splitlines())
        assert information["DeviceFileMinor"] == minors[f"gpu2/{name}"]
        assert (machine.dev / f"nvidia-caps/nvidia-cap{information['DeviceFileMinor']}").exists()
    nvml.nvmlComputeInstanceDestroy(compute)
    assert not (mig / f"gi{gi}/ci0").exists()
    nvml.nvmlGpuInstanceDestroy(instance)
    assert list(mig.iterdir()) == []
    assert sorted(path.name for path in (machine.dev / "nvidia-caps").iterdir()) == ["nvidia-cap1", "nvidia-cap2"]


def test_the_command_makes_a_machine_and_prints_how_to_use_it(tmp_path: Path) -> None:
    def standin(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "tools.standin", *words]
        return subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT)

    done = standin("gh200", "--folder", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert f"export DOVETAIL_STANDIN={tmp_path}/state" in done.stdout.splitlines()
    program = f"{sys.executable} -c 'import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())'"
    shell = subprocess.run(["sh", "-c", f"{done.stdout}\n{program}"], capture_output=True, text=True, check=False)
    assert shell.stdout == "1\n", shell.stderr
    refused = standin("gh20")
    assert refused.returncode == 1
    assert refused.stderr == "error: host: 'gh20' is not known; did you mean gh200?\n"
