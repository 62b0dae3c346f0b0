# SPDX-License-Identifier: Apache-2.0
"""Where the Chromium of the tests comes from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools import chromium
from tools.controlplane.binaries import PlaneUnavailable


def test_that_on_path_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "chromium"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert chromium.build(print) == program


def test_one_that_was_unpacked_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    program = chromium.cache_dir() / "chromium"
    program.parent.mkdir(parents=True)
    program.touch()
    assert chromium.build(print) == program


def test_where_it_cannot_be_had_the_reason_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(PlaneUnavailable, match="no Chromium on PATH, and no apt-get"):
        chromium.build(print)
    for name in ("apt-get", "dpkg"):
        (tmp_path / name).write_text("#!/bin/sh\necho no network >&2\nexit 100\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(PlaneUnavailable, match="apt-get install failed: no network"):
        chromium.build(print)
    assert not list((tmp_path / "dovetail").glob("chromium*"))
