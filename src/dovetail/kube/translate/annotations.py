# SPDX-License-Identifier: Apache-2.0
"""The labels and annotations of users under `dovetail.dev/`: one table, with the rule of each.

Rules
- They are read on pods, on PodGroups and on the workload objects that own pods; those of `lease-duration` and
  `lease-class` on the endpoints of software agents alone (`agentplanes`).
- An invalid value, a known key in the wrong place and an unknown key each give a Problem with the field's path, the
  value, the rule and the nearest valid value or key. Only the keys that we write are skipped.
- Levels are node label keys, the widest first, separated by commas. They have short names: region, zone
  (topology.kubernetes.io/...), datacenter, spine, block (network.topology.nvidia.com/...), rack (dovetail.dev/rack),
  clique (nvidia.com/gpu.clique), host (kubernetes.io/hostname).
  On a pod without a gang, levels have no effect: a single pod is always inside one domain.
- `gpu-memory` (in MiB) and `gpu-fraction` (in thousandths) are the pod's need of each of its GPUs, rounded up;
  `gpu-isolation` is the minimum isolation from other pods. They are read on the pod: pods of a gang may differ.
- `gpu-memory-asleep` is what of `gpu-memory` an inference engine that can sleep needs while it sleeps. `sleep-engine`
  and `wake-wanted` are for the process that gives the turns (`sleeping`); they decide nothing in the scheduler.
- The keys that we write are not read here: the record of a bound pod is in `bound`. `when-idle` is for the policy about
  idle workloads (`idlepolicy`), `network-environment` for the agent; they decide nothing in the scheduler.
- Of more than MOST_KEYS keys only the first are read, and a value longer than LONGEST is not read; both are Problems.
- `headroom` is a number of instances, or a rate at which they are added, which counts with `startup-time`: as many as
  are added while one starts, rounded up. `headroom-return` is how soon that room has to be free; alone it is a Problem.
- There is no clock here: the core checks whether `last-checkpoint` lies in the future.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.bargaining.types import ServiceClass
from dovetail.core.bounded_cache import Remembered
from dovetail.core.devices.gpu_sharing import ISOLATIONS, Isolation
from dovetail.core.model import MAX_GPUS, Problem
from dovetail.kube.objects.base import ObjectMeta
from dovetail.kube.translate import annotation_values as values
from dovetail.kube.translate.annotation_values import LEVELS, MOST_HEADROOM
from dovetail.kube.translate.durations import DURATION_RULE
from dovetail.kube.translate.limits import MOST_LEVELS
from dovetail.kube.translate.problems import nearest, shown

PREFIX = "dovetail.dev/"
DEVICES = PREFIX + "devices"
DECISION = PREFIX + "decision"
RANK = PREFIX + "rank"
BOUND = PREFIX + "bound"
IDLE_NOTICED = PREFIX + "idle-noticed"
IDLE_STOPPED = PREFIX + "idle-stopped"
DELETION_COST = PREFIX + "deletion-cost"
TURN = PREFIX + "turn"
POD_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""The pods with the lowest are the first that a ReplicaSet deletes; 0 without it."""
WRITTEN_BY_US = frozenset(
    key.removeprefix(PREFIX)
    for key in (BOUND, DECISION, DELETION_COST, DEVICES, IDLE_NOTICED, IDLE_STOPPED, RANK, TURN)
)
MEMORY, FRACTION, ISOLATION = "gpu-memory", "gpu-fraction", "gpu-isolation"
CHECKPOINT = "last-checkpoint"
ASLEEP_MEMORY, SLEEP_ENGINE, WAKE_WANTED = "gpu-memory-asleep", "sleep-engine", "wake-wanted"
SLEEP_ENGINES = ("vllm", "vllm-level-2", "sglang")
HOLD = "hold"
WHEN_IDLE = "when-idle"
NETWORK_ENVIRONMENT = "network-environment"
IDLE_CHOICES = ("suspend", "scale-to-zero", "nothing")
LEASE, FENCE = "lease", "lease-fence"
HEADROOM, HEADROOM_RETURN, STARTUP = "headroom", "headroom-return", "startup-time"
RETURN_MS = 60_000
"""How soon headroom has to be free where that is not stated: grace periods of 30 s and a little more."""
LEASE_DURATION, LEASE_CLASS = "lease-duration", "lease-class"
_LAST_CHECKPOINT = PREFIX + CHECKPOINT
_INDEX = re.compile(r"0|[1-9][0-9]?")
_DAY_MS = 86_400_000
MOST_KEYS = 32
"""The labels and annotations under the prefix that are read of one object: more than the table has."""
LONGEST = 4096
_MOST_SUGGESTIONS = 4


class WorkloadOptions(Struct, frozen=True):
    """The requests of an object in its `dovetail.dev/` labels and annotations; empty values where it has none."""

    queue: str = ""
    user: str = ""
    gang: str = ""
    gang_min: int | None = None
    gang_max: int | None = None
    required: tuple[str, ...] = ()
    preferred: tuple[str, ...] = ()
    spread: str = ""
    nvlink: str = ""
    gpu_memory_mib: int = 0
    gpu_milli: int = 0
    gpu_asleep_mib: int = 0
    sleep_engine: str = ""
    wake_wanted_ms: int = 0
    isolation: Isolation | Literal[""] = ""
    max_runtime_ms: int = 0
    checkpoint_interval_ms: int = 0
    startup_ms: int = 0
    last_checkpoint_ms: int = 0
    preemptible: bool | None = None
    movable: bool | None = None
    hold: bool | None = None
    when_idle: str = ""
    network_environment: bool | None = None
    lease: str = ""
    fence: int = 0
    headroom: int = 0
    headroom_return_ms: int = 0
    problems: tuple[Problem, ...] = ()


class Key(Struct, frozen=True):
    """`field` is the attribute of WorkloadOptions that `parse` fills, "" where only the endpoint of an agent reads the
    key; `examples` are valid values. `parse` raises ValueError."""

    field: str
    rule: str
    parse: Callable[[str], Any]
    examples: tuple[str, ...]
    place: Literal["labels", "annotations"] = "annotations"


_LEVELS_RULE = f"must be node label keys or {', '.join(LEVELS)}, separated by commas, {MOST_LEVELS} at most"
_LEVEL_RULE = f"must be one node label key, or one of {', '.join(LEVELS)}"
ENDPOINT_RULE = "is read on the endpoint of a software agent alone"
_CLASSES = tuple([one.value for one in ServiceClass])

TABLE: dict[str, Key] = {
    "queue": Key("queue", "must be the name of a queue", values.valid_name, ("default",), "labels"),
    "user": Key("user", "must be the name of a user", values.valid_name, ("ada",), "labels"),
    "gang": Key(
        "gang", "must be a name: the pods of a namespace with the same one form a gang", values.valid_name, ("my-gang",)
    ),
    "gang-min": Key("gang_min", "must be a whole number of at least 1", values.count, ("1",)),
    "gang-max": Key("gang_max", "must be a whole number of at least 1", values.count, ("1",)),
    "topology-required": Key("required", _LEVELS_RULE, values.levels, tuple(LEVELS)),
    "topology-preferred": Key("preferred", _LEVELS_RULE, values.levels, tuple(LEVELS)),
    "topology-spread": Key("spread", _LEVEL_RULE, values.one_level, tuple(LEVELS)),
    "nvlink": Key(
        "nvlink", "must be required or preferred", values.one_of("required", "preferred"), ("required", "preferred")
    ),
    MEMORY: Key(
        "gpu_memory_mib", "must be a quantity of memory of at least 1Mi", values.memory_mib, ("8Gi", "8192Mi", "8G")
    ),
    FRACTION: Key("gpu_milli", "must be a decimal number above 0 and up to 1", values.milli, ("0.5", "0.125", "1")),
    ASLEEP_MEMORY: Key(
        "gpu_asleep_mib", "must be a quantity of memory of at least 1Mi", values.memory_mib, ("2Gi", "2048Mi", "2G")
    ),
    SLEEP_ENGINE: Key(
        "sleep_engine",
        f"must be {', '.join(SLEEP_ENGINES[:-1])} or {SLEEP_ENGINES[-1]}",
        values.one_of(*SLEEP_ENGINES),
        SLEEP_ENGINES,
    ),
    WAKE_WANTED: Key(
        "wake_wanted_ms", "must be a time as in RFC 3339, with its zone", values.time_ms, ("2026-01-31T12:00:00Z",)
    ),
    ISOLATION: Key("isolation", "must be none, memory or strong", values.one_of(*ISOLATIONS), ISOLATIONS),
    "max-runtime": Key("max_runtime_ms", DURATION_RULE, values.more_than_zero_ms, ("90m", "1h30m", "2d", "3600s")),
    "checkpoint-interval": Key(
        "checkpoint_interval_ms", DURATION_RULE, values.more_than_zero_ms, ("30m", "1h30m", "600s")
    ),
    HEADROOM: Key(
        "headroom",
        f"must be a number of instances from 1 to {MOST_HEADROOM}, or a rate of them, as 6/h",
        values.headroom,
        ("1", "2"),
    ),
    HEADROOM_RETURN: Key("headroom_return_ms", DURATION_RULE, values.more_than_zero_ms, ("2s", "35s", "2m")),
    STARTUP: Key("startup_ms", DURATION_RULE, values.more_than_zero_ms, ("2m", "1m30s", "600s")),
    CHECKPOINT: Key(
        "last_checkpoint_ms", "must be a time as in RFC 3339, with its zone", values.time_ms, ("2026-01-31T12:00:00Z",)
    ),
    "preemptible": Key("preemptible", "must be true or false", values.truth, ("true", "false")),
    "movable": Key("movable", "must be true or false", values.truth, ("true", "false")),
    HOLD: Key("hold", "must be true or false", values.truth, ("true", "false")),
    WHEN_IDLE: Key(
        "when_idle", "must be suspend, scale-to-zero or nothing", values.one_of(*IDLE_CHOICES), IDLE_CHOICES
    ),
    NETWORK_ENVIRONMENT: Key("network_environment", "must be true or false", values.truth, ("true", "false")),
    LEASE: Key(
        "lease", "must be the name of a GPULease in the namespace of the pod", values.object_name, ("my-lease",)
    ),
    FENCE: Key("fence", "must be the fence of the lease, a whole number of at least 1", values.fence, ("1",)),
    LEASE_DURATION: Key(
        "",
        "must be a duration in d, h, m and s, in that order, from 1s to 720h",
        values.term_ms,
        ("30m", "1h30m", "600s"),
    ),
    LEASE_CLASS: Key("", f"must be {', '.join(_CLASSES[:-1])} or {_CLASSES[-1]}", values.one_of(*_CLASSES), _CLASSES),
}
_Items = tuple[tuple[str, str], ...]


def options_of(meta: ObjectMeta) -> WorkloadOptions:
    """The requests of the object. It never fails: invalid ones are in `problems`."""
    labels = tuple([item for item in meta.labels.items() if item[0].startswith(PREFIX)])
    annotations = tuple([item for item in meta.annotations.items() if item[0].startswith(PREFIX)])
    if not labels and not annotations:
        return NOTHING
    return _remembered(labels, annotations)


NOTHING = WorkloadOptions()


def _read(labels: _Items, annotations: _Items) -> WorkloadOptions:
    options: dict[str, Any] = {}
    problems: list[Problem] = []
    unknown = 0
    for place, items in (("labels", labels), ("annotations", annotations)):
        if len(items) > MOST_KEYS:
            rule = f"are too many keys of {PREFIX}; the limit is {MOST_KEYS}"
            problems.append(Problem(f"metadata.{place}", str(len(items)), rule))
        for name, value in items[:MOST_KEYS]:
            path, short = f"metadata.{place}[{name}]", name.removeprefix(PREFIX)
            key = TABLE.get(short)
            if short in WRITTEN_BY_US:
                continue
            if key is None:
                unknown += 1
                near = f"; nearest known key: {PREFIX}{nearest(short, TABLE)}" if unknown <= _MOST_SUGGESTIONS else ""
                problems.append(Problem(path, shown(value), f"is no known key{near}"))
            elif key.place != place:
                problems.append(Problem(path, shown(value), f"must be in metadata.{key.place}"))
            elif len(value) > LONGEST:
                problems.append(Problem(path, shown(value), f"has {len(value)} characters; the limit is {LONGEST}"))
            else:
                try:
                    parsed = key.parse(value)
                    if key.field:
                        options[key.field] = parsed
                    else:
                        problems.append(Problem(path, shown(value), ENDPOINT_RULE))
                except ValueError as error:
                    problems.append(Problem(path, shown(value), _rule(key, value, error)))
    problems += _settle_headroom(options, dict(annotations))
    return replace(NOTHING, **options, problems=tuple(problems))


def _settle_headroom(options: dict[str, Any], annotations: Mapping[str, str]) -> list[Problem]:
    """Put a number in place of a rate, and the return where none is stated; what keeps that from being known."""
    stated, path = options.get("headroom"), f"metadata.annotations[{PREFIX}{HEADROOM}]"
    if stated is None:
        if "headroom_return_ms" not in options or PREFIX + HEADROOM in annotations:
            return []
        rule = f"has no effect without {PREFIX}{HEADROOM} beside it: state for how many instances room is kept"
        back = PREFIX + HEADROOM_RETURN
        return [Problem(f"metadata.annotations[{back}]", shown(annotations[back]), rule)]
    options.setdefault("headroom_return_ms", RETURN_MS)
    if isinstance(stated, int):
        return []
    value = shown(annotations[PREFIX + HEADROOM])
    options["headroom"] = 0
    if not (startup_ms := options.get("startup_ms", 0)):
        rule = f"is a rate, which needs {PREFIX}{STARTUP} beside it; without that state a number of instances"
        return [Problem(path, value, rule)]
    instances = -(-stated.per_day * startup_ms // _DAY_MS)
    if instances > MOST_HEADROOM:
        rule = f"is {instances} instances in the start-up time; the limit is {MOST_HEADROOM}"
        return [Problem(path, value, rule)]
    options["headroom"] = instances
    return []


_remembered: Remembered[WorkloadOptions] = Remembered(4096, _read)


def last_checkpoint_ms(meta: ObjectMeta) -> int:
    """The time of the last checkpoint of a bound pod, in its current annotation; 0 if it has none that is valid."""
    text = meta.annotations.get(_LAST_CHECKPOINT)
    try:
        return values.time_ms(text) if text is not None else 0
    except ValueError:
        return 0


def indices_of(text: str) -> tuple[int, ...] | None:
    """The GPU indices in a value of DEVICES; None if it is no list of distinct indices that a node can have."""
    parts = text.split(",", MAX_GPUS)
    if not all(_INDEX.fullmatch(part) and int(part) < MAX_GPUS for part in parts) or len(set(parts)) < len(parts):
        return None
    return tuple(map(int, parts))


def _rule(key: Key, value: str, error: ValueError) -> str:
    suggestion = str(error) if isinstance(error, values.BadValue) else ""
    return f"{key.rule}; nearest valid value: {suggestion or nearest(value, key.examples)}"
