# SPDX-License-Identifier: Apache-2.0
"""Documents of a YAML text: values, lines and errors are those of PyYAML, which reads the text as one stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dovetail.kube.manifests import yaml_stream
from dovetail.kube.manifests.documents import not_yaml
from dovetail.kube.manifests.yaml_stream import NodePlace, StreamDocument, TextPlace, stream_documents
from dovetail.kube.yaml_text import Loader
from tests.kube.yaml_texts import MANIFESTS, mutated, texts

SEPARATORS = (
    *("\n---\n",) * 6, "---\n", "\n--- ", "\n---\t", "\n---", "\n--- # a\n", "\n--- |\n", "\r---\n", "\n\n---\r\n",
    "\n...\n", "\n...\n---\n", "\r...\n", "\n%YAML 1.1\n---\n", "\n%TAG ! !a\n---\n", "\n# a\n---\n---\n",
    "\n---\xa0a\n", "\n---\u2028", "\n \n---\n", "\u2029%a\n---\n", "\n",
)  # fmt: skip


SMALL = [text for text in MANIFESTS if len(text) < 1000]


@st.composite
def streams(draw: st.DrawFn) -> str:
    """A few texts, one after another."""
    found = draw(st.sampled_from(("", "", "", "---\n", "# a\n---\n", "%YAML 1.1\n---\n", "...\n", "\ufeff")))
    for part in draw(st.lists(st.one_of(texts, mutated(), st.sampled_from(SMALL)), min_size=1, max_size=4)):
        found += part + draw(st.sampled_from(SEPARATORS))
    return found


def by_pyyaml(text: str) -> Iterator[StreamDocument]:
    """The documents of the text as one stream."""
    loader = Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            yield StreamDocument(loader.construct_document(node), NodePlace(node))
    finally:
        loader.dispose()


def read(documents: Iterable[StreamDocument]) -> tuple[list[StreamDocument], str]:
    """The documents before the first error, and the error."""
    found = []
    try:
        for one in documents:
            found.append(one)
    except yaml.YAMLError as error:
        return found, str(not_yaml(error, "a.yaml"))
    return found, ""


def fields(value: Any, at: str = "") -> Iterator[str]:
    """The paths of all fields and items, and of one that is not there, beside and below each."""
    yield at
    yield f"{at}[absent].deeper"
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from fields(inner, f"{at}[{key}]")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from fields(inner, f"{at}[{number}]")


def check(text: str) -> list[StreamDocument]:
    found, error = read(stream_documents(text))
    wanted, wanted_error = read(by_pyyaml(text))
    assert error == wanted_error
    # Also the types, the order of keys, and numbers that are none.
    assert [repr(one.value) for one in found] == [repr(one.value) for one in wanted]
    for one, other in zip(found, wanted, strict=True):
        for field in fields(other.value):
            assert one.place.inside(field).line == other.place.inside(field).line, field
    return found


@pytest.mark.slow
@given(streams())
@settings(max_examples=100)
@example("a: 'b\n---\nc: d\n---\ne: f\n")
@example("a: 1\n---\nb: [c\n---\nd: e\n")
@example("a: 1\n---\nb: &c d\n---\ne: *c\n")
@example("a: 1\n---\nb: |+\n  c\n\n \n---\nd: e\n")
@example("a: 1\n%YAML 1.1\n---\nb: 2\n")
@example("a: 1\n---\nb: 1\r---\nc: 2\n---\nd: 3\n")
@example("a: 1\n---\nb: \x00\n")
@example("a: 1\n---\n\ufeffb: 1\n")
@example("---\n---\n# a\n---\nb:\n\n- c:\n    - [d, {e: f}]\n  g:\n-\n -  h: |\n     i\n")
@example("a: {b: 1, <<: {c: 2}}\n---\na: 1\na: 2\n---\nb: 1\n")
def test_documents_lines_and_errors_are_those_of_pyyaml(text: str) -> None:
    check(text)


def test_many_manifests_in_one_text() -> None:
    found = check("---\n" + "\n---\n".join(SMALL))
    assert len(found) >= len(SMALL) - 5 > 100
    assert sum(isinstance(one.place, TextPlace) for one in found) > 0.8 * len(found)


def test_pyyaml_reads_only_the_parts_that_the_reader_of_lines_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def loader_of(text: str) -> Loader:
        asked.append(text)
        return Loader(text)

    monkeypatch.setattr(yaml_stream, "loader_of", loader_of)
    monkeypatch.setattr(yaml_stream, "Loader", None)
    text = "# first\na: 1\n---\nb: &c [d]\n---\n- e\n- f: 2\n"
    found = list(stream_documents(text))
    assert asked == ["---\nb: &c [d]\n"]
    assert [one.value for one in found] == [{"a": 1}, {"b": ["d"]}, ["e", {"f": 2}]]
    assert [type(one.place) for one in found] == [TextPlace, NodePlace, TextPlace]
    assert [one.place.line for one in found] == [2, 4, 6]
    assert found[2].place.inside("[1].f").line == 7
