# SPDX-License-Identifier: Apache-2.0
"""The YAML reader: on harmless texts it is PyYAML's; harmful ones cost it little, and get a line and a remedy."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from dovetail.cli import cli
from dovetail.kube.yaml_text import (
    DEEPEST,
    LONGEST_NUMBER,
    MOST_REPEATED,
    FlatLoader,
    Loader,
    OverBounds,
    decode_yaml,
    is_flat,
    read_yaml,
)

MERGE_BOMB = "\n".join(
    ["a0: &a0 {k: v}", *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 4)}], k{n}: v}}" for n in range(1, 17))]
)
ALIAS_BOMB = "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30))])
KUBECONFIG = """
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
"""
CHAIN = "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 300))])


class _Texts:
    """Random documents in flow style, with anchors, aliases and merge keys. No key is twice in a mapping."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._anchors = 0
        self._mappings: list[str] = []
        self._any: list[str] = []

    def value(self, levels: int) -> str:
        kind = self._draw.choice(("scalar", "list", "map", "map", "map", "alias"))
        if kind == "alias" and self._any:
            return f"*{self._draw.choice(self._any)}"
        if levels == 0 or kind in ("scalar", "alias"):
            return self._draw.choice(
                ("1", "0x1F", "1_000", "1:30", "1.5", "yes", "~", "'2001-01-01'", "text", ".inf", "!!str 1")
            )
        name = ""
        if self._draw.random() < 0.6:
            self._anchors += 1
            name = f"a{self._anchors}"
        inner = self._list(levels) if kind == "list" else self._mapping(levels)
        if name:
            self._any.append(name)
            if kind == "map":
                self._mappings.append(name)
        return f"&{name} {inner}" if name else inner

    def _list(self, levels: int) -> str:
        return f"[{', '.join(self.value(levels - 1) for _ in range(self._draw.randrange(4)))}]"

    def _mapping(self, levels: int) -> str:
        known = list(self._mappings)
        keys = self._draw.sample(("a", "b", "c", "d", "1", "true"), self._draw.randrange(5))
        pairs = [f"{key}: {self.value(levels - 1)}" for key in keys]
        if known and self._draw.random() < 0.6:
            merged = [f"*{self._draw.choice(known)}" for _ in range(self._draw.randrange(1, 4))]
            merge = merged[0] if len(merged) == 1 else f"[{', '.join(merged)}]"
            pairs.insert(self._draw.randrange(len(pairs) + 1), f"<<: {merge}")
        return f"{{{', '.join(pairs)}}}"


def test_reads_harmless_texts_as_pyyaml() -> None:
    merges = 0
    for seed in range(150):
        text = _Texts(seed).value(4)
        merges += "<<" in text
        assert read_yaml(text) == yaml.load(text, yaml.CSafeLoader), text
    assert merges > 30


def test_the_reader_of_flat_texts_reads_them_as_the_other_one() -> None:
    written = (_Texts(seed).value(4) for seed in range(400))
    odd = ("", "a: 1\na: 2", "a: [", "a: !!int x", "- !Ref a\n- 08\n- 1_0\n- 0o7\n- 18446744073709551616", "? [a]\n: b")
    read = 0
    for text in (*written, *odd):
        if is_flat(text):
            read += 1
            assert _outcome(text, FlatLoader) == _outcome(text, Loader), text
    assert read > 200


def _outcome(text: str, loader: type[Loader]) -> str:
    """The value, or the error with its place."""
    try:
        return repr(yaml.load(text, loader))
    except yaml.YAMLError as error:
        return str(error)


NESTED = {
    "flow lists": lambda n: "[" * n + "]" * n,
    "flow mappings": lambda n: "{a: " * n + "1" + "}" * n,
    "in one line": lambda n: "- " * n + "a",
    "complex keys": lambda n: "? " * n + "a",
    "complex values": lambda n: "? a\n" + "".join(f"{' ' * 2 * at}: ? a\n" for at in range(n)),
    "mappings": lambda n: "".join(f"{' ' * at}a:\n" for at in range(n)),
    "after carriage returns": lambda n: "".join(f"{' ' * at}a:\r" for at in range(n)),
    "after rare breaks": lambda n: "".join(f"{' ' * at}a:\u2028" for at in range(n)),
    "lists as far in as keys": lambda n: "".join(f"{' ' * at}a:\n{' ' * at}-\n" for at in range(n // 2)),
    "lists in lists": lambda n: "".join(f"{' ' * at}-\n" for at in range(n)),
    "pairs in flow lists": lambda n: "[a: " * (n // 2) + "1" + "]" * (n // 2),
    "pairs in flow lists in lists as far in as keys": lambda n: (
        "".join(f"{' ' * at}a:\n{' ' * at}-\n" for at in range(n // 5))
        + f"{' ' * (n // 5)}{'[a: ' * (n * 3 // 10)}1{']' * (n * 3 // 10)}"
    ),
    "in block and flow": lambda n: "- " * (n // 2) + "[" * (n - n // 2) + "]" * (n - n // 2),
}


@pytest.mark.parametrize("layout", NESTED.values(), ids=NESTED)
def test_a_text_over_the_bound_of_levels_is_never_flat(layout: Callable[[int], str]) -> None:
    assert is_flat(layout(10))
    found = [_outcome(layout(levels), Loader) for levels in (DEEPEST // 2, DEEPEST - 5, DEEPEST + 5, DEEPEST * 2)]
    assert any("deeper than" in one for one in found)
    assert not any(is_flat(layout(levels)) for levels in range(DEEPEST - 1, DEEPEST * 2 + 1))


def test_a_mapping_that_another_merges_first_is_no_duplicate() -> None:
    """The one in `deep` is constructed after the one that merges it."""
    text = "base: &b {k: 1}\nx: {y: {deep: &d {<<: *b, k: 2}}}\nlast: {<<: *d}"
    assert read_yaml(text) == yaml.load(text, yaml.CSafeLoader)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (MERGE_BOMB, 8, "repeat more than 100,000 values here: write them out, or split the file"),
        (ALIAS_BOMB, 6, "repeat more than 100,000 values"),
        (CHAIN, 200, "deeper than 200 levels"),
        (f"a: &a {'x' * 640_000}\nb: [{', '.join(['*a'] * 20)}]", 2, "repeat more than 100,000 values"),
        ("a: 1\nb: &b [1, *b]", 2, "an anchor holds itself"),
        ("a: &a\n  <<: *a", 2, "an anchor holds itself"),
        ("a: 1\nb: " + "[" * 100_000, 2, "deeper than 200 levels: make it flatter"),
        ("a: 1\nb: " + "{a: " * 100_000, 2, "deeper than 200 levels"),
        ("a: 1\nb:\n  " + "- " * 100_000, 3, "deeper than 200 levels"),
        ("a: 1\nb: 1" + ":1" * 100_000, 2, "a number has 200,001 characters, more than 1,000: put a text in quotes"),
        ("a: 1\nb: " + "1" * 5_000, 2, "a number has 5,000 characters"),
    ],
    ids=[
        "merges",
        "aliases",
        "chain",
        "long text",
        "cycle",
        "own merge",
        "lists",
        "maps",
        "dashes",
        "base 60",
        "digits",
    ],
)
def test_refuses_what_is_over_a_bound(text: str, line: int, problem: str) -> None:
    with pytest.raises(OverBounds) as raised:
        read_yaml(text)
    assert problem in str(raised.value.problem)
    assert raised.value.problem_mark.line + 1 == line


def test_reads_what_is_just_within_the_bounds() -> None:
    once = f"a: &a [{', '.join('1' for _ in range(999))}]\n"
    fits = MOST_REPEATED // 1000
    assert len(read_yaml(once + f"b: [{', '.join(['*a'] * fits)}]")["b"]) == fits
    with pytest.raises(OverBounds):
        read_yaml(once + f"b: [{', '.join(['*a'] * (fits + 1))}]")
    assert read_yaml("[" * DEEPEST + "]" * DEEPEST)
    assert read_yaml("9" * LONGEST_NUMBER) == 10**LONGEST_NUMBER - 1


@pytest.mark.parametrize("text", ["!!int many", "!!float many", "!!bool many", "!!timestamp many", "0b_", "0x_"])
def test_a_value_that_its_tag_does_not_fit_is_an_error_with_a_line(text: str) -> None:
    with pytest.raises(yaml.MarkedYAMLError, match="put a text in quotes") as raised:
        read_yaml(f"a: 1\nb: {text}")
    assert raised.value.problem_mark.line == 1


def test_unknown_tags_are_ignored() -> None:
    assert read_yaml("a: !Ref b\nc: !reference [d, e]\nf: !vault {g: 1}\nh: !Sub 1") == {
        "a": "b", "c": ["d", "e"], "f": {"g": 1}, "h": "1",
    }  # fmt: skip


def test_a_typed_text_names_the_field_that_is_wrong() -> None:
    assert decode_yaml("{a: 1}", dict[str, int]) == {"a": 1}
    with pytest.raises(msgspec.ValidationError, match="Expected `int`"):
        decode_yaml("{a: b}", dict[str, int])


def test_no_other_reader_is_used() -> None:
    """Every YAML text is read by the one that is bounded."""
    source = Path("src/dovetail")
    wild = ("safe_load", "full_load", "unsafe_load", "SafeLoader", "yaml.decode", "yaml.Loader")
    found = [
        str(file)
        for file in source.rglob("*.py")
        if file.name != "yaml_text.py" and any(word in file.read_text() for word in wild)
    ]
    assert not found


@pytest.mark.parametrize("bomb", [MERGE_BOMB, ALIAS_BOMB], ids=["merges", "aliases"])
@pytest.mark.parametrize(
    "command",
    [("lint",), ("migrate",), ("simulate",), ("submit", "--kubeconfig", "CONFIG"), ("lint", "PODS", "--inventory")],
    ids=lambda one: one[0],
)
def test_each_command_that_reads_manifests_refuses_a_bomb(tmp_path: Path, command: tuple[str, ...], bomb: str) -> None:
    file = tmp_path / "bomb.yaml"
    file.write_text(f"kind: Pod\n{bomb}\n")
    named = {"CONFIG": tmp_path / "config", "PODS": tmp_path / "pods.yaml"}
    named["CONFIG"].write_text(KUBECONFIG)
    named["PODS"].write_text("kind: Pod\n")
    result = CliRunner().invoke(cli, [*(str(named.get(word, word)) for word in command), str(file)])
    assert result.exit_code
    assert "repeat more than 100,000 values" in result.output
    assert f"{file}:{9 if bomb is MERGE_BOMB else 7}" in result.output


def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    file = tmp_path / "bomb.yaml.gz"
    file.write_bytes(gzip.compress(b" " * (33 * 2**20), 9, mtime=0))
    result = CliRunner().invoke(cli, ["lint", str(file)])
    assert "unpacks to more than 32 MiB: unpack and split it" in result.output


def test_the_loader_reads_several_documents() -> None:
    text = "a: &a {k: 1}\nb: {<<: *a}\n---\na: &a {k: 2}\nb: {<<: *a}\n"
    assert list(yaml.load_all(text, Loader)) == list(yaml.load_all(text, yaml.CSafeLoader))


def test_a_mapping_that_is_tagged_as_a_text_is_no_key() -> None:
    with pytest.raises(yaml.YAMLError):
        read_yaml("? !!str {a: b}\n: c\n")


def test_a_number_and_a_text_are_different_keys() -> None:
    assert read_yaml('1: a\n"1": b\n<<: {c: d}\n') == {1: "a", "1": "b", "c": "d"}


def test_a_key_may_be_there_twice_with_one_text() -> None:
    assert read_yaml("a: b\na: b\nc: 1\n") == {"a": "b", "c": 1}
    for second in ("c", '"1"', "{b: c}"):
        with pytest.raises(yaml.YAMLError, match="'a' is there twice"):
            read_yaml(f"a: 1\na: {second}\n")
    with pytest.raises(yaml.YAMLError, match="'a' is there twice"):
        read_yaml("a: [b]\na: [b]\n")
