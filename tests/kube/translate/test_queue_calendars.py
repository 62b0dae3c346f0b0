# SPDX-License-Identifier: Apache-2.0
"""What of a calendar cannot be honoured is named with its field, and then none of the calendar is used."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from zoneinfo import ZoneInfo

import pytest

from dovetail.kube.objects.queues import Queue as QueueObject
from dovetail.kube.translate import queues
from dovetail.kube.translate.time_zones import FIRST_YEAR, LAST_YEAR, offsets_of
from tests.kube.yaml_objects import wire

WINDOW = '{start: "08:00", end: "20:00", guarantee: {gpu: 8}}'


def problem_of(calendar: str) -> tuple[str, str, str]:
    found = queues.queue(
        wire(QueueObject, f"{{metadata: {{name: q}}, spec: {{limit: {{gpu: 9}}, calendar: {calendar}}}}}")
    )
    assert found.problem is not None and found.calendar is None
    return found.problem.field, found.problem.value, found.problem.rule


@pytest.mark.parametrize(
    ("calendar", "field", "value", "rule"),
    [
        ("{windows: []}", "windows", "0", "must be 1 to 32 windows"),
        (f"{{windows: [{', '.join([WINDOW] * 33)}]}}", "windows", "33", "must be 1 to 32 windows"),
        (WINDOW.replace("08:00", "8:00"), "windows[0].start", "8:00", "nearest valid value: 08:00"),
        (WINDOW.replace("20:00", "25:00"), "windows[0].end", "25:00", "nearest valid value: 24:00"),
        (WINDOW.replace("gpu: 8", "gpu: 10"), "windows[0].guarantee.gpu", "10", "nearest valid value: 9"),
        (WINDOW.replace("gpu: 8", "gpus: 8"), "windows[0].guarantee.gpus", "8", "nearest: gpu"),
        (WINDOW.replace("{gpu: 8}", "{}"), "windows[0].guarantee", "", "0 for none"),
        (WINDOW.replace("{start", "{days: [Mo], start"), "windows[0].days[0]", "Mo", "nearest valid value: Mon"),
        (f"{{timeZone: Europe/Berlino, windows: [{WINDOW}]}}", "timeZone", "Europe/Berlino", "value: Europe/Berlin"),
        (f"{{timeZone: ../../etc/passwd, windows: [{WINDOW}]}}", "timeZone", "../../etc/passwd", "no time zone"),
        (f"{{timeZone: America, windows: [{WINDOW}]}}", "timeZone", "America", "no time zone"),
        (f"{{timeZone: '', windows: [{WINDOW}]}}", "timeZone", "", "no time zone"),
    ],
)
def test_a_bad_value_names_its_field_and_the_rule(calendar: str, field: str, value: str, rule: str) -> None:
    written = calendar if "windows" in calendar else f"{{windows: [{calendar}]}}"
    found = problem_of(written)
    assert found[:2] == (f"spec.calendar.{field}", value)
    assert rule in found[2]


def test_a_name_that_is_far_too_long_is_no_time_zone_and_is_shown_in_part() -> None:
    field, value, _ = problem_of(f"{{timeZone: {'x' * 100_000}, windows: [{WINDOW}]}}")
    assert field == "spec.calendar.timeZone" and len(value) < 300


def test_classes_that_a_window_does_not_name_keep_the_guarantee_of_the_spec() -> None:
    spec = f"{{guarantee: {{gpu: 1, cpu: 4}}, calendar: {{windows: [{WINDOW}]}}}}"
    found = queues.queue(wire(QueueObject, f"{{metadata: {{name: q}}, spec: {spec}}}"))
    assert found.calendar is not None
    assert found.calendar.windows[0].guarantee == (("cpu", 4000), ("gpu", 8000))
    assert found.calendar.otherwise == found.guarantee == (("cpu", 4000), ("gpu", 1000))


@pytest.mark.parametrize("name", ["UTC", "Europe/Berlin", "America/Sao_Paulo", "Africa/Casablanca", "Pacific/Apia"])
def test_the_table_has_the_offsets_of_the_time_zone(name: str) -> None:
    dice, zone, table = Random(name), ZoneInfo(name), offsets_of(name)
    first, end = (round(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (FIRST_YEAR, LAST_YEAR + 1))
    turns = [at_ms // 1000 + by for at_ms, _ in table[1:] for by in (-1, 0)]
    for at_s in [*turns, *(dice.randrange(first, end) for _ in range(500))]:
        (_, known) = max(one for one in table if one[0] <= at_s * 1000)
        offset = datetime.fromtimestamp(at_s, zone).utcoffset()
        assert offset is not None and known == offset.total_seconds() * 1000


@pytest.mark.parametrize("name", ["localtime", "posixrules", "Factory", "right/Europe/Berlin", "posix/Europe/Berlin"])
def test_a_file_of_the_database_that_is_no_zone_of_its_own_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        offsets_of(name)
