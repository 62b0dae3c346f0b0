# SPDX-License-Identifier: Apache-2.0
"""The calendar of a queue: from the object to the core's record.

Rules: what cannot be honoured is a Problem, and the whole calendar is left out then: half of one would guarantee by day
what is meant for the night. A window replaces the classes that it names; of the others the guarantee of the spec holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from dovetail.core.model import Problem
from dovetail.core.queues.guarantee_calendar import DAY_MIN
from dovetail.core.queues.types import Amounts, GuaranteeCalendar, GuaranteeWindow
from dovetail.kube.objects.queues import QueueCalendar, QueueWindow, Resources
from dovetail.kube.translate.problems import nearest, shown
from dovetail.kube.translate.time_zones import offsets_of

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MOST_WINDOWS = 32
_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])|24:00")
_EVERY_DAY = 127
_PATH = "spec.calendar"
AmountsOf = Callable[[Resources, str, list[Problem]], Amounts]
Checked = Callable[[dict[str, int], str, list[Problem]], None]


def guarantee_calendar(
    calendar: QueueCalendar | None, otherwise: Amounts, amounts: AmountsOf, check: Checked, problems: list[Problem]
) -> GuaranteeCalendar | None:
    """The calendar of a queue whose guarantee is `otherwise` while no window is open. `amounts` reads the guarantee of
    a window, `check` compares one with the limit of the queue."""
    if calendar is None:
        return None
    found: list[Problem] = []
    windows = []
    if not 0 < len(calendar.windows) <= MOST_WINDOWS:
        rule = f"must be 1 to {MOST_WINDOWS} windows"
        found.append(Problem(f"{_PATH}.windows", str(len(calendar.windows)), rule))
    for i, window in enumerate(calendar.windows[:MOST_WINDOWS]):
        path = f"{_PATH}.windows[{i}]"
        guarantee = dict(otherwise) | dict(amounts(window.guarantee, f"{path}.guarantee", found))
        if not window.guarantee:
            found.append(Problem(f"{path}.guarantee", "", "must be there: the guarantee in this window; 0 for none"))
        check(guarantee, f"{path}.guarantee", found)
        start, end = _minute(window.start, f"{path}.start", found), _minute(window.end, f"{path}.end", found)
        windows.append(GuaranteeWindow(_days(window, path, found), start, end, tuple(sorted(guarantee.items()))))
    try:
        offsets = offsets_of(calendar.time_zone)
    except ValueError:
        near = nearest(calendar.time_zone, ("UTC", "Europe/Berlin", "America/New_York", "Asia/Shanghai"))
        rule = f"is no time zone of the IANA database; nearest valid value: {near}"
        found.append(Problem(f"{_PATH}.timeZone", shown(calendar.time_zone), rule))
        offsets = ()
    problems += found
    return None if found else GuaranteeCalendar(otherwise, tuple(windows), offsets)


def _minute(text: str, path: str, problems: list[Problem]) -> int:
    match = _TIME.fullmatch(text)
    if match is None:
        rule = f"must be a time of day as HH:MM; nearest valid value: {nearest(text, ('08:00', '20:00', '24:00'))}"
        problems.append(Problem(path, shown(text), rule))
        return 0
    return DAY_MIN if text == "24:00" else int(match[1]) * 60 + int(match[2])


def _days(window: QueueWindow, path: str, problems: list[Problem]) -> int:
    found = 0
    for i, day in enumerate(window.days[: len(DAYS) + 1]):
        if day in DAYS:
            found |= 1 << DAYS.index(day)
        else:
            rule = f"must be one of {', '.join(DAYS)}; nearest valid value: {nearest(day, DAYS)}"
            problems.append(Problem(f"{path}.days[{i}]", shown(day), rule))
    return found or _EVERY_DAY
