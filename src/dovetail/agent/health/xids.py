# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's XID errors: the name and the action of each, as one table with a version (`xids.csv`).

Rules
- The table is NVIDIA's XID catalogue (docs.nvidia.com/deploy/xid-errors, sheet "Catalog"), with its resolutions reduced
  to four actions. A workflow of the catalogue maps to its last step, for the case that nothing milder helps.
- An XID that is not in the table belongs to a newer driver or is unused, and has the action quarantine-gpu.
- A file of the administrator replaces rows: lines `xid,action[,name]`, empty lines, and comments after `#`.
"""

from __future__ import annotations

import csv
import difflib
from collections.abc import Iterator, Mapping
from enum import IntEnum
from functools import cache
from pathlib import Path

from msgspec import Struct

TABLE = Path(__file__).with_name("xids.csv")
MOST_BYTES = 1 << 20
_HEAD = ("xid", "action", "name")
_VERSION = "# version "
_LARGEST = 65_535
_LONGEST_NAME = 200


class Action(IntEnum):
    """What an error requires before the GPU can be allocated again, mildest first. The numbers are in checkpoints."""

    NOTE = 0
    RESTART_APPLICATION = 1
    QUARANTINE_GPU = 2
    QUARANTINE_NODE = 3

    @property
    def word(self) -> str:
        """As in tables and labels: `quarantine-gpu`."""
        return self.name.lower().replace("_", "-")

    @property
    def advice(self) -> str:
        return _ADVICE[self]


_ADVICE = {
    Action.NOTE: "nothing has to be done",
    Action.RESTART_APPLICATION: "restart the application; the GPU is offered again when no pod holds it",
    Action.QUARANTINE_GPU: "reset the GPU (nvidia-smi --gpu-reset, with nothing using it), load the driver anew, or "
    "reboot",
    Action.QUARANTINE_NODE: "reboot the node; if it comes back, have the hardware checked",
}
ACTIONS: Mapping[str, Action] = {action.word: action for action in Action}


class XidMeaning(Struct, frozen=True):
    action: Action
    name: str


UNKNOWN = XidMeaning(Action.QUARANTINE_GPU, "an error that this release does not know")


class XidActionsError(ValueError):
    """The administrator's file is invalid; the text names it, the line, and what is valid."""


class XidTable(Struct, frozen=True):
    """`version` is that of the catalogue, with the number of rows that a file replaces. `replaced` are their XIDs."""

    version: str
    rows: Mapping[int, XidMeaning]
    replaced: frozenset[int] = frozenset()

    def meaning(self, xid: int) -> XidMeaning:
        return self.rows.get(xid, UNKNOWN)


@cache
def default() -> XidTable:
    """The table of this release."""
    text = TABLE.read_text(encoding="utf-8")
    version, _, rest = text.partition("\n")
    return XidTable(version.removeprefix(_VERSION), dict(_rows(rest, str(TABLE), {})))


def read(path: Path) -> XidTable:
    """The table of this release with the rows of a file of the administrator. Raises XidActionsError."""
    table = default()
    try:
        data = path.read_bytes()
        if len(data) > MOST_BYTES:
            raise XidActionsError(f"{path} has {len(data)} bytes; at most {MOST_BYTES} are read")
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise XidActionsError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise XidActionsError(f"{path} is not a text in UTF-8: {error.reason}") from error
    rows = dict(_rows(text, str(path), table.rows))
    version = f"{table.version}, {len(rows)} replaced by {path.name}"
    return XidTable(version, {**table.rows, **rows}, frozenset(rows))


def _rows(text: str, file: str, named: Mapping[int, XidMeaning]) -> Iterator[tuple[int, XidMeaning]]:
    """Raises XidActionsError. A row without a name has that of `named`."""
    lines_of: dict[int, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        cells = [cell.strip() for cell in next(csv.reader([content], skipinitialspace=True), ())]
        if not cells or (len(cells) > 1 and tuple(cells) == _HEAD[: len(cells)]):
            continue
        at = f"{file}, line {number}"
        if len(cells) not in (2, 3):
            raise XidActionsError(f"{at}: {content!r} is not `xid,action` or `xid,action,name`")
        if not (cells[0].isascii() and cells[0].isdecimal() and len(cells[0]) < 6 and int(cells[0]) <= _LARGEST):
            raise XidActionsError(f"{at}: {cells[0]!r} is not the number of an XID, 0 to {_LARGEST}")
        xid = int(cells[0])
        if (action := ACTIONS.get(cells[1].lower())) is None:
            raise XidActionsError(f"{at}: no action is called {cells[1]!r}{_nearest(cells[1])}")
        if xid in lines_of:
            raise XidActionsError(f"{at}: XID {xid} is already in line {lines_of[xid]}")
        lines_of[xid] = number
        name = cells[2] if len(cells) == 3 and cells[2] else named.get(xid, UNKNOWN).name
        if len(name) > _LONGEST_NAME or not name.isprintable():
            raise XidActionsError(f"{at}: the name must be printable, of at most {_LONGEST_NAME} characters")
        yield xid, XidMeaning(action, name)


def _nearest(word: str) -> str:
    near = difflib.get_close_matches(word.lower(), ACTIONS, 1, 0.4)
    return f"; did you mean {near[0]}?" if near else f"; the actions are {', '.join(ACTIONS)}"
