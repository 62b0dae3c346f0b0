# SPDX-License-Identifier: Apache-2.0
"""What tests need that not every machine has, and what the end of the run says of tests that were not run for it.

Rules: a need is looked into once in each process. What could not be had goes with the report of the test, so that the
end of the run knows it of tests of all workers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn

import pytest
from msgspec import Struct

from tools.controlplane.binaries import PlaneUnavailable, Report

_NOT_RUN = "not run"
_CANNOT_BE_HAD = "cannot be had here: "


class Need(Struct):
    """What the tests of one mark need.

    name, instance: how it is called; build: makes it, raises PlaneUnavailable; lacking: what the machine does not have.
    reason: why it cannot be had here, "" if it can, None before that is known; hopeless: the machine itself is why.
    """

    mark: str
    name: str
    instance: str
    build: Callable[[Report], object]
    lacking: Callable[[], list[str]]
    reason: str | None = None
    hopeless: bool = False

    def check(self, item: pytest.Item) -> None:
        """End the test here if its need cannot be had: skipped, or with CI=true failed where it could be."""
        if self.reason is None:
            self._find_out(item.config)
        if self.reason:
            stated = f"{'This machine lacks ' if self.hopeless else ''}{self.reason}"
            item.user_properties.append((_NOT_RUN, [self.mark, stated]))
            unavailable(f"no {self.name}: {self.reason}", hopeless=self.hopeless)

    def _find_out(self, config: pytest.Config) -> None:
        self.reason = "; ".join(self.lacking())
        self.hopeless = bool(self.reason)
        if not self.hopeless:
            try:
                self.build(reporter(config))
            except PlaneUnavailable as error:
                self.reason = str(error)

    def sum_up(self, terminal: pytest.TerminalReporter) -> None:
        """Say at the end of the run which tests were not run for this need, and why."""
        ended = [report for outcome in ("skipped", "failed", "error") for report in terminal.stats.get(outcome, ())]
        reasons = {
            report.nodeid: stated
            for report in ended
            for key, (mark, stated) in getattr(report, "user_properties", ())
            if key == _NOT_RUN and mark == self.mark
        }
        if reasons:
            terminal.section(f"{self.name.upper()} TESTS DID NOT RUN", sep="!", red=True, bold=True)
            terminal.line(f"{len(reasons)} tests need {self.instance} and were not run:")
            for nodeid in reasons:
                terminal.line(f"  {nodeid}")
            for stated in dict.fromkeys(reasons.values()):
                terminal.line(stated)


def unavailable(reason: str, *, hopeless: bool = False) -> NoReturn:
    """End the test: with CI=true it fails, unless it is hopeless; otherwise it is skipped."""
    if os.environ.get("CI") == "true" and not hopeless:
        pytest.fail(reason, pytrace=False)
    pytest.skip(f"{_CANNOT_BE_HAD}{reason}")


def sum_up_fixtures(terminal: pytest.TerminalReporter) -> None:
    """List at the end of the run the tests that were skipped as a fixture could not be made: no image, no Helm."""
    skipped: dict[str, list[str]] = {}
    for report in terminal.stats.get("skipped", ()):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        _, found, reason = text.partition(_CANNOT_BE_HAD)
        if found and _NOT_RUN not in dict(report.user_properties):
            skipped.setdefault(reason, []).append(report.nodeid)
    if skipped:
        terminal.section("TESTS DID NOT RUN", sep="!", red=True, bold=True)
    for reason, nodeids in skipped.items():
        terminal.line(reason)
        for nodeid in nodeids:
            terminal.line(f"  {nodeid}")


def reporter(config: pytest.Config) -> Report:
    """Prints how far a build is while a test runs, past pytest's capture; workers have no terminal but stderr."""
    capture = config.pluginmanager.getplugin("capturemanager")

    def report(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(text, file=sys.stderr, flush=True)

    return report
