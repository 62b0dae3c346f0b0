# SPDX-License-Identifier: Apache-2.0
"""The log of programs that run on, as text and as JSON; each bind is in it."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.docs.pages import page

PROGRAM = """
import logging, sys
from dovetail.cli.log import start_log
start_log(*sys.argv[1:])
log = logging.getLogger("dovetail.scheduler")
log.debug("a detail")
log.info("bound %s", "ns/pod", extra={"fields": {"pod": "ns/pod", "node": "n1", "devices": (0, 1)}})
try:
    raise ValueError("no")
except ValueError:
    log.exception("it failed")
"""


def lines(*arguments: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_lines_for_people() -> None:
    first, second, *traceback = lines("info", "text")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO dovetail\.scheduler bound ns/pod", first)
    assert second.endswith("ERROR dovetail.scheduler it failed") and traceback[-1] == "ValueError: no"
    (shown,) = [block.text for block in page("docs/reference/environment.md").blocks if block.language == "text"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO dovetail\.scheduler bound .*\n", shown)


def test_lines_for_programs() -> None:
    first, second = map(json.loads, lines("info", "json"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", first.pop("time"))
    assert first == {
        "level": "info", "logger": "dovetail.scheduler", "message": "bound ns/pod",
        "pod": "ns/pod", "node": "n1", "devices": [0, 1],
    }  # fmt: skip
    assert (second["level"], second["message"]) == ("error", "it failed")
    assert second["error"].endswith("ValueError: no")


def test_every_logger_call_makes_a_line() -> None:
    program = """
import logging, sys
from dovetail.cli.log import start_log
start_log("info", sys.argv[1])
log = logging.getLogger("somebody.else")
log.info("plain")
log.info("%(one)s and %(two)s", {"one": 1, "two": 2})
log.info("%s is left over")
log.info("%d is no number", "x")
log.info("the last")
"""
    for form in ("text", "json"):
        done = subprocess.run([sys.executable, "-c", program, form], capture_output=True, text=True, check=True)
        reported = [line for line in done.stderr.splitlines() if "somebody.else" in line]
        wanted = ("plain", "1 and 2", "%s is left over", "the last")
        assert all(text in line for text, line in zip(wanted, reported, strict=True))
        # A call that cannot be formatted is logged with its message, and ends nothing.
        assert "--- Logging error ---" in done.stderr and "Message: '%d is no number'" in done.stderr


def test_a_library_with_a_handler_of_its_own_makes_lines() -> None:
    program = """
import logging
from dovetail.cli.log import start_log
start_log("info")
handler = logging.StreamHandler()
handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
log = logging.getLogger("uvicorn.error")
log.propagate = False
log.addHandler(handler)
log.info("plain")
try:
    raise ValueError("no")
except ValueError:
    log.exception("it failed")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, second, *traceback = done.stderr.splitlines()
    assert (first, second, traceback[-1]) == ("INFO: plain", "ERROR: it failed", "ValueError: no")


@pytest.mark.parametrize(("level", "count"), [("debug", 3), ("info", 2), ("warning", 1)])
def test_levels(level: str, count: int) -> None:
    assert len(lines(level, "json")) == count
