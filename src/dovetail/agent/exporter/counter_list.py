# SPDX-License-Identifier: Apache-2.0
"""Counter lists in dcgm-exporter's format: which kinds are exported, of which type, and with which help text.

Rules: a line is `FIELD, TYPE, HELP`; the help text may contain commas; lines that begin with # and empty ones are
skipped. A type is gauge, counter or label; a label is added to all series of the GPUs. Our own kinds (dovetail_*) are
always exported, as rules and boards need them. Fields of DCGM that are not read here are accepted, and absent.
Source: dcgm-exporter, etc/default-counters.csv.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import cast

from msgspec.structs import replace

from dovetail.agent.exporter.kinds import Kind, KindType, OwnSource, table

_OWN = "dovetail_"
_DRIVER = "DCGM_FI_DRIVER_VERSION"
_TYPES = ("gauge", "counter", "label")
_ELSEWHERE = {
    "DCGM_FI_DEV_VGPU_": "vGPU is not supported",
    "DCGM_FI_DEV_NVSWITCH_": "NVSwitches are not read",
    "DCGM_FI_DEV_CPU_": "CPUs are not read",
    "DCGM_FI_DEV_CONNECTX_": "NICs are not read",
    "DCGM_FI_DEV_DIAG_": "diagnostics are not run",
    "DCGM_FI_DEV_NVLINK_": "it is read for all links together",
    "DCGM_FI_PROF_NVLINK_L": "it is read for all links together",
    "DCGM_FI_DEV_PWR_SMOOTHING_": "power smoothing is not read",
    "DCGM_FI_DEV_PLATFORM_": "see the GPUNode",
    "DCGM_FI_IMEX_": "IMEX is not read",
}


class CounterListError(Exception):
    """The list cannot be read; the message names file and line, and the nearest known name."""


def default() -> dict[str, Kind]:
    """All kinds that can have values, and of the labels the version of the driver."""
    found = {name: kind for name, kind in table().items() if kind.type != "label" and kind.group != "unavailable"}
    return found | {_DRIVER: table()[_DRIVER]}


def read_counter_list(path: Path) -> dict[str, Kind]:
    """The kinds of the list, and our own. Raises CounterListError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CounterListError(f"cannot read {path}: {error}") from error
    chosen = dict(_lines(path, text))
    if not chosen:
        raise CounterListError(f"{path} names no field")
    own = {name: kind for name, kind in table().items() if name.startswith(_OWN) and name not in chosen}
    return chosen | own


def _lines(path: Path, text: str) -> Iterator[tuple[str, Kind]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = [part.strip() for part in line.split(",", 2)]
        if len(parts) < 3:
            raise CounterListError(f"{path} line {number}: `{line.strip()}` is not FIELD, TYPE, HELP")
        name, sort, words = parts
        if sort not in _TYPES:
            raise CounterListError(f"{path} line {number}: `{sort}` is not a type: {', '.join(_TYPES)}")
        kind = table().get(name) or _elsewhere(name)
        if kind is None:
            near = get_close_matches(name, table(), 1, 0.0)
            raise CounterListError(f"{path} line {number}: unknown field {name}; the nearest is {near[0]}")
        if (kind.type == "label") != (sort == "label"):
            raise CounterListError(f"{path} line {number}: {name} is a {kind.type}, and cannot be a {sort}")
        yield name, replace(kind, type=cast(KindType, sort), help=words or kind.help)


def _elsewhere(name: str) -> Kind | None:
    why = next((why for prefix, why in _ELSEWHERE.items() if name.startswith(prefix)), None)
    if why is None:
        return None
    return Kind(name, "gauge", "", "", (OwnSource("none", why),), "unavailable", False)
