# SPDX-License-Identifier: Apache-2.0
"""The field's words: identifiers, docstrings, comments and messages of the sources, tools, benchmarks and tests use
none of `WORDS`.

A message is a string of three words or more. Shorter strings are names that users see, such as fields of JSON and of
recordings, and stay as they are. The right words are in docs/glossary.md.
"""

import ast
import re
import tokenize
from collections.abc import Container, Iterator, Sequence
from io import StringIO
from itertools import pairwise
from pathlib import Path

import pytest

from tests.paths import ROOT

SOURCE = ROOT / "src"
ROOMS = (
    "kubecel",
    *sorted(f"dovetail/{path.name}" for path in (SOURCE / "dovetail").iterdir() if any(path.glob("*.py"))),
    "tools",
    "benchmarks",
    *sorted(f"tests/{path.name}" for path in (ROOT / "tests").iterdir() if any(path.rglob("*.py"))),
)
WORDS = {
    "alike": "equal, uniform, similar",
    "debtor": "queue above its share",
    "debtors": "queues above their share",
    "give way": "are evicted, are preempted",
    "gives way": "is evicted, is preempted",
    "given": "allocated, passed, set; a noun of what it is",
    "giving way": "eviction, preemption",
    "ill": "unhealthy",
    "looked at": "examined, checked",
    "said": "reported, declared, described",
    "say": "report, declare, describe",
    "says": "reports, declares, describes",
    "sick": "unhealthy",
    "standing": "status, share class",
    "standings": "statuses",
    "tell": "report, distinguish",
    "telling": "reporting",
    "tells": "reports, distinguishes",
    "told": "reported, known",
    "who": "the pod, job, queue or user that",
    "whom": "the pod, job, queue or user that",
    "wish": "request, option",
    "wished": "requested",
    "wishes": "requests, options",
}
"""By word the words to use."""
NAMES = {
    "dovetail/core": {"tell_again_ms": "a field of the policy, in recordings and in docs/reference/placing.md"},
    "dovetail/kube": {"given": "a field in the status of a GPUNode"},
    "dovetail/operator": {"given": "as in dovetail/kube"},
    "dovetail/recording": {"tell": "the method of a file"},
    "dovetail/views": {"given": "as in dovetail/kube", "tell_again_ms": "as in dovetail/core"},
    "tests/core": {"tell_again_ms": "as in dovetail/core", "TELL_AGAIN_MS": "its value"},
    "tests/live": {"tell_again_ms": "as in dovetail/core"},
    "tests/recording": {"tell_again_ms": "as in dovetail/core"},
}
"""By room the identifiers that may have such a word, and why."""
HYPOTHESIS = "given"
"""The decorator of Hypothesis, which tests may use."""
QUOTED = ("was given ", "].given")
"""Parts of messages that are those of another program, cel-go, or the path of a field of a GPUNode."""
_FOUND = re.compile(
    rf"(?<![A-Za-z])(?:{'|'.join(word.replace(' ', '[ _]') for word in WORDS)})(?![A-Za-z])", re.IGNORECASE
)
_ONES = frozenset(word.encode() for word in WORDS if " " not in word)
_PAIRS = [word.encode().split() for word in WORDS if " " in word]
_LETTERS = bytes(one if chr(one).isalpha() and one < 128 else 32 for one in range(256)).lower()
"""A text's letters in lower case, with a space for each other character."""
_PREFIXES = {b"b", b"br", b"f", b"fr", b"r", b"rb", b"rf", b"u"}
"""Of the parts of a message, as in f"they give " f"way"."""
_OF_HYPOTHESIS = re.compile(rf"^(?:@{HYPOTHESIS}\(|from hypothesis import .*)", re.MULTILINE)
_PARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def words_in(text: str) -> list[str]:
    """The words of `WORDS` in a text or, as one of its parts, in an identifier."""
    return [found.lower().replace("_", " ") for found in _FOUND.findall(_PARTS.sub("_", text))]


def prose(text: str) -> str:
    """A docstring or comment without the code in it."""
    return re.sub(r"`[^`]*`", "", text)


def _docstrings(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """All strings that are statements, with their lines."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def _messages(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """All strings of three words or more that are not statements, with their lines, without what they quote."""
    statements = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in statements:
            text = node.value
            if text.count(" ") >= 2:
                for quoted in QUOTED:
                    text = text.replace(quoted, "")
                yield node.lineno, text


def of_python(text: str, names: set[str]) -> Iterator[tuple[int, str]]:
    """Line and word of each use in a Python module; identifiers in `names` are permitted."""
    nodes = list(ast.walk(ast.parse(text)))
    for line, docstring in _docstrings(nodes):
        yield from ((line, word) for word in words_in(prose(docstring)))
    for line, message in _messages(nodes):
        yield from ((line, word) for word in words_in(prose(message)))
    for token in tokenize.generate_tokens(StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from ((token.start[0], word) for word in words_in(prose(token.string)))
        elif token.type == tokenize.NAME and token.string not in names:
            yield from ((token.start[0], word) for word in words_in(token.string))


def of_c(text: str) -> Iterator[tuple[int, str]]:
    """The same in a C source, without its strings."""
    for line, code in enumerate(text.splitlines(), 1):
        yield from ((line, word) for word in words_in(re.sub(r'"(?:[^"\\]|\\.)*"', "", code)))


def likely(text: str, names: Container[str]) -> bool:
    """Whether there may be a use; where there is one there may, wherever lines are broken. Most texts need not be
    parsed."""
    if HYPOTHESIS in names:
        text = _OF_HYPOTHESIS.sub("", text)
    found = _PARTS.sub("_", text).encode().translate(_LETTERS).split()
    some = set(found)
    if not some.isdisjoint(_ONES):
        return True
    if all(first not in some for first, _ in _PAIRS):
        return False
    return any([one, two] in _PAIRS for one, two in pairwise(one for one in found if one not in _PREFIXES))


def found_in(path: Path, names: set[str]) -> Iterator[str]:
    """Each use in a file, as a message with the words to use."""
    text = path.read_text()
    if not likely(text, names):
        return
    uses = of_c(text) if path.suffix in (".c", ".h") else of_python(text, names)
    for line, word in uses:
        yield f"{path.relative_to(ROOT)}:{line}: {word} (instead: {WORDS[word]})"


def sources(room: str) -> list[Path]:
    folder = ROOT / room if (ROOT / room).is_dir() else SOURCE / room
    return sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".c", ".h"))


@pytest.mark.slow
@pytest.mark.parametrize("room", ROOMS)
def test_the_sources_use_the_fields_words(room: str) -> None:
    files = sources(room)
    assert files
    names = {*NAMES.get(room, ()), *((HYPOTHESIS,) if room.startswith("tests/") else ())}
    assert [use for path in files for use in found_in(path, names)] == []


@pytest.mark.parametrize("room", NAMES)
def test_each_permitted_name_is_used(room: str) -> None:
    text = "\n".join(path.read_text() for path in sources(room))
    assert [name for name in NAMES[room] if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gang_told = 1", ["told"]),
        ("class ToldRefusal: ...", ["told"]),
        ("def f(who): ...", ["who"]),
        ('def f() -> None:\n    """Pods that give way."""', ["give way"]),
        ('x = 1\n"""What the kubelet says."""', ["says"]),
        ("x = 1  # as it was given", ["given"]),
        ("MOST_LOOKED_AT = 1", ["looked at"]),
        ('x = "told"', []),
        ('x = f"the plugin tells {node} of it"', ["tells"]),
        ('x = f"{reason}, was given {kind} and more"', []),
        ('def f() -> None:\n    """As `told` is."""', []),
        ("whole, essay, skill, outstanding = 1, 2, 3, 4", []),
        ("tell_again_ms = 1", []),
    ],
)
def test_uses_are_found_in_names_docstrings_and_comments(text: str, found: list[str]) -> None:
    assert [word for _, word in of_python(text, {"tell_again_ms"})] == found
    assert likely(text, ()) or not found


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ('x = (f"they give "\n  f"way to it")', True),
        ("# all that is looked\n# at", True),
        ("LookedAt = 1", True),
        ("# they give nothing, and a way", False),
        ("from hypothesis import given\n\n@given(x=1)\ndef f(): ...", False),
        ("from hypothesis import given\n\n@given(x=1)\ndef f(): ...  # as given", True),
        ("# while skilled Überill, whole", False),
    ],
)
def test_only_texts_in_which_there_may_be_a_use_are_parsed(text: str, may: bool) -> None:
    assert likely(text, {HYPOTHESIS}) == may


def test_uses_are_found_in_c() -> None:
    assert list(of_c('int gpus_told; // who\nf("told");')) == [(1, "told"), (1, "who")]
