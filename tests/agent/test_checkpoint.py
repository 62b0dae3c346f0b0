# SPDX-License-Identifier: Apache-2.0
"""A checkpoint comes back as it was written, and one that was damaged is set aside, however it was damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.agent.checkpoint import CheckpointError, CheckpointFile

VALUE = {"GPU-1": "lost since noon"}


@given(value=st.dictionaries(st.text(), st.text()))
@pytest.mark.slow
def test_it_comes_back(tmp_path_factory: pytest.TempPathFactory, value: dict[str, str]) -> None:
    file = CheckpointFile(tmp_path_factory.mktemp("kept") / "file.json", dict[str, str])
    assert file.read() is None
    file.write(value)
    assert file.read() == value


@given(place=st.integers(min_value=0), byte=st.integers(0, 255))
def test_a_damaged_one_is_set_aside(tmp_path_factory: pytest.TempPathFactory, place: int, byte: int) -> None:
    path = tmp_path_factory.mktemp("kept") / "file.json"
    file = CheckpointFile(path, dict[str, str])
    file.write(VALUE)
    data = bytearray(path.read_bytes())
    data[place % len(data)] = byte
    path.write_bytes(data)
    found, wrong = file.rescue()
    if not wrong:
        assert found == VALUE
        return
    assert "file.json" in wrong and path.with_name("file.json.damaged").read_bytes() == data
    assert not path.exists()


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    file = CheckpointFile(path, dict[str, str])
    file.write(VALUE)
    path.write_bytes(path.read_bytes().replace(b"noon", b"n\xffn\xff"))
    with pytest.raises(CheckpointError):
        file.read()
    assert file.rescue()[0] is None
