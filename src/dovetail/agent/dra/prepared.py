# SPDX-License-Identifier: Apache-2.0
"""The claims that are prepared on this node: their devices, MIG instances and CDI files, whatever ends the process.

Rules
- What will be done is written down before anything is done; that it is done, after. So a record says `complete` where
  its containers can start, else that something of it may be there and has to be undone.
- To undo is the same at all times: after a failure, when the claim ends, and at the next start; and does nothing where
  nothing is there. A record goes last.
- A device is prepared for one claim at a time: no part of its GPU is in another record, admin access aside.
- Instances that somebody else made are used and left as they are.
- A time slice (`timeslices`) is no device: that it cannot be set fails the claim, that it cannot be put back nothing.
- The pod of a dead GPU must be able to end. What cannot be undone because its GPU does not answer stays on record,
  keeps its devices from others, and is undone when the GPU is back. A GPU that is gone took all with it.
- After a reboot instances are gone and CDI files may be: files are written again, claims without their instances are
  forgotten, and the kubelet asks for them anew.
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
"""What can go wrong with one claim."""

_FILE = "dovetail.dev-claim_"


class TakenDevice(ClaimError):
    """A device is prepared for another claim, that with uid `by`."""

    def __init__(self, device: str, by: PreparedRecord) -> None:
        self.by = by.uid
        super().__init__(
            f"{device} is still prepared for the claim {by.namespace}/{by.name} ({by.uid}); it can be had when the "
            "pods of that claim have ended on this node"
        )


class WantedClaim(Struct, frozen=True):
    """A device that a claim was given. `interval` is that of time slicing, as nvidia-smi counts it."""

    device: Offered
    request: str
    share: str = ""
    admin: bool = False
    interval: int = 0


class PreparedDevice(Struct, frozen=True, omit_defaults=True):
    """A device of a record. `uuid` is that of the GPU or instance, "" until it is known; `made`: the instance was made
    for the claim, and ends with it."""

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
    """The name by which a runtime finds a device of a claim."""
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
        """By the uid of the claim; read only for others."""
        return self._records

    @property
    def made(self) -> dict[Place, str]:
        """The instances that are, or may be, there for claims, with their uuids."""
        devices = [device for record in self._records.values() for device in record.devices]
        return {(each.gpu, each.profile, each.start): each.uuid for each in devices if each.made}

    def recover(self) -> None:
        """At the start, with the host known: finishes or undoes what the process before left. Raises CdiError."""
        self._cdi.clean()
        for record in list(self._records.values()):
            with _said(f"claim {record.namespace}/{record.name} cannot be put in order"):
                if not record.complete or not self._intact(record):
                    self._undo(record)
                elif self.host.gpus:
                    self._write(record)
        for name in self._cdi.names():
            if name.startswith(_FILE) and name.removeprefix(_FILE) not in self._records:
                self._cdi.remove(name)
        self._finish_slices()

    def finish(self) -> None:
        """Undoes what could not be undone before."""
        for record in list(self._records.values()):
            if not record.complete:
                with _said(f"claim {record.namespace}/{record.name} cannot be unprepared yet"):
                    self._undo(record)
        self._finish_slices()

    def _finish_slices(self) -> None:
        in_use = {device.gpu for record in self._records.values() for device in record.devices if device.interval}
        self._slices.finish({gpu.uuid for gpu in self.host.gpus}, in_use)

    def prepare(self, uid: str, namespace: str, name: str, wanted: Sequence[WantedClaim]) -> PreparedRecord:
        """Raises what is in FAILURES; then nothing is prepared, or what could not be undone is on record."""
        record = self._records.get(uid)
        if record is not None:
            if record.complete and _asks(record) == _asked(wanted) and self._intact(record):
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
            # Those that were not reached have the time slice that they had.
            reached = len(made) + (not isinstance(error, NotSet))
            left = (each if i < reached else replace(each, interval=0) for i, each in enumerate(devices))
            with _said(f"claim {namespace}/{name} cannot be unprepared yet"):
                self._undo(replace(self._records[uid], devices=tuple(left)))
            raise
        return record

    def unprepare(self, uid: str) -> None:
        """Does nothing for a claim that is not prepared. Raises what is in FAILURES."""
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
        """Raises Taken where another claim has it; what is left of one that ended is undone first."""
        for other in list(self._records.values()):
            if any(device.overlaps(its) for its in other.devices):
                if other.complete:
                    raise TakenDevice(device.name, other)
                self._undo(other)

    def _plan(self, wanted: WantedClaim) -> PreparedDevice:
        offered = wanted.device
        device = PreparedDevice(
            offered.name, wanted.request, offered.gpu.uuid, wanted.share, wanted.admin, wanted.interval
        )
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
            raise ClaimError(
                f"{offered.name} does not exist: it is made for a claim that uses it, not for a look at it"
            )
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
            return self._files.gpu(gpu)
        instance = self._partitions.find(gpu, partition)
        if instance is None:
            raise ClaimError(f"the MIG instance {device.name} ({device.uuid}) is not there any more")
        return self._files.instance(gpu, instance)

    def _intact(self, record: PreparedRecord) -> bool:
        """Whether no MIG instance of it is known to be gone. Of a GPU that cannot be read nothing is."""
        for device in record.devices:
            gpu, partition = self.host.gpu(device.gpu), device.partition
            if gpu is None or partition is None or self._unread(gpu):
                continue
            if not self._alive(gpu, partition, device.uuid):
                return False
        return True

    def _unread(self, gpu: Gpu) -> bool:
        """Whether it cannot be told how the GPU is divided."""
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
        """On disk first: a record that could not be written is not there."""
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
def _said(what: str) -> Iterator[None]:
    try:
        yield
    except FAILURES as error:
        log.warning("%s: %s", what, error)
