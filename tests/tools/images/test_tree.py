# SPDX-License-Identifier: Apache-2.0
"""Trees of files, and layers of them that are the same bytes however they came about."""

import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.images import tree
from tools.images.tree import DIRECTORY, Entry, Kind, Tree

NAMES = st.lists(st.sampled_from("abcd"), min_size=1, max_size=3).map("/".join)
ENTRIES = st.one_of(
    st.builds(tree.file, st.binary(max_size=8), st.sampled_from((0o644, 0o755))),
    st.builds(tree.link, st.sampled_from(("/a", "b/c"))),
)
# Files have names that no directory has.
TREES = st.dictionaries(NAMES.map("{}.txt".format), ENTRIES, max_size=6)


def members(layer: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
        return archive.getmembers()


@given(TREES, st.randoms(use_true_random=False))
@pytest.mark.slow
def test_a_layer_has_every_entry_once_after_its_folder_and_its_order_does_not_count(
    whole: Tree, random: object
) -> None:
    shuffled = list(whole.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    layer = tree.layer(whole, 7)
    assert layer == tree.layer(dict(shuffled), 7)
    found = members(layer)
    names = [member.name for member in found]
    assert names == sorted(set(names)) and set(whole) <= set(names)
    for member in found:
        parent = member.name.rpartition("/")[0]
        assert not parent or parent in names[: names.index(member.name)]
        assert (member.mtime, member.uid, member.gid, member.uname, member.gname) == (7, 0, 0, "", "")


@given(TREES)
@pytest.mark.slow
def test_what_is_read_from_a_layer_is_the_tree(whole: Tree) -> None:
    with tarfile.open(fileobj=io.BytesIO(tree.layer(whole, 0))) as archive:
        back = tree.from_tar(archive)
    assert {path: entry for path, entry in back.items() if entry.kind is not Kind.DIRECTORY} == whole


def test_directories_of_the_layers_below_are_not_repeated_and_owners_are_numbers() -> None:
    whole = {"usr/lib/a": tree.file("a"), "home/b": Entry(Kind.DIRECTORY, 0o700, owner=65532)}
    found = {member.name: member for member in members(tree.layer(whole, 0, {"usr", "usr/lib"}))}
    assert set(found) == {"usr/lib/a", "home", "home/b"}
    assert (found["home/b"].uid, found["home/b"].gid, found["home/b"].mode) == (65532, 65532, 0o700)


def archive_of(*infos: tarfile.TarInfo) -> tarfile.TarFile:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for info in infos:
            archive.addfile(info, io.BytesIO(b"x" * info.size))
    return tarfile.open(fileobj=io.BytesIO(target.getvalue()))


def info(
    name: str, kind: bytes = tarfile.REGTYPE, *, target: str = "", size: int = 0, mode: int = 0o644
) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size, made.mode = kind, target, size, mode
    return made


def test_the_folders_of_a_package_go_into_usr_and_privileges_are_dropped() -> None:
    with archive_of(
        info("./lib/x/l.so", size=1),
        info("./bin/su", mode=0o4755),
        info("./usr/h", tarfile.LNKTYPE, target="./lib/x/l.so"),
    ) as archive:
        read = tree.from_tar(archive)
    assert read == {"usr/lib/x/l.so": tree.file("x"), "usr/bin/su": tree.file("", 0o755), "usr/h": tree.file("x")}


def test_a_device_is_refused() -> None:
    with (
        archive_of(info("./dev/null", tarfile.CHRTYPE)) as archive,
        pytest.raises(ValueError, match="dev/null is neither"),
    ):
        tree.from_tar(archive)


def test_a_written_tree_is_contained_in_its_folder(tmp_path: Path) -> None:
    whole = {"a/b": tree.file("text", 0o755), "c/d": tree.link("/a/b"), "e": DIRECTORY}
    tree.write(whole, tmp_path)
    assert (tmp_path / "c/d").resolve() == tmp_path / "a/b"
    assert (tmp_path / "a/b").stat().st_mode & 0o777 == 0o755 and (tmp_path / "e").is_dir()


def test_bytecode_belongs_to_its_module() -> None:
    assert tree.module_of("usr/p/__pycache__/m.cpython-311.pyc") == "usr/p/m.py"
