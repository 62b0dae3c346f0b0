# SPDX-License-Identifier: Apache-2.0
"""YAML texts near the borders of what the reader of lines reads, and pieces of manifests with other characters."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.paths import ROOT

WRITTEN = """\
a¦b¦c¦a b¦1¦0¦-1¦+1¦007¦08¦0x1F¦0b1¦0o7¦1_000¦_1¦1:30¦1:99¦-1:30.5¦1.5¦1.¦.5¦1e3¦1.0e+3¦.inf¦-.INF¦.nan¦.NaN¦\
yes¦No¦on¦OFF¦true¦True¦y¦~¦null¦Null¦¦=¦<<¦<¦2001-01-01¦111111111111111111111111111111¦a:b¦a::b¦a#b¦a #b¦a# b¦\
a: b¦a :b¦a : b¦:¦:a¦a:¦-¦--¦-a¦--a¦- a¦-1.¦---¦...¦? a¦?a¦?¦&a¦&a b¦*a¦!a¦!!str 1¦!!int 1¦%a¦@a¦`a¦|¦|-¦|+¦|2¦\
| #a¦>¦>-¦''¦'a'¦'a''b'¦'a: b'¦'a #b'¦'a'b¦'a' #b¦'a'#b¦'a¦""¦"a"¦"a\\n"¦"a'b"¦"a: #b"¦"a" b¦"a¦'1'¦"yes"¦#a¦\
 #a¦{}¦[]¦[a]¦[a, b]¦[a, ]¦[,]¦[a,,b]¦[a: 1]¦[a b, c]¦[[a], {b: c}]¦[-a, - b, -]¦{a, b: }¦{a: 1, b: 2}¦\
{a: 1, a: 2}¦{a: 1,}¦{a:1}¦{a:}¦{a: }¦{a : 1}¦{'a':1}¦{"a":1, "b": [1]}¦{'a' : 1}¦{1: a}¦{<<: {a: 1}}¦{a: b: c}¦\
{? a : b}¦{a: b#c}¦{a: b #c}¦{a: b} #c¦{a: b}#c¦{a: b} c¦{a: 'b, c', d: "e}"}¦{a: *b}¦{a: &b c}¦{a: !b c}¦\
{a: b?c}¦{a: ?b}¦{a: b:c}¦{a: b:}¦{a: :b}¦[a:b, c:]¦[a?]¦[?a]¦[a, #b¦[a¦{a: [}¦[yes, 1.5, ~, 'x']¦$(A)¦${A}¦é¦😀"""
WORDS = (*WRITTEN.split("¦"), "1" * 70)
"""Near the borders of what is read."""
ODD = "ab1 :#,-?[]{}'\"&*!|>%@`~=<.\\\t\r\x85\u2028\ufeff\xa0\u00e9"

values = st.one_of(st.sampled_from(WORDS), st.text(ODD, max_size=6))
flows = st.recursive(
    values,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.lists(st.tuples(values, st.sampled_from((": ", ":", ": ", " : ", "")), inner), max_size=3).map(
            lambda items: "{" + ", ".join("".join(item) for item in items) + "}"
        ),
    ),
    max_leaves=4,
)
keys = st.one_of(st.sampled_from(("a", "b", "c", "d")), values)
ends = st.sampled_from(("", "", "", "", " ", " # c", "  #", "#c", "\r"))
starts = st.tuples(
    st.sampled_from(("", "", "  ", "  ", "    ", " ", "      ")),
    st.sampled_from(("", "", "", "- ", "- ", "-", "-  ", "- - ", "-   - ")),
)
pairs = st.tuples(keys, st.sampled_from((": ", ": ", ":", ":  ", " : ", ": ", ":\t")), flows).map("".join)
bodies = st.one_of(pairs, pairs, keys.map(lambda key: f"{key}:"), flows, st.just(""))
lines = st.one_of(
    st.tuples(starts.map("".join), bodies, ends).map("".join),
    st.tuples(starts.map("".join), bodies, ends).map("".join),
    st.sampled_from(
        ("---", "--- ", "--- # a", "--- a", "...", "", "", "  ", "# a", "   # a", "%YAML 1.1", "    x", "\ufeff")
    ),
)
texts = st.tuples(st.lists(lines, max_size=7).map("\n".join), st.sampled_from(("", "\n", "\n\n", "  \n", "\n  "))).map(
    "".join
)


def _written() -> list[str]:
    """The manifests of this repository, without templates."""
    found = [file for folder in ("deploy", "docs", "examples", "tests") for file in (ROOT / folder).rglob("*.yaml")]
    files = sorted(file for file in found if not {"templates", "cases"} & {*file.parts})
    return [part for file in files for part in file.read_text().split("\n---\n")]


MANIFESTS = _written()


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A piece of a manifest with a few other characters."""
    written = draw(st.sampled_from(MANIFESTS)).split("\n")
    first = draw(st.integers(0, max(len(written) - 8, 0)))
    text = "\n".join(written[first : first + draw(st.integers(1, 30))]) + "\n"
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        new = draw(st.one_of(st.text(ODD + "\n", max_size=2), st.sampled_from(("\n  ", "\n- ", ": ", " #", "''"))))
        text = text[:at] + new + text[at + draw(st.integers(0, 2)) :]
    return text
