# SPDX-License-Identifier: Apache-2.0
"""The table of XIDs, and the administrator's file of actions."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.agent.health.xids import ACTIONS, UNKNOWN, Action, XidActionsError, default, read


def test_the_table_of_xids() -> None:
    """Some whose remedy NVIDIA's catalogue names, and one that it does not have."""
    actions = {13: 1, 31: 1, 43: 0, 48: 2, 63: 0, 64: 2, 74: 2, 79: 3, 92: 0, 94: 1, 95: 2, 109: 2, 119: 2, 151: 3}
    table = default()
    assert {xid: table.meaning(xid).action for xid in actions} == actions
    assert all(1 <= xid <= 172 and row.name for xid, row in table.rows.items())
    assert table.meaning(500) == UNKNOWN and UNKNOWN.action is Action.QUARANTINE_GPU
    assert table.version == "2025-10"


def test_the_words_of_actions() -> None:
    assert [*ACTIONS] == ["note", "restart-application", "quarantine-gpu", "quarantine-node"]


def test_a_file_replaces_rows(tmp_path: Path) -> None:
    file = tmp_path / "site.csv"
    file.write_text('xid,action,name\n# ours\n\n94, quarantine-gpu  # as we see it\n700,Note,"bits, lost"\n')
    table = read(file)
    assert table.meaning(94).action is Action.QUARANTINE_GPU
    assert table.meaning(94).name == default().meaning(94).name
    assert (table.meaning(700).action, table.meaning(700).name) == (Action.NOTE, "bits, lost")
    assert table.meaning(79) == default().meaning(79)
    assert table.version == "2025-10, 2 replaced by site.csv" and table.replaced == {94, 700}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("79,note\n94,quarantin-gpu", r"line 2: no action is called .quarantin-gpu.; did you mean quarantine-gpu\?"),
        ("94,restart", r"line 1: .* did you mean restart-application\?"),
        ("94,§", r"line 1: .* the actions are note, restart-application, quarantine-gpu, quarantine-node"),
        ("xid94,note", r"line 1: 'xid94' is not the number of an XID"),
        ("-1,note", r"line 1: '-1' is not the number"),
        ("99999,note", r"line 1: '99999' is not the number"),
        ("94", r"line 1: '94' is not `xid,action`"),
        ("94,note,a,b", r"line 1: .* is not `xid,action`"),
        ("94,note\n\n94,note", r"line 3: XID 94 is already in line 1"),
        ("94,note,a\x07b", r"line 1: the name must be printable"),
        (f"94,note,{'a' * 201}", r"line 1: the name must be printable, of at most 200"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "site.csv"
    file.write_text(text)
    with pytest.raises(XidActionsError, match=message):
        read(file)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "site.csv"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(XidActionsError, match="is not a text in UTF-8"):
        read(file)
    file.write_bytes(b"#" * (1 << 21))
    with pytest.raises(XidActionsError, match="has 2097152 bytes"):
        read(file)
    with pytest.raises(XidActionsError, match=r"cannot read .*: Is a directory"):
        read(tmp_path)
