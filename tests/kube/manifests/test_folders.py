# SPDX-License-Identifier: Apache-2.0
"""Which files of a folder are read: those that git has, when it is asked; git is the oracle."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from dovetail.kube.manifests.documents import BytesNotRead, content, files_named
from dovetail.kube.manifests.folders import Ignored, files_in
from tests.kube.manifests.deep_folder import too_deep

NAMES = ("a", "b", "build", "c.yaml", "d.yml", "e.json")
PATTERNS = (
    "build",
    "build/",
    "/a",
    "*.yml",
    "!d.yml",
    "a/b",
    "b/**",
    "**/c.yaml",
    "# c",
    "",
    "!build/",
    "a/*",
    "!a/c.yaml",
)


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")


def names(folder: Path, ignored: Ignored | None = None) -> list[str]:
    return [Path(path).relative_to(folder).as_posix() for path in files_in(folder, ignored)]


def test_takes_manifests_in_order_and_never_those_of_git_and_node_modules(tmp_path: Path) -> None:
    put(
        tmp_path, "b.yaml", "a/c.json.gz", "a/b.yml", "d.txt", ".git/e.yaml", "a/node_modules/f/g.json", ".github/h.yml"
    )
    assert names(tmp_path) == [".github/h.yml", "a/b.yml", "a/c.json.gz", "b.yaml"]


@pytest.mark.parametrize("ignored", [None, Ignored(git=True)])
def test_a_folder_that_cannot_be_listed_is_for_its_reader(tmp_path: Path, ignored: Ignored | None) -> None:
    put(tmp_path, "e.yaml")
    folder = too_deep(tmp_path)
    assert list(files_in(tmp_path, ignored)) == [str(folder), str(tmp_path / "e.yaml")]
    assert list(files_named(str(folder), ignored)) == [str(folder)]
    with pytest.raises(BytesNotRead, match="cannot be read: File name too long"):
        content(str(folder))


def test_a_link_to_itself_is_for_its_reader_and_one_to_nothing_is_left_out(tmp_path: Path) -> None:
    put(tmp_path, "a.yaml")
    (tmp_path / "itself.yaml").symlink_to("itself.yaml")
    (tmp_path / "lost.yaml").symlink_to("nowhere.yaml")
    assert names(tmp_path) == ["a.yaml", "itself.yaml"]


def test_their_order_is_that_of_their_paths_and_their_names_begin_as_the_folder_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "a/z.yaml", "a-b/c.yaml", "a.yaml", "a/b/c.yml", "B.json", "a/b.yaml", "ab/0.yaml")
    paths = sorted(tmp_path.rglob("*.*"))
    assert list(files_in(tmp_path)) == [str(path) for path in paths]
    monkeypatch.chdir(tmp_path)
    for folder in (".", "a", "a/..", "./a/"):
        found = list(files_in(Path(folder)))
        assert found == [str(path) for path in sorted(Path(folder).rglob("*.*"))], folder


def test_a_link_to_a_folder_is_not_followed(tmp_path: Path) -> None:
    put(tmp_path, "a/b.yaml")
    (tmp_path / "a/up").symlink_to(tmp_path)
    assert names(tmp_path) == ["a/b.yaml"]


def test_a_folder_that_is_ignored_and_named_is_read(tmp_path: Path) -> None:
    put(tmp_path, ".git/x", "build/a.yaml", "build/b.yaml", "c.yaml")
    (tmp_path / ".gitignore").write_text("build/\n")
    (tmp_path / "build/.gitignore").write_text("b.yaml\n")
    assert names(tmp_path, Ignored(git=True)) == ["c.yaml"]
    assert names(tmp_path / "build", Ignored(git=True)) == ["a.yaml"]


def test_what_is_excluded_is_relative_to_a_folder(tmp_path: Path) -> None:
    put(tmp_path, "charts/a/x.yaml", "charts/b.yaml", "c.yaml")
    ignored = Ignored(excluded=((tmp_path, ("/charts/a",)), (tmp_path / "charts", ("/c.yaml",))))
    assert names(tmp_path, ignored) == ["c.yaml", "charts/b.yaml"]
    assert names(tmp_path / "charts", ignored) == ["b.yaml"]
    assert ignored.excludes(f"{tmp_path}/charts/a/x.yaml") and not ignored.excludes(f"{tmp_path}/charts/b.yaml")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="git is the oracle")
def test_leaves_out_what_git_ignores(tmp_path: Path) -> None:
    draw, left_out = random.Random(1), 0
    for number in range(12):
        folder = tmp_path / str(number)
        for _ in range(25):
            parts = [draw.choice(NAMES[:3]) for _ in range(draw.randrange(3))]
            put(folder, "/".join([*parts, draw.choice(NAMES[3:])]))
        for where in ("", "a", "build"):
            if (folder / where).is_dir():
                (folder / where / ".gitignore").write_text("\n".join(draw.sample(PATTERNS, 3)) + "\n")
        subprocess.run(["git", "init", "-q", folder], check=True)
        listed = subprocess.run(
            ["git", "-C", folder, "ls-files", "--others", "--exclude-standard", "--", "*.yaml", "*.yml", "*.json"],
            check=True, capture_output=True, text=True,
        ).stdout.split()  # fmt: skip
        assert names(folder, Ignored(git=True)) == sorted(listed, key=Path), number
        left_out += len(names(folder)) - len(listed)
    assert left_out > 20
