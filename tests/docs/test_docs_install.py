# SPDX-License-Identifier: Apache-2.0
"""The reference of `install`, `status` and `uninstall` has the fields of their answers."""

from __future__ import annotations

from msgspec.structs import fields

from dovetail.cli.install.report import InstallAnswer
from dovetail.operator.coexistence.survey import InstallPlan
from dovetail.operator.installation.installer import InstallAction, InstalledObject
from dovetail.operator.installation.removal import Removal
from dovetail.views.status import StatusView
from tests.docs.pages import page


def rows(command: str) -> dict[str, str]:
    found = page("docs/reference/cli.md").section(f"dovetail {command}").rows("field")
    return {row.code[0][0]: row.cells[1] for row in found}


def test_the_answer_of_install() -> None:
    answers = (*fields(InstallAnswer), *fields(InstallPlan))
    assert list(rows("install")) == [one.name for one in answers]
    text = rows("install")["objects"]
    assert all(f"`{one.name}`" in text for one in fields(InstalledObject))
    assert all(action.value in text for action in InstallAction)


def test_the_answer_of_status() -> None:
    assert list(rows("status")) == [one.name for one in fields(StatusView)]


def test_the_answer_of_uninstall() -> None:
    own = page("docs/reference/cli.md").section("dovetail uninstall").rows("option")
    (text,) = [row.cells[2] for row in own if "--output" in row.cells[0]]
    assert all(f"`{one.name}`" in text for one in fields(Removal))
