# SPDX-License-Identifier: Apache-2.0
"""Joins the readings of the GPUs with their owners.

Rules
- Owners are read with each scrape. The values of a reading that began before the last change of a device's owners are
  not exported, and profiling values are left out if their time began before it: no value is counted for the wrong pod.
  That the owner holds the device, and its share, are exported all the same.
- A reading that began up to `READ_S` before the scrape serves it: for scrapes that come at a steady period it was read
  ahead (`read_ahead`). All other scrapes read the GPUs.
- A lost GPU keeps what other parts of the agent know of it: its XIDs, its health, its owner.
- A device with several owners has its series once for each. A free device has them without pod labels.
- Scrapes share one result for `FRESH_S`. While owners are not known, no series names one.
  Without known owners there are no series of processes: those of an owner would count as another pod's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from dovetail.agent.exporter.kinds import Kind
from dovetail.agent.exporter.read_ahead import ReadAhead
from dovetail.agent.exporter.reading import DeviceReading, GpuReading, Owner, Owners, PodValues, Sample
from dovetail.agent.exporter.sampler import Sampled, Sampler
from dovetail.agent.exporter.text import Series, Writer, labels_of
from dovetail.agent.exporter.use_hours import OWNERS_S

FRESH_S = 1.0
READ_S = 2.0
OWNERS_PATIENCE_S = 1.0
_PROFILING = "DCGM_FI_PROF_"
log = logging.getLogger(__name__)


async def nobody() -> Owners | None:
    """No device has an owner."""
    return Owners({}, time.monotonic())


class Parts(Struct, frozen=True):
    """The parts of the agent that add to the readings. `owners` returns None if they are not known
    now. `use` gets the readings and their owners, if these are known; `owned` gets the owners each time when they are
    read, None if they are not known; `samples` are of other parts."""

    owners: Callable[[], Awaitable[Owners | None]] = nobody
    use: Callable[[Sequence[GpuReading], Owners], PodValues] = lambda _readings, _owners: PodValues()
    samples: Callable[[], Iterable[Sample]] = lambda: ()
    owned: Callable[[Owners | None], None] = lambda _owners: None


class KnownDevice(Struct, frozen=True):
    """The last reading of a device, for its labels; and the label kinds of its GPU."""

    device: DeviceReading
    texts: dict[str, str]


class Exporter:
    """The text of a scrape. `kinds` are exported; `job_labels`: with the labels queue, job and owner."""

    def __init__(
        self,
        sampler: Sampler,
        kinds: Mapping[str, Kind],
        node_name: str,
        parts: Parts = Parts(),  # noqa: B008 - frozen
        *,
        job_labels: bool = False,
    ) -> None:
        self._sampler, self._node_name, self._parts, self._job_labels = sampler, node_name, parts, job_labels
        self._texts = tuple(kind.name for kind in kinds.values() if kind.type == "label")
        self._ahead = ReadAhead(lambda: sampler.begin(time.monotonic() - FRESH_S))
        self._writer = Writer(kind for kind in kinds.values() if kind.type != "label")
        self._owners = Owners({}, time.monotonic())
        self._owners_known = False
        self._changed_s: dict[str, float] = {}
        self._known: dict[str, KnownDevice] = {}
        self._asking: asyncio.Future[Owners | None] | None = None
        self._scraping: asyncio.Task[None] | None = None
        self._kinds: dict[str, str] = {}
        self._text = b""
        self._text_s = float("-inf")
        self.fault = ""
        """Why owners are unknown, as a sentence for an operator."""

    async def scrape(self, names: Collection[str] = ()) -> bytes:
        """The metrics in Prometheus' text format: all, or those with these names."""
        if time.monotonic() - self._text_s >= FRESH_S:
            if self._scraping is None or self._scraping.done():
                self._scraping = asyncio.create_task(self._scrape())
            await asyncio.shield(self._scraping)
        if not names:
            return self._text
        return "".join(text for name, text in self._kinds.items() if name in names).encode()

    async def follow_owners(self) -> None:
        """Read the owners again and again, also while nothing is scraped, until cancelled."""
        while True:
            await self._read_owners()
            await asyncio.sleep(OWNERS_S)

    async def _scrape(self) -> None:
        begun_s = time.monotonic()
        self._ahead.scraped(begun_s)
        owners = await self._read_owners()
        fresh_s = max((begun_s - READ_S, *self._changed_s.values()))
        sampled = await self._sampler.read(fresh_s)
        self._kinds = self._writer.write(list(self._series(sampled, owners)))
        self._text = "".join(self._kinds.values()).encode()
        self._text_s = begun_s

    async def _read_owners(self) -> Owners:
        """The owners now, none if they are not known: what may be kept for a while is kept where they are read."""
        # Several may wait for one answer: a scrape, and the loop that follows the owners.
        asking = self._asking = self._asking or asyncio.ensure_future(self._parts.owners())
        try:
            owners = await asyncio.wait_for(asyncio.shield(asking), OWNERS_PATIENCE_S)
            fault = "" if owners is not None else "owners of GPUs are not known: the kubelet does not list them"
        except TimeoutError:
            owners, fault = None, "owners of GPUs are not known: the kubelet does not answer"
        if asking.done() and self._asking is asking:
            self._asking = None
        if fault != self.fault:
            log.warning("%s", fault or "owners of GPUs are known again")
            self.fault = fault
        self._owners_known = owners is not None
        self._parts.owned(owners)
        self._learn(owners or Owners({}, self._owners.read_s))
        return self._owners

    def _learn(self, owners: Owners) -> None:
        before, now_s = self._owners.by_device, time.monotonic()
        for uuid in before.keys() | owners.by_device.keys():
            if before.get(uuid) != owners.by_device.get(uuid):
                self._changed_s[uuid] = now_s
        self._owners = owners

    def _series(self, sampled: Sequence[Sampled], owners: Owners) -> Iterator[Series]:
        use = PodValues()
        if self._owners_known:
            use = self._parts.use([one.reading for one in sampled], owners)
        samples: dict[str, list[Sample]] = {}
        for sample in (*use.samples, *self._parts.samples(), *self._own(sampled)):
            samples.setdefault(sample.uuid, []).append(sample)
        host = ("hostname", self._node_name)
        yield from _plain((host,), samples.get("", ()))
        for lost in self._lost(sampled, samples):
            owned = [sample for sample in samples[lost.device.uuid] if sample.owned]
            yield from self._of_owners(lost, {}, owned, owners, use)
        for one in sampled:
            begun_s = one.reading.read_s - one.took_s
            for device in one.reading.devices:
                self._known[device.uuid] = known = KnownDevice(device, one.texts)
                changed_s = self._changed_s.get(device.uuid, float("-inf"))
                labels = self._labels(device, one.texts)
                mine = samples.get(device.uuid, ())
                yield from _plain(labels, [sample for sample in mine if not sample.owned])
                values = {} if begun_s < changed_s else device.values
                if one.since_s < changed_s:
                    values = {name: each for name, each in values.items() if not name.startswith(_PROFILING)}
                owned = [sample for sample in mine if sample.owned]
                yield from self._of_owners(known, values, owned, owners, use if values else PodValues())

    def _lost(self, sampled: Sequence[Sampled], samples: Collection[str]) -> Iterator[KnownDevice]:
        """The devices without a reading of which other parts know something: their faults."""
        read = {device.uuid for one in sampled for device in one.reading.devices}
        for uuid in self._known.keys() & samples:
            if uuid not in read:
                yield self._known[uuid]

    def _of_owners(
        self,
        known: KnownDevice,
        values: dict[str, float],
        samples: Sequence[Sample],
        owners: Owners,
        use: PodValues,
    ) -> Iterator[Series]:
        """The series of a device, once for each owner."""
        labels = self._labels(known.device, known.texts)
        for owner in owners.by_device.get(known.device.uuid) or (None,):
            yield from self._owned(known.device, values, owner, labels, samples, use)

    def _owned(
        self,
        device: DeviceReading,
        values: dict[str, float],
        owner: Owner | None,
        labels: tuple[tuple[str, str], ...],
        samples: Sequence[Sample],
        use: PodValues,
    ) -> Iterator[Series]:
        """The series of a device for one of its owners, or for none."""
        merged = {**values, "dovetail_gpu_allocated_share": owner.share if owner is not None else 0.0}
        if owner is not None:
            merged.update(use.values.get((device.uuid, owner.pod_uid), ()))
            labels += self._owner_labels(owner)
        merged.update((sample.name, sample.value) for sample in samples if not sample.labels)
        yield Series(labels_of(labels), merged, device.labelled if values else {})
        yield from _plain(labels, [sample for sample in samples if sample.labels])

    def _labels(self, device: DeviceReading, texts: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        labels = [
            ("gpu", str(device.gpu)),
            ("UUID", device.parent or device.uuid),
            ("pci_bus_id", device.pci_bus_id),
            ("device", f"nvidia{device.minor}" if device.minor is not None else ""),
            ("modelName", device.product),
        ]
        if device.parent:
            labels += [("GPU_I_PROFILE", device.profile), ("GPU_I_ID", str(device.gi)), ("mig_uuid", device.uuid)]
        labels += [("hostname", self._node_name), ("Hostname", self._node_name)]
        labels += [(name, texts[name]) for name in self._texts if name in texts]
        return tuple(labels)

    def _owner_labels(self, owner: Owner) -> tuple[tuple[str, str], ...]:
        labels = [("namespace", owner.namespace), ("pod", owner.pod), ("container", owner.container)]
        labels.append(("pod_uid", owner.pod_uid))
        if owner.vgpu:
            labels.append(("vgpu", owner.vgpu))
        if self._job_labels:
            labels += [("queue", owner.queue), ("job", owner.job), ("owner", owner.owner)]
        return tuple(labels)

    def _own(self, sampled: Sequence[Sampled]) -> Iterator[Sample]:
        """What the exporter measures of itself."""
        now_s = time.monotonic()
        for one in sampled:
            uuid = one.reading.devices[0].uuid
            age_s = now_s - one.reading.read_s
            yield Sample("dovetail_exporter_reading_age_seconds", age_s, uuid, owned=False)
            yield Sample("dovetail_exporter_reading_seconds", one.took_s, uuid, owned=False)
            yield Sample("dovetail_exporter_absent_kinds", len(one.reading.absent), uuid, owned=False)
        for call, count in sorted(self._sampler.errors.items()):
            yield Sample("dovetail_exporter_errors_total", count, labels=(("call", call),))
        yield Sample("dovetail_exporter_owners_age_seconds", now_s - self._owners.read_s)
        yield Sample("dovetail_gpu_found", len(sampled))


def _plain(labels: tuple[tuple[str, str], ...], samples: Iterable[Sample]) -> Iterator[Series]:
    """Samples with these labels and their own."""
    groups: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for sample in samples:
        groups.setdefault(sample.labels, {})[sample.name] = sample.value
    for own, values in groups.items():
        yield Series(labels_of((*labels, *own)), values)
