# SPDX-License-Identifier: Apache-2.0
"""An edit in a text makes of its value what it makes of a value, and leaves every other byte as it was."""

from __future__ import annotations

import json
import random
import textwrap
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.advice.lint.edits import Edit, edited, json_patch
from dovetail.advice.lint.rewrite import NotRewritten, _swapped, rewritten
from dovetail.advice.lint.tree import tree
from dovetail.kube.yaml_text import Loader
from tests.advice.lint.layouts import LAYOUTS, comments, leaves, paths, written

KEYS = st.sampled_from(["name", "image", "nvidia.com/gpu", "limits", "a b", "on", "1", "x"])
SCALARS = st.one_of(
    st.sampled_from(["4", "text", "it's", 'a "b"', "# no", "a: b", "", "yes", "ünïcode", "x\ny", "1e3", "~"]),
    st.integers(-5, 99),
    st.booleans(),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(KEYS, VALUES, min_size=1, max_size=4)


def an_edit(document: Any, dice: random.Random, new: Any) -> Edit:
    """One that has a place in the document."""
    places = paths(document)
    mappings = [path for path, value in places if isinstance(value, dict)]
    below = [path for path, _ in places if path]
    choices = ["new", "deep"]
    choices += ["put", "drop"] if below else []
    choices += ["append"] if any(isinstance(value, list) for _, value in places) else []
    keyed = [path for path in below if isinstance(path[-1], str)]
    choices += ["rename"] if keyed else []
    what = dice.choice(choices)
    if what == "new":
        return Edit("put", (*dice.choice(mappings), "fresh"), new)
    if what == "deep":
        return Edit(dice.choice(["put", "append"]), (*dice.choice(mappings), "fresh", "er"), new)
    if what == "append":
        return Edit("append", dice.choice([path for path, value in places if isinstance(value, list)]), new)
    if what == "rename":
        return Edit("rename", dice.choice(keyed), "renamed")
    path = dice.choice(keyed or below) if what == "put" else dice.choice(below)
    return Edit(what, path, new if what == "put" else None)  # type: ignore[arg-type]


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(DOCUMENTS, st.sampled_from(LAYOUTS), st.one_of(SCALARS, VALUES), st.randoms(use_true_random=False))
def test_means_what_the_edit_means(document: Any, layout: str, new: Any, dice: random.Random) -> None:
    text = written(document, layout, dice)
    edit = an_edit(document, dice, new)
    wanted = edited(document, (edit,))
    try:
        after = rewritten(text, (edit,))
    except NotRewritten:
        # A scalar item of a list has no key to stand behind, nor what a block scalar is replaced by.
        assert isinstance(edit.path[-1], int) or any(isinstance(s, str) and "\n" in s for s in leaves(document)), text
        return
    assert yaml.load(after, Loader) == wanted
    lost = comments(text) - comments(after)
    assert not lost or edit.op in ("drop", "put"), (text, after)
    if layout == "crlf" and "\r\n" in text:
        assert after.count("\n") == after.count("\r\n")


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(DOCUMENTS, st.sampled_from(LAYOUTS), SCALARS, st.randoms(use_true_random=False))
def test_a_new_field_changes_no_other_line(document: Any, layout: str, new: Any, dice: random.Random) -> None:
    text = written(document, layout, dice)
    mappings = [path for path, value in paths(document) if isinstance(value, dict) and value]
    edit = Edit("put", (*dice.choice(mappings), "fresh"), new)
    after = rewritten(text, (edit,))
    at = next((i for i, (a, b) in enumerate(zip(text, after, strict=False)) if a != b), len(text))
    put = len(after) - len(text)
    # All that is new is one piece, somewhere around the first difference.
    assert any(after[:i] + after[i + put :] == text for i in range(max(0, at - put), at + 1)), (text, after)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(DOCUMENTS, st.one_of(SCALARS, VALUES), st.randoms(use_true_random=False))
def test_the_json_patch_makes_the_same_change(document: Any, new: Any, dice: random.Random) -> None:
    edit = an_edit(document, dice, new)
    before = json.dumps(document)
    patched = document
    for step in json_patch(document, (edit,)):
        patched = by_rfc_6902(patched, step)
    assert patched == edited(document, (edit,))
    assert json.dumps(document) == before


def by_rfc_6902(document: Any, step: dict[str, Any]) -> Any:
    document = json.loads(json.dumps(document))

    def parent(pointer: str) -> tuple[Any, Any]:
        names = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
        value = document
        for name in names[:-1]:
            value = value[int(name)] if isinstance(value, list) else value[name]
        last: Any = names[-1]
        if isinstance(value, list):
            last = len(value) if last == "-" else int(last)
        return value, last

    if step["op"] == "move":
        value, last = parent(step["from"])
        moved = value.pop(last)
        document = by_rfc_6902(document, {"op": "add", "path": step["path"], "value": moved})
    else:
        value, last = parent(step["path"])
        if step["op"] == "remove":
            del value[last]
        elif step["op"] == "add" and isinstance(value, list):
            value.insert(last, step["value"])
        else:
            assert step["op"] == "add" or last in value if isinstance(value, dict) else last < len(value)
            value[last] = step["value"]
    return document


@pytest.mark.parametrize(
    ("before", "edit", "after"),
    [
        ("a:\n  b: 1 # one\n# end\n", Edit("put", ("a", "c"), 2), "a:\n  b: 1 # one\n  c: 2\n# end\n"),
        ("a: {b: 1}\n", Edit("put", ("a", "c"), {"d": [1]}), "a: {b: 1, c: {d: [1]}}\n"),
        ("a:\nb: 1\n", Edit("put", ("a", "c"), "x"), "a:\n  c: x\nb: 1\n"),
        ("a: {}\n", Edit("append", ("a", "c"), "x"), "a: {c: [x]}\n"),
        ("a: 'x'\n", Edit("put", ("a",), "y"), "a: 'y'\n"),
        ("a: \"1\" # n\n", Edit("put", ("a",), "2"), "a: \"2\" # n\n"),
        ("l:\n- a: 1\n  b: 2\n", Edit("drop", ("l", 0, "a")), "l:\n- b: 2\n"),
        ("l:\n  - a\n  - b\n", Edit("append", ("l",), {"c": 1, "d": 2}), "l:\n  - a\n  - b\n  - c: 1\n    d: 2\n"),
        ("l:\n  - a\n  - b # two\nc: 1\n", Edit("drop", ("l", 1)), "l:\n  - a\nc: 1\n"),
        ("a:\n  b: 1\n", Edit("drop", ("a", "b")), "a: {}\n"),
        ('{\n  "a": 1\n}\n', Edit("put", ("b",), "x"), '{\n  "a": 1,\n  "b": "x"\n}\n'),
        ("a: |\n  text\n\nb: 1\n", Edit("put", ("c",), 1), "a: |\n  text\n\nb: 1\nc: 1\n"),
        ("a: 1", Edit("put", ("c",), 1), "a: 1\nc: 1"),
        ("x: &x {a: 1}\ny: *x\n", Edit("put", ("z",), 1), "x: &x {a: 1}\ny: *x\nz: 1\n"),
        ("x: !!set {a, b}\n", Edit("put", ("z",), 1), "x: !!set {a, b}\nz: 1\n"),
    ],
)  # fmt: skip
def test_keeps_the_layout(before: str, edit: Edit, after: str) -> None:
    assert rewritten(before, (edit,)) == after


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        ("x: &x\n  a: 1\ny: *x\n", Edit("put", ("y", "b"), 2)),
        ("x: &x\n  a: 1\ny: *x\n", Edit("put", ("x", "a"), 2)),
        ("x: &x {a: 1}\ny:\n  <<: *x\n", Edit("put", ("x", "b"), 2)),
        ("x: &x {a: 1}\ny:\n  <<: *x\n", Edit("drop", ("y", "a"))),
    ],
)
def test_what_others_share_is_left_alone(text: str, edit: Edit) -> None:
    with pytest.raises(NotRewritten):
        rewritten(text, (edit,))


def test_a_merged_field_is_overridden_where_it_is_merged() -> None:
    text = textwrap.dedent("""\
        x: &x {a: 1}
        y:
          <<: *x
          b: 1
        """)
    assert rewritten(text, (Edit("put", ("y", "a"), 2),)) in (
        "x: &x {a: 1}\ny:\n  <<: *x\n  b: 1\n  a: 2\n", "x: &x {a: 1}\ny:\n  <<: *x\n  a: 2\n  b: 1\n"
    )  # fmt: skip


WORDS = ("4", "0", "16", "true", "a1", "null", "1e3", "0x1F", "007", "9" * 30)
ODD = (
    "a: &n 1\nb: *n\n",
    "base: &b {gpu: 1}\nuse: {<<: *b, gpu: 1}\n",
    "1: 2\n'1': 2\n",
    "a: {1: {n: 2}, '1': {n: 2}}\n",
    "on: 1\n",
    "n: 1\nn: 1\n",
    "a: !!str 1\n",
    "a: !x 1\n",
    "%YAML 1.1\n---\na: 1\n",
    "a: |\n  1\nb: >\n  1\n",
    "a: 1 # *\nb: ['1', \"1\", 1]\n",
    "a: [1,2]\nb: {c: 1,d: '2'}\n",
    '{"a":1,"b":"1"}',
    "? a\n: 1\n",
    "1\n",
    "a: 1\n...\n",
)


def outcome(text: str, edits: tuple[Edit, ...]) -> str:
    try:
        return rewritten(text, edits)
    except NotRewritten:
        return "refused"


@pytest.mark.slow
def test_a_word_in_place_of_another_is_what_the_proof_would_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    dice, cases = random.Random(3), []
    texts = [(text, yaml.load(text, Loader)) for text in ODD]
    for at in range(60):
        document = {key: {"list": [dice.choice(WORDS), 7, {"1": 2}], "on": dice.choice((1, "1", "x"))} for key in "ab"}
        texts.append((written(document, LAYOUTS[at % len(LAYOUTS)], dice), document))
    for text, document in texts:
        for path, _ in paths(document):
            steps = (*map(str, path[:1]), *path[1:])
            new = dice.choice((dice.randrange(99), dice.choice(WORDS), 10**18, -1, True))
            cases.append((text, (Edit("put", steps, new), Edit("put", (*steps, "x"), 1))[: dice.choice((1, 1, 2))]))
    quick = [outcome(text, edits) for text, edits in cases]
    swapped = [one for text, (edit, *_) in cases if (one := _swapped(text, tree(text), edit, yaml.load(text, Loader)))]
    assert len(cases) > 500 and len(swapped) > 80
    monkeypatch.setattr("dovetail.advice.lint.rewrite._swapped", lambda *_: None)
    assert quick == [outcome(text, edits) for text, edits in cases]
