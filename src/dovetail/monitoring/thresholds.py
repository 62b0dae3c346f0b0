# SPDX-License-Identifier: Apache-2.0
"""The thresholds of all rules in one table, and how a user replaces them.

Rules: `@name` in an expression or a text stands for the threshold, `@name.seconds` for a duration as a number. A
duration is written as Prometheus does (`90s`, `1h30m`). Ratios are 0 to 1.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from msgspec import Struct

Value = float | str
DURATION, PATTERN = "duration", "pattern"
"""Units whose values are texts; those of all others are numbers."""
_PART_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PARTS = re.compile(r"(?:(\d+)(ms|[smhdw]))")
_DURATION = re.compile(r"(?:\d+(?:ms|[smhdw]))+")
_REFERENCE = re.compile(r"@([a-z][a-z0-9_]*)(\.seconds)?")


class BadThreshold(Exception):
    """A threshold that does not exist, or a value that is wrong for it; the message has the name and the reason."""


class Threshold(Struct, frozen=True):
    """One threshold: its default, the unit, what it means, and where the default comes from."""

    name: str
    default: Value
    unit: str
    meaning: str
    source: str


def _rows(*rows: tuple[str, Value, str, str, str]) -> tuple[Threshold, ...]:
    return tuple(Threshold(*row) for row in rows)


THRESHOLDS = _rows(
    ("interval", "30s", DURATION, "how often the rules are evaluated; GPU-hours are counted in these steps",
     "twice the default scrape interval"),
    ("settle", "10m", DURATION, "start of a pod on a GPU during which low use is start-up and no alert",
     "images and data are loaded first"),
    ("idle_util", 0.05, "ratio", "a GPU below this use is idle", "KempnerPulse: class idle below 5 %"),
    ("idle_notebook", "30m", DURATION, "idle time of a notebook's GPU until its owner is notified",
     "half of that of a job; Kubeflow culls notebooks after 24 h"),
    ("idle_job", "1h", DURATION, "idle time of any other GPU until its owner is notified", "one hour of waste"),
    ("idle_long", "4h", DURATION, "idle time until operators get a ticket", "half a working day"),
    ("notebook_pods", "(.*-)?(notebook|jupyter|jupyterhub|code-server|rstudio)(-.*)?", PATTERN,
     "names of pods that are notebooks", "names that Kubeflow, JupyterHub and code-server give"),
    ("low_util", 0.3, "ratio", "use below this for long is low", "operators' practice: below 30 % sustained"),
    ("low_util_for", "6h", DURATION, "how long the hourly mean of a job has to be low", "longer than starts and saves"),
    ("monthly_util", 0.4, "ratio", "a 30-day mean below this means too large a GPU or share",
     "operators' practice: monthly mean below 40 %"),
    ("monthly_days", 7, "days", "days with values that the 30-day mean needs", "less is not enough data"),
    ("straggler_gap", 0.1, "ratio", "use of a GPU below the median of its job from which it is a straggler",
     "below that the two-sigma test finds noise"),
    ("straggler_sigma", 2, "standard deviations", "the same gap in standard deviations of the job", "two sigma"),
    ("straggler_gpus", 3, "GPUs", "smallest job in which stragglers are looked for", "of two neither is the odd one"),
    ("straggler_for", "15m", DURATION, "how long a GPU has to lag behind", "longer than an evaluation or a save"),
    ("xid_window", "10m", DURATION, "how long an XID is new", "alerts are routed within minutes"),
    ("ecc_window", "10m", DURATION, "window in which double-bit ECC errors are counted", "as for XIDs"),
    ("count_for", "1m", DURATION, "how long a GPU has to be missing", "a driver reload is shorter than an alert"),
    ("unhealthy_for", "2m", DURATION, "how long a GPU has to be unhealthy", "a passing error is over by then"),
    ("quarantine_for", "1h", DURATION, "how long a GPU may be quarantined before operators are reminded",
     "time for the exit test"),
    ("throttle_ratio", 0.05, "ratio", "part of the time in which the hardware lowers the clocks",
     "5 % of the time costs 5 % of the work"),
    ("throttle_for", "15m", DURATION, "how long the clocks have to be lowered that often", "longer than a burst"),
    ("gpu_margin", 5, "celsius", "margin to the slowdown temperature from which a GPU is hot",
     "the driver's own margin; gpud alerts at 0"),
    ("gpu_temp", 85, "celsius", "temperature from which a GPU without a known margin is hot", "VESSL: warning at 85"),
    ("gpu_temp_critical", 95, "celsius", "the same, overheated", "VESSL: critical at 95"),
    ("memory_temp", 85, "celsius", "temperature from which memory is hot", "VESSL: HBM warning at 85"),
    ("memory_temp_critical", 95, "celsius", "the same, overheated", "VESSL: HBM critical at 95"),
    ("temp_for", "5m", DURATION, "how long it has to be hot", "longer than a burst"),
    ("crc_rate", 0, "errors/s", "rate of NVLink CRC errors that is too high", "healthy links have none for minutes"),
    ("crc_for", "10m", DURATION, "how long the errors have to go on", "single errors are repaired by replay"),
    ("replay_rate", 0, "replays/s", "rate of PCIe replays that is too high", "KempnerPulse: above 0 is a warning"),
    ("replay_for", "10m", DURATION, "how long the replays have to go on", "a single replay is harmless"),
    ("fabric_for", "5m", DURATION, "how long a GPU may be outside of its NVLink fabric", "joining takes less"),
    ("orphan_bytes", 67_108_864, "bytes", "memory of foreign processes that counts", "less is a driver's context"),
    ("orphan_for", "5m", DURATION, "how long that memory has to be held", "a pod that ends needs less to free it"),
    ("no_process_util", 50, "percent", "use of a GPU without any process that counts", "VESSL: high use, no process"),
    ("owners_age", "1m", DURATION, "age from which the list of owners is too old", "four scrapes"),
    ("attribution_missing", 0.01, "ratio", "part of the allocated GPUs whose owner is unknown", "one GPU in a hundred"),
    ("reading_age", "1m", DURATION, "age from which a reading is too old", "four scrapes"),
    ("series_lost", "1h", DURATION, "how long a node without series is remembered", "one hour"),
    ("agent_age", "15m", DURATION, "time without a look at the machine after which an agent is stuck",
     "as the agent's liveness probe"),
    ("fault_for", "10m", DURATION, "how long an agent may have a fault", "faults of a rollout are over by then"),
    ("budget_part", 0.8, "ratio", "part of a queue's budget after which a notice is due", "a fifth of it is left"),
    ("pending_min", "15m", DURATION, "waits shorter than this are normal", "a job of minutes ends meanwhile"),
    ("pending_factor", 2, "times", "multiple of the queue's median wait that is long", "twice the median"),
    ("gang_partial", "90s", DURATION, "how long a gang may be bound by half", "release is due after 60 s"),
    ("rejections", 3, "pods", "rejections by kubelets in five minutes that are a loop", "three make no accident"),
    ("cache_age", "1m", DURATION, "age from which a watch is stale", "a quiet watch is silent for up to 40 s"),
    ("leader_for", "1m", DURATION, "how long there may be no leader", "a lease is taken over within 15 s"),
    ("conflict_rate", 0.1, "binds/s", "rate of bind conflicts that is too high", "one in ten seconds"),
    ("backlog_for", "10m", DURATION, "how long reports may wait to be written", "they are written in seconds"),
)  # fmt: skip
"""All thresholds. Each one is used by a rule."""
_BY_NAME = {threshold.name: threshold for threshold in THRESHOLDS}


def seconds(duration: str) -> float:
    """A duration of Prometheus in seconds. Raises BadThreshold."""
    if not _DURATION.fullmatch(duration):
        raise BadThreshold(f"{duration!r} is no duration: write it as 90s, 10m, 6h or 1h30m")
    return sum(int(number) * _PART_S[unit] for number, unit in _PARTS.findall(duration))


def resolved(overrides: Mapping[str, object] | None = None) -> dict[str, Value]:
    """The values of all thresholds, with these in place of defaults.

    Raises BadThreshold for a name that does not exist (with the nearest) and for a value of another type or below 0.
    """
    values = {threshold.name: threshold.default for threshold in THRESHOLDS}
    for name, value in (overrides or {}).items():
        if name not in _BY_NAME:
            near = difflib.get_close_matches(name, _BY_NAME, 1)
            raise BadThreshold(f"there is no threshold {name!r}{f'; did you mean {near[0]!r}?' if near else ''}")
        values[name] = _checked(_BY_NAME[name], value)
    return values


def _checked(threshold: Threshold, value: object) -> Value:
    if threshold.unit == DURATION and isinstance(value, str):
        if not seconds(value):
            raise BadThreshold(f"{threshold.name}: it must be longer than 0")
        return value
    if threshold.unit == PATTERN and isinstance(value, str):
        try:
            re.compile(value)
        except re.error as error:
            raise BadThreshold(f"{threshold.name}: {value!r} is no regular expression: {error}") from error
        if '"' in value or "\\" in value:
            raise BadThreshold(f'{threshold.name}: neither " nor \\ may be in it')
        return value
    if threshold.unit not in (DURATION, PATTERN) and isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 <= value < float("inf"):
            raise BadThreshold(f"{threshold.name}: {value} is not a number from 0 on")
        return value
    raise BadThreshold(f"{threshold.name}: {value!r} is no {threshold.unit if threshold.unit == DURATION else 'value'} "
                       f"in {threshold.unit}")  # fmt: skip


def references(text: str) -> set[str]:
    """The names of the thresholds in an expression or a text."""
    return {name for name, _ in _REFERENCE.findall(text)}


def filled(text: str, values: Mapping[str, Value]) -> str:
    """The text with the values of its thresholds. Raises KeyError for one that does not exist."""

    def value(found: re.Match[str]) -> str:
        own = values[found[1]]
        number = seconds(str(own)) if found[2] else own
        return str(int(number)) if isinstance(number, float) and number.is_integer() else str(number)

    return _REFERENCE.sub(value, text)
