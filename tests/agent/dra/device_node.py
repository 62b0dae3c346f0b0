# SPDX-License-Identifier: Apache-2.0
"""A node with GPUs of which claims can have parts: hosts, the files of a driver, and MIG instances that outlive the
process, as they do in a GPU. Every step that changes something raises an audit event, so that a test can stop there."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dovetail.agent.apis import registration_pb2 as registration
from dovetail.agent.apis.serving import call
from dovetail.agent.cdi import CdiFolder
from dovetail.agent.dra.driver import NAME
from dovetail.agent.dra.offer import Offered, Partition, offered
from dovetail.agent.dra.prepared import Prepared, WantedClaim
from dovetail.agent.machine.driver_files import DriverFiles
from dovetail.agent.machine.host import Gpu, GpuEngines, GpuFabric, GpuInstance, GpuProfile, Host
from dovetail.agent.machine.nvml import IN_USE, INVALID_ARGUMENT, NvmlError

STEP = "dovetail.test.step"
A100 = (
    # index, id, name, compute, size, starts, most, memory, SM, copy, decoders, encoders, jpeg, ofa
    GpuProfile(0, 19, "1g.5gb", 1, 1, (0, 1, 2, 3, 4, 5, 6), 7, 4864, GpuEngines(14, 1, 0, 0, 0, 0)),
    GpuProfile(7, 20, "1g.5gb+me", 1, 1, (0, 1, 2, 3, 4, 5, 6), 1, 4864, GpuEngines(14, 1, 1, 0, 1, 1)),
    GpuProfile(9, 15, "1g.10gb", 1, 2, (0, 2, 4, 6), 4, 9856, GpuEngines(14, 1, 1, 0, 0, 0)),
    GpuProfile(1, 14, "2g.10gb", 2, 2, (0, 2, 4), 3, 9856, GpuEngines(28, 2, 1, 0, 0, 0)),
    GpuProfile(2, 9, "3g.20gb", 3, 4, (0, 4), 2, 19968, GpuEngines(42, 3, 2, 0, 0, 0)),
    GpuProfile(3, 5, "4g.20gb", 4, 4, (0,), 1, 19968, GpuEngines(56, 4, 2, 0, 0, 0)),
    GpuProfile(4, 0, "7g.40gb", 7, 8, (0,), 1, 40192, GpuEngines(98, 7, 5, 0, 1, 1)),
)


def gpu(index: int, mig: tuple[GpuInstance, ...] | None = None) -> Gpu:
    """An A100 in a DGX A100."""
    return Gpu(
        index=index,
        minor=index,
        uuid=f"GPU-{index}",
        product="NVIDIA A100-SXM4-40GB",
        pci_bus_id=f"0000:{7 + 8 * index:02x}:00.0",
        memory_mib=40960,
        brand="Nvidia",
        architecture="Ampere",
        compute=(8, 0),
        addressing="None",
        numa=index // 4,
        pcie_root=f"pci0000:{index:02x}",
        fabric=GpuFabric("not-supported"),
        mig=mig,
        profiles=A100,
        engines=GpuEngines(108, 7, 5, 0, 1, 1),
    )


async def register(registry: Path, *, error: str = "") -> None:
    """As the kubelet, which has found the driver: it is registered, or not for this reason."""
    socket = registry / f"{NAME}-dovetail-reg.sock"
    status = registration.RegistrationStatus(plugin_registered=not error, error=error)
    method = "/pluginregistration.Registration/NotifyRegistrationStatus"
    await call(socket, method, status, registration.RegistrationStatusResponse)


def host(*gpus: Gpu) -> Host:
    """All GPUs are joined by NVSwitches."""
    links = tuple(tuple(0 if i == j else 12 for j in range(len(gpus))) for i in range(len(gpus)))
    pcie = tuple(tuple(0 for _ in gpus) for _ in gpus)
    return Host("535.129.03", "12.535.129.03", (12, 2), "DGXA100", gpus, pcie, links, ())


class Silicon:
    """The MIG instances and time slices of a machine, in the file `path`. `busy` are uuids of instances that processes
    hold; `dead` what every call fails with."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.busy: set[str] = set()
        self.dead: NvmlError | None = None
        if not path.exists():
            self._store({"made": 0, "instances": [], "intervals": {}})

    def find(self, gpu: Gpu, partition: Partition) -> GpuInstance | None:
        self._works()
        for each in self._instances(gpu):
            if (each["profile"], each["start"]) == (partition.profile, partition.start) and each["whole"]:
                return self._instance(each)
        return None

    def make(self, gpu: Gpu, partition: Partition) -> GpuInstance:
        self._works()
        if any(partition.overlaps(each["start"], each["size"]) for each in self._instances(gpu)):
            raise NvmlError("nvmlDeviceCreateGpuInstanceWithPlacement", INVALID_ARGUMENT, "the place is taken")
        state = self._load()
        state["made"] += 1
        gi = next(i for i in range(1, 15) if i not in [each["gi"] for each in self._instances(gpu)])
        number = state["made"]
        instance = {
            "gpu": gpu.uuid, "profile": partition.profile, "start": partition.start, "size": partition.size,
            "gi": gi, "uuid": f"MIG-{number}", "whole": False,
        }  # fmt: skip
        state["instances"].append(instance)
        self._step(state)
        instance["whole"] = True
        self._step(state)
        return self._instance(instance)

    def destroy(self, gpu: Gpu, partition: Partition) -> None:
        self._works()
        state = self._load()
        for each in state["instances"]:
            if (each["gpu"], each["profile"], each["start"]) == (gpu.uuid, partition.profile, partition.start):
                if each["uuid"] in self.busy:
                    raise NvmlError("nvmlGpuInstanceDestroy", IN_USE, "in use by another client")
                each["whole"] = False
                self._step(state)
                state["instances"].remove(each)
                self._step(state)
                return

    def interval(self, uuid: str, interval: int) -> None:
        state = self._load()
        state["intervals"][uuid] = interval
        self._step(state)

    @property
    def intervals(self) -> dict[str, int]:
        return {uuid: interval for uuid, interval in self._load()["intervals"].items() if interval}

    def live(self) -> dict[str, tuple[str, str, int]]:
        """GPU, profile and start of all instances, by uuid; half-made ones too."""
        return {each["uuid"]: (each["gpu"], each["profile"], each["start"]) for each in self._load()["instances"]}

    def seen(self, before: Host) -> Host:
        """The host with the instances that it has now."""
        gpus = [
            one if one.mig is None else replace(one, mig=tuple(self._instance(e) for e in self._instances(one)))
            for one in before.gpus
        ]
        return replace(before, gpus=tuple(gpus))

    def reboot(self) -> None:
        self._store({**self._load(), "instances": [], "intervals": {}})

    def _instances(self, gpu: Gpu) -> list[dict[str, Any]]:
        return [each for each in self._load()["instances"] if each["gpu"] == gpu.uuid]

    def _instance(self, each: dict[str, Any]) -> GpuInstance:
        return GpuInstance(each["uuid"], each["profile"], each["gi"], 0, each["start"], each["size"], 4864)

    def _works(self) -> None:
        if self.dead is not None:
            raise self.dead

    def _step(self, state: dict[str, Any]) -> None:
        sys.audit(STEP)
        self._store(state)

    def _load(self) -> dict[str, Any]:
        return json.loads(self._path.read_text())

    def _store(self, state: dict[str, Any]) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(state))
        new.replace(self._path)


def driver_tree(root: Path, gpus: int = 8) -> DriverFiles:
    """The files of a driver, as an installation has them."""
    libraries = root / "usr/lib/x86_64-linux-gnu"
    for folder in (libraries, root / "usr/bin", root / "dev", root / "proc/driver/nvidia-caps"):
        folder.mkdir(parents=True, exist_ok=True)
    for name in ("libcuda.so", "libnvidia-ml.so", "libnvidia-glcore.so"):
        (libraries / f"{name}.535.129.03").touch()
    for name in ("libcuda.so", "libnvidia-ml.so"):
        (libraries / f"{name}.1").symlink_to(f"{name}.535.129.03")
    (root / "usr/bin/nvidia-smi").touch()
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{i}" for i in range(gpus))):
        (root / "dev" / name).touch()
    lines = [
        f"gpu{i}/gi{gi}{ci}/access {100 * i + 2 * gi + bool(ci)}"
        for i in range(gpus)
        for gi in range(15)
        for ci in ("", "/ci0")
    ]
    (root / "proc/driver/nvidia-caps/mig-minors").write_text("\n".join(lines) + "\n")
    (root / "proc/devices").write_text("Character devices:\n195 nvidia\n236 nvidia-caps\n")
    return DriverFiles(root, root / "dev", root / "proc")


class Node:
    """What is on the disk and in the GPUs below `root`, and a process that works on it; `restart` begins another."""

    def __init__(self, root: Path, found: Host) -> None:
        self.root = root
        self.found = found
        (root / "silicon").mkdir(exist_ok=True, parents=True)
        self.silicon = Silicon(root / "silicon/state.json")
        self.files = driver_tree(root / "driver") if not (root / "driver").exists() else self._tree()
        self.cdi = CdiFolder(root / "cdi")
        self.prepared = self._process()

    def _tree(self) -> DriverFiles:
        return DriverFiles(self.root / "driver", self.root / "driver/dev", self.root / "driver/proc")

    def _process(self) -> Prepared:
        path = self.root / "plugin/claims.json"
        prepared = Prepared(path, self.cdi, self.files, self.silicon, self.silicon.interval)
        prepared.host = self.silicon.seen(self.found)
        return prepared

    def restart(self) -> None:
        self.prepared = self._process()
        self.prepared.recover()

    def devices(self) -> dict[str, Offered]:
        return {each.name: each for each in offered(self.silicon.seen(self.found), True, self.prepared.made)}

    def wanted(self, *names: str, interval: int = 0, admin: bool = False) -> tuple[WantedClaim, ...]:
        devices = self.devices()
        return tuple(WantedClaim(devices[name], "r", "", admin, interval) for name in names)

    def prepare(self, uid: str, *names: str, interval: int = 0) -> None:
        self.prepared.prepare(uid, "ns", f"claim-{uid}", self.wanted(*names, interval=interval))

    def troubles(self, others: Collection[str] = ()) -> list[str]:
        """Where records, CDI files and GPUs differ. `others` are the uuids of instances that somebody
        else made."""
        records = self.prepared.records
        found = [f"{uid} is half done" for uid, record in records.items() if not record.complete]
        files = {f"dovetail.dev-claim_{uid}" for uid in records}
        if self.cdi.names() != files:
            found.append(f"CDI files {sorted(self.cdi.names())}, records {sorted(files)}")
        if left := sorted(path.name for path in self.root.glob("cdi/*.new")):
            found.append(f"left over: {left}")
        made = {each.uuid for record in records.values() for each in record.devices if each.made}
        if self.silicon.live().keys() != made | set(others):
            found.append(f"instances {self.silicon.live()}, records {sorted(made)}")
        sliced = {d.gpu: d.interval for record in records.values() for d in record.devices if d.interval}
        if self.silicon.intervals != sliced:
            found.append(f"intervals {self.silicon.intervals}, records {sliced}")
        devices = [(uid, device) for uid, record in records.items() for device in record.devices]
        found += [
            f"{one.name} of {uid} and {two.name} of {other} overlap"
            for i, (uid, one) in enumerate(devices)
            for other, two in devices[:i]
            if one.overlaps(two)
        ]
        for name in self.cdi.names():
            text = (self.root / f"cdi/{name}.json").read_text()
            record = records.get(name.removeprefix("dovetail.dev-claim_"))
            for device in record.devices if record is not None else ():
                if f"nvidia{device.gpu.removeprefix('GPU-')}" not in text:
                    found.append(f"{name} lacks {device.name}")
        return found
