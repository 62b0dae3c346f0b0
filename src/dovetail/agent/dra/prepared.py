# SPDX-License-Identifier: Apache-2.0
"""The prepared claims of this node: devices, MIG instances and CDI files, with records that survive the process.

Rules
- A record is written before a claim is prepared, and set `complete` after. Containers of a complete record can start;
  of any other record a part may exist and has to be undone.
- Undoing is the same after a failure, at the end of the claim, and at the next start. It does nothing if nothing
  exists, and removes the record last.
- A device is prepared for one claim at a time, except with admin access: no other record has a part of it.
- Instances that were created outside of the agent are used and left as they are.
- A time slice (`timeslices`) that cannot be set fails the claim. One that cannot be put back fails nothing.
- The pod of a dead GPU must be able to end. If undoing fails because the GPU does not answer, the record stays, its
  devices are kept from other claims, and it is undone when the GPU is back. For a GPU that is gone nothing has to be
  undone.
- After a reboot the instances are gone, and CDI files may be. Files are written again, records without their instances
  are removed, and the kubelet prepares their claims again.
Calls block. Not for several threads at once.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dovetail.agent.cdi import CLAIM_KIND, CdiError, CdiFolder, Edits
from dovetail.agent.checkpoint import CheckpointError, CheckpointFile
from dovetail.agent.dra.configs import ClaimError
from dovetail.agent.dra.offer import Offered, Partition, Place
from dovetail.agent.dra.partitions import Partitions
from dovetail.agent.dra.timeslices import NotSet, TimeSlices
from dovetail.agent.machine.driver_files import DriverFiles, DriverFilesError
from dovetail.agent.machine.host import Gpu, GpuInstance, Host
from dovetail.agent.machine.nvml import IN_USE, NvmlError

log = logging.getLogger(__name__)

FAILURES = (ClaimError, NvmlError, CdiError, DriverFilesError, CheckpointError)
"""The errors that fail one claim."""

_FILE = "dovetail.dev-claim_"


class TakenDevice(ClaimError):
    """A device is prepared for another claim; `by` is the uid of that claim."""

    def __init__(self, device: str, by: PreparedRecord) -> None:
        self.by = by.uid
        super().__init__(
            f"{device} is still prepared for the claim {by.namespace}/{by.name} ({by.uid}); it is available when the "
            "pods of that claim have ended on this node"
        )


class WantedClaim(Struct, frozen=True):
    """A device that is allocated to a claim. `interval` is that of time slicing, with nvidia-smi's numbers. `network`
    is what its containers get for their network."""

    device: Offered
    request: str
    share: str = ""
    admin: bool = False
    interval: int = 0
    network: Edits = Edits()

    @property
    def whole_gpu(self) -> str:
        """The uuid of the GPU that containers get as a whole for themselves, "" for any other device."""
        return self.device.gpu.uuid if self.device.partition is None and not self.admin else ""


class PreparedDevice(Struct, frozen=True, omit_defaults=True):
    """A device of a record. `uuid` is that of the GPU or instance, "" until it is known. `made`: the instance is
    created for the claim, and destroyed with it. `network` stays as prepared: containers may be created again."""

    name: str
    request: str
    gpu: str
    share: str = ""
    admin: bool = False
    interval: int = 0
    profile: str = ""
    profile_id: int = 0
    start: int = 0
    size: int = 0
    made: bool = False
    uuid: str = ""
    network: Edits = Edits()

    @property
    def whole_gpu(self) -> str:
        """As `WantedClaim.whole_gpu`."""
        return self.gpu if self.partition is None and not self.admin else ""

    @property
    def partition(self) -> Partition | None:
        return Partition(self.profile, self.profile_id, self.start, self.size) if self.size else None

    def overlaps(self, other: PreparedDevice) -> bool:
        if self.gpu != other.gpu or self.admin or other.admin:
            return False
        own, its = self.partition, other.partition
        return own is None or its is None or own.overlaps(its.start, its.size)


class PreparedRecord(Struct, frozen=True):
    uid: str
    namespace: str
    name: str
    devices: tuple[PreparedDevice, ...]
    complete: bool = False


def cdi_id(uid: str, device: str) -> str:
    """The CDI name of a device of a claim."""
    return f"{CLAIM_KIND}={uid}-{device}"


class Prepared:
    """`interval` sets the time slice of a GPU, see `timeslices`. Raises CheckpointError."""

    def __init__(
        self,
        checkpoint: Path,
        cdi: CdiFolder,
        files: DriverFiles,
        partitions: Partitions,
        interval: Callable[[str, int], None],
    ) -> None:
        self._checkpoint = CheckpointFile(checkpoint, dict[str, PreparedRecord])
        self._cdi = cdi
        self._files = files
        self._partitions = partitions
        self._slices = TimeSlices(checkpoint.with_name("timeslices.json"), interval)
        self._records: dict[str, PreparedRecord] = self._checkpoint.read() or {}
        self.host = Host()

    @property
    def records(self) -> dict[str, PreparedRecord]:
        """The records by the uid of the claim; callers only read."""
        return self._records

    @property
    def made(self) -> dict[Place, str]:
        """The instances that exist, or may exist, for claims, with their uuids."""
        devices = [device for record in self._records.values() for device in record.devices]
        return {(each.gpu, each.profile, each.start): each.uuid for each in devices if each.made}

    def recover(self) -> None:
        """At the start, when the host is known: finish or undo the records of the process before. Raises CdiError."""
        self._cdi.clean()
        for record in list(self._records.values()):
            with _logged(f"claim {record.namespace}/{record.name} cannot be put in order"):
                if not record.complete or not self._intact(record):
                    self._undo(record)
                elif self.host.gpus:
                    self._write(record)
        for name in self._cdi.names():
            if name.startswith(_FILE) and name.removeprefix(_FILE) not in self._records:
                self._cdi.remove(name)
        self._finish_slices()

    def finish(self) -> None:
        """Undo the records that could not be undone before."""
        for record in list(self._records.values()):
            if not record.complete:
                with _logged(f"claim {record.namespace}/{record.name} cannot be unprepared yet"):
                    self._undo(record)
        self._finish_slices()

    def _finish_slices(self) -> None:
        in_use = {device.gpu for record in self._records.values() for device in record.devices if device.interval}
        self._slices.finish({gpu.uuid for gpu in self.host.gpus}, in_use)

    def prepare(self, uid: str, namespace: str, name: str, wanted: Sequence[WantedClaim]) -> PreparedRecord:
        """Prepare a claim. Raises FAILURES; then nothing is prepared, or the record has what could not be undone."""
        record = self._records.get(uid)
        if record is not None:
            if self.keeps(uid, wanted):
                self._write(record)
                return record
            self._undo(record)
        devices = tuple(self._plan(each) for each in wanted)
        for device in devices:
            self._clear(device)
        record = PreparedRecord(uid, namespace, name, devices)
        self._put(record)
        made: list[PreparedDevice] = []
        try:
            for device in devices:
                made.append(self._make(device))
            record = replace(record, devices=tuple(made))
            self._write(record)
            record = replace(record, complete=True)
            self._put(record)
        except FAILURES as error:
            # The time slices of the other devices are unchanged.
            reached = len(made) + (not isinstance(error, NotSet))
            left = (each if i < reached else replace(each, interval=0) for i, each in enumerate(devices))
            with _logged(f"claim {namespace}/{name} cannot be unprepared yet"):
                self._undo(replace(self._records[uid], devices=tuple(left)))
            raise
        return record

    def keeps(self, uid: str, wanted: Sequence[WantedClaim]) -> bool:
        """Whether the claim is prepared with these devices, so that it stays as it is."""
        record = self._records.get(uid)
        return record is not None and record.complete and _asks(record) == _asked(wanted) and self._intact(record)

    def unprepare(self, uid: str) -> None:
        """Undo a claim, if it is prepared. Raises FAILURES."""
        record = self._records.get(uid)
        if record is None:
            self._cdi.remove(_FILE + uid)
            return
        try:
            self._undo(record)
        except (NvmlError, ClaimError) as error:
            if isinstance(error, NvmlError) and error.code == IN_USE:
                raise
            log.warning("claim %s/%s: %s; its devices are kept from others", record.namespace, record.name, error)

    def _undo(self, record: PreparedRecord) -> None:
        if record.complete:
            record = replace(record, complete=False)
            self._put(record)
        self._cdi.remove(_FILE + record.uid)
        for device in record.devices:
            gpu, partition = self.host.gpu(device.gpu), device.partition
            if gpu is not None and device.interval:
                self._slices.put_back(gpu.uuid)
            if device.made and partition is not None:
                if not self.host.gpus or (gpu is not None and self._unread(gpu)):
                    raise ClaimError(f"{device.name} cannot be undone while its GPU cannot be read")
                if gpu is not None and gpu.mig is not None:
                    self._partitions.destroy(gpu, partition)
        self._put(record, gone=True)

    def _clear(self, device: PreparedDevice) -> None:
        """Undo incomplete records that have the device. Raises TakenDevice if a complete record has it."""
        for other in list(self._records.values()):
            if any(device.overlaps(its) for its in other.devices):
                if other.complete:
                    raise TakenDevice(device.name, other)
                self._undo(other)

    def _plan(self, wanted: WantedClaim) -> PreparedDevice:
        offered = wanted.device
        device = PreparedDevice(
            offered.name, wanted.request, offered.gpu.uuid, wanted.share, wanted.admin, wanted.interval,
            network=wanted.network,
        )  # fmt: skip
        partition = offered.partition
        if partition is None:
            return replace(device, uuid=offered.gpu.uuid)
        device = replace(
            device, profile=partition.profile, profile_id=partition.id, start=partition.start, size=partition.size
        )
        if offered.instance is not None:
            return replace(device, uuid=offered.instance.uuid)
        if not wanted.admin:
            return replace(device, made=True)
        found = self._partitions.find(offered.gpu, partition)
        if found is None:
            raise ClaimError(f"{offered.name} does not exist: it is not created for a claim with admin access")
        return replace(device, uuid=found.uuid)

    def _make(self, device: PreparedDevice) -> PreparedDevice:
        gpu, partition = self._gpu(device), device.partition
        if device.interval:
            self._slices.set(gpu.uuid, device.interval)
        if partition is None:
            return device
        found = self._partitions.make(gpu, partition) if device.made else self._partitions.find(gpu, partition)
        if found is None:
            raise ClaimError(f"the MIG instance {device.name} ({device.uuid}) is not there any more")
        return replace(device, uuid=found.uuid)

    def _write(self, record: PreparedRecord) -> None:
        """The CDI file."""
        devices = {f"{record.uid}-{device.name}": self._edits(device) for device in record.devices}
        self._cdi.write(_FILE + record.uid, CLAIM_KIND, devices, self._files.common(self.host))

    def _edits(self, device: PreparedDevice) -> Edits:
        gpu, partition = self._gpu(device), device.partition
        if partition is None:
            return self._files.gpu(gpu) + device.network
        instance = self._partitions.find(gpu, partition)
        if instance is None:
            raise ClaimError(f"the MIG instance {device.name} ({device.uuid}) is not there any more")
        return self._files.instance(gpu, instance)

    def _intact(self, record: PreparedRecord) -> bool:
        """Whether none of its MIG instances is known to be gone. On a GPU that cannot be read none is."""
        for device in record.devices:
            gpu, partition = self.host.gpu(device.gpu), device.partition
            if gpu is None or partition is None or self._unread(gpu):
                continue
            if not self._alive(gpu, partition, device.uuid):
                return False
        return True

    def _unread(self, gpu: Gpu) -> bool:
        """Whether the division of the GPU cannot be read."""
        return any(each.what.startswith(f"gpus[{gpu.index}].mig") for each in self.host.unread)

    def _alive(self, gpu: Gpu, partition: Partition, uuid: str) -> bool:
        found: GpuInstance | None = self._partitions.find(gpu, partition) if gpu.mig is not None else None
        return found is not None and found.uuid == uuid

    def _gpu(self, device: PreparedDevice) -> Gpu:
        gpu = self.host.gpu(device.gpu)
        if gpu is None:
            raise ClaimError(f"{device.name}: the GPU {device.gpu} is not there any more")
        return gpu

    def _put(self, record: PreparedRecord, *, gone: bool = False) -> None:
        """Write or remove a record, on disk first: if that fails, nothing changes."""
        records = {uid: each for uid, each in self._records.items() if uid != record.uid}
        if not gone:
            records[record.uid] = record
        self._checkpoint.write(records)
        self._records = records


def _asked(wanted: Sequence[WantedClaim]) -> set[tuple[str, str, str, bool, int]]:
    return {(each.device.name, each.request, each.share, each.admin, each.interval) for each in wanted}


def _asks(record: PreparedRecord) -> set[tuple[str, str, str, bool, int]]:
    return {(each.name, each.request, each.share, each.admin, each.interval) for each in record.devices}


@contextlib.contextmanager
def _logged(what: str) -> Iterator[None]:
    try:
        yield
    except FAILURES as error:
        log.warning("%s: %s", what, error)
