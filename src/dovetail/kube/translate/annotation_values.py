# SPDX-License-Identifier: Apache-2.0
"""The values of users' labels and annotations: how each is read. `annotations` has the table of keys.

Rules: a function returns the value as the core takes it, or raises ValueError: a BadValue has the nearest valid value
where that can be computed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from fractions import Fraction
from math import ceil

from msgspec import Struct

from dovetail.core.model import WHOLE_GPU_MILLI
from dovetail.core.quantities import parse
from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.translate.durations import duration_ms
from dovetail.kube.translate.limits import MOST_LEVELS

LEVELS = {
    "region": "topology.kubernetes.io/region",
    "zone": "topology.kubernetes.io/zone",
    "datacenter": "network.topology.nvidia.com/datacenter",
    "spine": "network.topology.nvidia.com/spine",
    "block": "network.topology.nvidia.com/block",
    "rack": "dovetail.dev/rack",
    "clique": "nvidia.com/gpu.clique",
    "host": "kubernetes.io/hostname",
}
MOST_HEADROOM = 64
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_COUNT = re.compile(r"[0-9]{1,9}")
_FENCE = re.compile(r"[1-9][0-9]{0,15}")
_OBJECT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_GROWTH = re.compile(r"([1-9][0-9]{0,5})(?:/([mhd]))?")
_PER_DAY = {"m": 1440, "h": 24, "d": 1}
_DECIMAL = re.compile(r"-?([0-9]{1,9}(\.[0-9]{0,30})?|\.[0-9]{1,30})")
_MIB = 2**20
LONGEST_TERM_MS = 720 * 3_600_000
"""Of a lease."""


class HeadroomGrowth(Struct, frozen=True):
    """Instances that are added in a day."""

    per_day: int


class BadValue(ValueError):
    """The value breaks the rule of its key; the argument is the nearest valid value, where it can be computed."""


def valid_name(text: str) -> str:
    if NAME.fullmatch(text) is None:
        raise BadValue
    return text


def count(text: str) -> int:
    if _COUNT.fullmatch(text) is None or int(text) < 1:
        raise BadValue
    return int(text)


def object_name(text: str) -> str:
    if _OBJECT.fullmatch(text) is None:
        raise BadValue
    return text


def fence(text: str) -> int:
    if _FENCE.fullmatch(text) is None:
        raise BadValue
    return int(text)


def levels(text: str) -> tuple[str, ...]:
    keys = [level(part.strip()) for part in text.split(",")]
    if "" in keys:
        raise BadValue
    found = tuple(dict.fromkeys(keys))
    if len(found) > MOST_LEVELS:
        raise BadValue(",".join(text.split(",")[:MOST_LEVELS]))
    return found


def one_level(text: str) -> str:
    found = level(text.strip())
    if not found:
        raise BadValue
    return found


def level(text: str) -> str:
    """The node label key for a level's name; "" if it is no valid key."""
    key = LEVELS.get(text, text)
    return key if is_label_key(key) else ""


def is_label_key(text: str) -> bool:
    """Whether a label can have this key."""
    domain, slash, name = text.rpartition("/")
    return NAME.fullmatch(name) is not None and (
        not slash or (len(domain) <= 253 and _DOMAIN.fullmatch(domain) is not None)
    )


def more_than_zero_ms(text: str) -> int:
    milliseconds = duration_ms(text)
    if milliseconds == 0:
        raise BadValue
    return milliseconds


def term_ms(text: str) -> int:
    milliseconds = duration_ms(text)
    if not 1000 <= milliseconds <= LONGEST_TERM_MS:
        raise BadValue("1s" if milliseconds < 1000 else "720h")
    return milliseconds


def time_ms(text: str) -> int:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None or "T" not in text:
        raise BadValue
    return epoch_ms(moment)


def one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise BadValue
        return text

    return parse


def truth(text: str) -> bool:
    return one_of("true", "false")(text) == "true"


def memory_mib(text: str) -> int:
    size = parse(text)
    if size < _MIB:
        # An amount in bytes is a forgotten unit.
        raise BadValue(f"{ceil(size)}Mi" if size > 0 else "1Mi")
    return ceil(size / _MIB)


def milli(text: str) -> int:
    if _DECIMAL.fullmatch(text) is None:
        raise BadValue
    found = ceil(Fraction(text) * WHOLE_GPU_MILLI)
    if not 0 < found <= WHOLE_GPU_MILLI:
        raise BadValue("1" if found > 0 else "0.001")
    return found


def headroom(text: str) -> int | HeadroomGrowth:
    found = _GROWTH.fullmatch(text)
    if found is None:
        raise BadValue
    number, unit = int(found[1]), found[2]
    if unit:
        return HeadroomGrowth(number * _PER_DAY[unit])
    if number > MOST_HEADROOM:
        raise BadValue(str(MOST_HEADROOM))
    return number
