# SPDX-License-Identifier: Apache-2.0
"""Regular expressions as RE2 has them: what they match, what they refuse, and that no pattern takes for ever."""

import pytest

from kubecel.regex import Regex
from kubecel.regex_syntax import RegexError

MATCHES = [
    ("H[0-9]+", "NVIDIA H100 80GB", (7, 11)), ("^a", "ba", None), ("a$", "ab\na\n", None),
    ("(?m)a$", "ab\na\n", (3, 4)),
    ("a|ab", "ab", (0, 1)), ("ab|a", "ab", (0, 2)), ("(a|ab)(c|bcd)(d*)", "abcd", (0, 4)), ("a*?", "aa", (0, 0)),
    ("a+?b", "aab", (0, 3)), ("(?U)a+", "aa", (0, 1)), ("(?U)a+?", "aa", (0, 2)), ("a{2,3}", "aaaa", (0, 3)),
    ("a{2}", "aaa", (0, 2)), ("a{2,}", "aaaa", (0, 4)), ("a{,2}", "a{,2}", (0, 5)), ("(?i)nvidia", "NVidia", (0, 6)),
    ("(?i:k)", "\u212a", (0, 1)), ("(?i)[k]", "K", (0, 1)), ("(?-i)a", "A", None), (".", "\n", None),
    ("(?s).", "\n", (0, 1)),
    (r"\d\D\w\W\s\S", "1a_- x", (0, 6)), (r"\d", "\u0665", None), (r"\bb\b", "a b c", (2, 3)), (r"\Bb", "ab", (1, 2)),
    (r"\Aa\z", "a", (0, 1)), (r"[[:alpha:]]+", "12ab", (2, 4)), (r"[[:^alpha:]]", "a1", (1, 2)),
    (r"[^a-c]", "abd", (2, 3)),
    (r"[]a]+", "]a", (0, 2)), (r"[a-]+", "-a", (0, 2)), (r"[\d\-x]+", "1-x", (0, 3)), (r"\pL+", "1\u00e9a", (1, 3)),
    (r"\p{Lu}", "aB", (1, 2)), (r"\PL", "a1", (1, 2)), (r"\x41\x{42}\103", "ABC", (0, 3)),
    (r"\Qa.b\E+", "a.bb", (0, 4)),
    (r"\.\*", ".*", (0, 2)), ("(?P<name>a)(?<other>b)", "ab", (0, 2)), ("(|a)*", "aa", (0, 0)),
    ("(a*)*b", "aab", (0, 3)),
    ("(a|)+", "aa", (0, 2)), ("", "abc", (0, 0)), ("x*", "aaa", (0, 0)), ("[^\n]+$", "ab", (0, 2)),
]  # fmt: skip
REFUSED = {
    "(": "missing closing )", ")": "unexpected )", "[a": "missing closing ]",
    "*a": "missing argument to repetition operator",
    "a**": "invalid nested repetition operator", "a{3,2}": "invalid repeat count", "a{1001}": "invalid repeat count",
    r"\1": "invalid escape sequence", r"\C": "invalid escape sequence", r"\Z": "invalid escape sequence",
    "(?=a)": "invalid or unsupported Perl syntax", "(?<!a)": "unsupported Perl syntax",
    "(?P=n)": "invalid or unsupported Perl",
    "[z-a]": "invalid character class range", "[[:nope:]]": "invalid character class range",
    "a\\": "trailing backslash",
    r"\p{Greek}": "only general categories", "(?x)a": "invalid or unsupported Perl syntax",
    "(?": "unsupported Perl syntax",
    "(" * 200 + ")" * 200: "nests too deeply", "((a{100}){100}){10}": "expression too large",
}  # fmt: skip


@pytest.mark.parametrize(("pattern", "text", "found"), MATCHES)
def test_the_leftmost_match_is_found(pattern: str, text: str, found: tuple[int, int] | None) -> None:
    regex = Regex(pattern)
    assert regex.find(text) == found
    assert regex.matches(text) == (found is not None)
    assert regex.find(text) == found


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_re2_does_not_have_is_refused(pattern: str) -> None:
    with pytest.raises(RegexError) as error:
        Regex(pattern)
    assert REFUSED[pattern] in str(error.value)


def test_matches_do_not_overlap_and_an_empty_one_does_not_follow_a_match() -> None:
    assert Regex("a*").find_all("baaac") == ["", "aaa", ""]
    assert Regex("").find_all("ab") == ["", "", ""]
    assert Regex("[0-9]").find_all("1 2 3", 2) == ["1", "2"]
    assert Regex("[0-9]").find_all("1 2 3", 0) == []


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$", "(a|aa)+$", "(.*)*x", "((a*)*)*b"])
def test_no_pattern_takes_for_ever(pattern: str) -> None:
    # A backtracking search of these takes longer than the world has.
    assert Regex(pattern).find("a" * 500 + "!") in (None, (501, 501))
