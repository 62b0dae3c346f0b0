# SPDX-License-Identifier: Apache-2.0
"""The instances of a namespace that can sleep, as their pods declare it.

Rules
- What counts for the memory is the record that was written with the bind, as it counts for the scheduler: a pod that
  changes its annotations changes nothing.
- GPUs are those of the record. Where the node's GPUs are only counted, its instances take turns as if all of them were
  on the same GPU.
- `dovetail.dev/turn` is what was last done to an instance, and when. One from before its container started
  does not count.
- A pod with the init container `dovetail-turn` starts in its turn; any other starts when the kubelet starts it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.model import GPU, SHARED_GPU
from dovetail.kube.objects.base import epoch_ms, time_text
from dovetail.kube.objects.pods import Container, Pod
from dovetail.kube.translate.annotations import TURN, indices_of, options_of
from dovetail.kube.translate.bound import Bound, read
from dovetail.sleeping.engines import ENGINES, SleepEngine

GATE = "dovetail-turn"
_MOST_PORT = 65535


class TurnStep(StrEnum):
    """What was last done to an instance. `start`: it may start."""

    NONE = ""
    START = "start"
    WAKING = "waking"
    AWAKE = "awake"
    FALLING_ASLEEP = "falling-asleep"
    ASLEEP = "asleep"


class TurnRecord(Struct, frozen=True):
    """The step and its time (epoch ms)."""

    step: TurnStep = TurnStep.NONE
    at_ms: int = 0

    @property
    def text(self) -> str:
        """As the annotation has it."""
        return f"{self.step} {time_text(self.at_ms)}"


class Sleeper(Struct, frozen=True):
    """An instance that can sleep. `gated`: it starts only in its turn. `running`: its container runs, since
    `started_ms`. `gate_waits`: its init container waits for the turn now. `wanted_ms` is since when it wants to be
    awake."""

    name: str
    uid: str
    node: str
    gpus: tuple[str, ...]
    awake_mib: int
    asleep_mib: int
    engine_name: str
    port: int
    gated: bool
    gate_waits: bool
    running: bool
    started_ms: int
    created_ms: int
    wanted_ms: int
    record: TurnRecord

    @property
    def engine(self) -> SleepEngine:
        """The calls that put it to sleep and wake it."""
        return ENGINES[self.engine_name]

    @property
    def extra_mib(self) -> int:
        """What it has more of each GPU while it is awake."""
        return self.awake_mib - self.asleep_mib


class Unusable(Struct, frozen=True):
    """A pod that declares that it can sleep, and why it takes no turns all the same."""

    name: str
    because: str


def sleepers_of(pods: Iterable[Pod]) -> tuple[list[Sleeper], list[Unusable]]:
    """The instances among these pods of one namespace that are on a node, and those that cannot be used."""
    found, unusable = list[Sleeper](), list[Unusable]()
    for pod in pods:
        if pod.status.phase in ("Succeeded", "Failed") or not pod.spec.node_name:
            continue
        bound = read(pod).bound
        if not bound.recorded or not bound.gpu_asleep_mib:
            continue
        options = options_of(pod.metadata)
        if not options.sleep_engine:
            unusable.append(Unusable(pod.metadata.name, "it has no valid annotation dovetail.dev/sleep-engine"))
            continue
        found.append(_sleeper(pod, bound, options.sleep_engine, options.wake_wanted_ms))
    counted = {one.node for one in found if not one.gpus}
    return [_on_one(one) if one.node in counted else one for one in found], unusable


def _sleeper(pod: Pod, bound: Bound, engine_name: str, wanted_ms: int) -> Sleeper:
    meta, node = pod.metadata, pod.spec.node_name
    container = next((one for one in pod.spec.containers if _asks(one)), Container())
    states = {one.name: one.state for one in (*pod.status.container_statuses, *pod.status.init_container_statuses)}
    state, gate = states.get(container.name), states.get(GATE)
    started_ms = epoch_ms(state.running.started_at) if state is not None and state.running is not None else 0
    record = turn_of(meta.annotations.get(TURN, ""))
    if started_ms and record.at_ms < started_ms // 1000 * 1000 and record.step is not TurnStep.START:
        record = TurnRecord()
    stated = [one.container_port for one in container.ports if 0 < one.container_port <= _MOST_PORT]
    return Sleeper(
        meta.name, meta.uid, node, tuple(f"{node}/{index}" for index in indices_of(bound.devices) or ()),
        bound.gpu_memory_mib, bound.gpu_asleep_mib, engine_name, (stated or [ENGINES[engine_name].port])[0],
        any(one.name == GATE for one in pod.spec.init_containers), gate is not None and gate.running is not None,
        state is not None and state.running is not None, started_ms, epoch_ms(meta.creation_timestamp), wanted_ms,
        record,
    )  # fmt: skip


def _asks(container: Container) -> bool:
    return any(name in container.resources.limits for name in (GPU, SHARED_GPU))


def _on_one(one: Sleeper) -> Sleeper:
    return replace(one, gpus=(f"{one.node}/?",))


def turn_of(text: str) -> TurnRecord:
    """What the annotation records; nothing where it is not ours."""
    step, _, at = text.partition(" ")
    if step not in tuple(TurnStep) or len(text) > 64:
        return TurnRecord()
    try:
        moment = datetime.strptime(at, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return TurnRecord()
    return TurnRecord(TurnStep(step), epoch_ms(moment))
