# SPDX-License-Identifier: Apache-2.0
"""What `dovetail collector` refuses before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dovetail.cli import cli
from tests.terminal import environment


@pytest.mark.parametrize(
    ("token", "words", "found"),
    [
        (None, (), "--publish-every needs --publish-token"),
        ("0123456789abcde\n", ("--publish-token", "token"), "has 15 characters: use 16 at least"),
        (None, ("--publish-token", "token"), "token cannot be read: No such file"),
        ("0123456789abcdef", ("--publish-token", "token", "--listen", ""), "--publish-every needs --listen"),
    ],
)
def test_the_history_is_published_with_a_token_alone(
    token: str | None, words: tuple[str, ...], found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if token is not None:
        (tmp_path / "token").write_text(token)
    line = ["collector", "--store", "history.db", "--publish-every", "10m", *words]
    result = CliRunner().invoke(cli, line, env=environment(200))
    assert result.exit_code == 2
    assert found in result.output
    assert not (tmp_path / "history.db").exists()
