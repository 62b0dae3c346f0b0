# SPDX-License-Identifier: Apache-2.0
"""The language itself: what is true, what is an error, and what is no expression."""

import pytest

import kubecel
from kubecel import SelectorError
from tests.kubecel.cel_devices import DRIVER, GPU, cost, holds

TRUE = r"""
1 + 2 * 3 == 7
(1 + 2) * 3 == 9
-7 / 2 == -3
-7 % 2 == -1
7 - 2 - 1 == 4
--1 == 1 && !!true
-9223372036854775808 < 0
0x1F == 31 && 0x1Fu == 31u
1.5e2 == 150.0 && .5 == 0.5
1u + 2u == 3u
1 < 1.5 && 1u < 2 && 2.0 >= 2u && -1 < 0u
dyn(1) == dyn(1u) && dyn(1) == dyn(1.0)
9007199254740993 != 9007199254740992
dyn(9007199254740993) == 9007199254740992.0
0.0 / 0.0 != 0.0 / 0.0
1.0 / 0.0 > 1e308
"a" + "b" == "ab" && b"a" + b"b" == b"ab"
"a" < "b" && b"a" < b"b" && false < true
'\x41\u00e9\U0001F600\101\n' == "A\u00e9\U0001F600A\n"
r'\d' == '\\d' && r"a" == 'a'
size("\u00fc\U0001f600") == 2 && size(b"\xff\x00") == 2
true ? 1 == 1 : 1 / 0 == 1
false ? 1 / 0 == 1 : true
true || 1 / 0 == 1
1 / 0 == 1 || true
!(false && 1 / 0 == 1) && !(1 / 0 == 1 && false)
1 in [1, 2] && !(3 in [1, 2]) && "a" in {"a": 1}
dyn(1.0) in [1, 2] && dyn(2u) in [1, 2] && !(dyn("1") in [1, 2])
[1, 2] + [3] == [1, 2, 3] && [1, 2][1] == 2
[[1], [2]][1][0] == 2
{"a": {"b": 1}}.a.b == 1 && {"a": 1}["a"] == 1
{1: "a"}[dyn(1.0)] == "a" && {true: 1}[true] == 1
has({"a": 1}.a) && !has({"a": 1}.b)
[1, 2, 3].all(x, x > 0) && [1, 2].exists(x, x == 2) && [1, 2, 2].exists_one(x, x == 1)
![1, 2].all(x, 1 / (x - 1) > 0 && x == 3)
[0, 1].exists(x, 1 / x == 1)
[1, 2, 3].map(x, x * 2) == [2, 4, 6] && [1, 2, 3].map(x, x > 1, x) == [2, 3]
[1, 2, 3].filter(x, x % 2 == 1) == [1, 3]
{"a": 1}.all(k, k == "a") && {"a": 1}.map(k, k) == ["a"]
[[1, 2], [3]].map(x, x.map(y, y + 1)) == [[2, 3], [4]]
[1, 2].map(x, [3, 4].map(x, x)) == [[3, 4], [3, 4]]
["a", "b"].all(i, v, i < 2 && v < "c") && {"a": 1}.exists(k, v, k == "a" && v == 1)
["a", "b"].transformList(i, v, string(i) + v) == ["0a", "1b"]
["a", "b"].transformList(i, v, i > 0, v) == ["b"]
{"a": 1, "b": 2}.transformMap(k, v, v * 2) == {"a": 2, "b": 4}
["a", "b"].transformMapEntry(i, v, {v: i}) == {"a": 0, "b": 1}
[1, 2, 2].existsOne(i, v, v == 1)
cel.bind(x, 2, x * x) == 4
cel.bind(x, 1, cel.bind(y, x + 1, x + y)) == 3
cel.bind(x, 1 / 0, true)
cel.bind(x, 1, [2].map(x, x)) == [2]
optional.of(1).hasValue() && !optional.none().hasValue()
{"a": 1}.?a.value() == 1 && !{"a": 1}.?b.hasValue()
{"a": {"b": 1}}.?a.b.orValue(0) == 1 && {}.?a.b.orValue(7) == 7
[1, 2][?1].value() == 2 && ![1][?5].hasValue() && {"a": 1}[?"b"].orValue(3) == 3
optional.none().or(optional.of(2)).value() == 2
optional.of(2).optMap(x, x + 1).value() == 3 && !optional.none().optMap(x, x).hasValue()
optional.of(2).optFlatMap(x, [5, 6, 7][?x]).value() == 7
optional.ofNonZeroValue(0) == optional.none() && optional.of([1])[0] == optional.of(1)
[1, ?optional.none(), ?optional.of(2)] == [1, 2] && {?"a": optional.none()} == {}
[1, 2].first().value() == 1 && [1, 2].last().value() == 2 && ![].first().hasValue()
optional.unwrap([optional.of(1), optional.none()]) == [1]
type(1) == int && type("a") == string && type(type(1)) == type && type(null) == null_type
type([]) == list && type({}) == map && type(duration("1s")) == google.protobuf.Duration
null == null && !(dyn(1) == null)
int("42") == 42 && int(4.9) == 4 && int(-4.9) == -4 && uint(3) == 3u && double("1.5") == 1.5
string(1.0) == "1" && string(1e6) == "1e+06" && string(0.00001) == "1e-05" && string(true) == "true"
bool("true") && !bool("f") && string(b"abc") == "abc" && bytes("a") == b"a"
duration("1h30m") == duration("90m") && duration("1.5s") > duration("1s")
string(duration("90m")) == "5400s" && duration("90m").getHours() == 1 && duration("90m").getMinutes() == 90
timestamp("2024-02-29T12:00:00Z") + duration("24h") == timestamp("2024-03-01T12:00:00Z")
timestamp("2024-02-29T12:00:00+02:00") == timestamp("2024-02-29T10:00:00Z")
timestamp("2024-02-29T12:34:56.789Z").getDayOfYear() == 59
timestamp("2024-02-29T12:34:56.789Z").getMilliseconds() == 789
timestamp("2024-02-29T23:00:00Z").getDate("+02:00") == 1
timestamp(0).getDayOfWeek() == 4 && int(timestamp("1970-01-01T00:01:00Z")) == 60
string(timestamp("2024-02-29T12:00:00.5+02:00")) == "2024-02-29T12:00:00.5+02:00"
"%s and %d, %.2f %x %b %o %%".format(["x", 5, 1.005, 255, 5, 8]) == "x and 5, 1.00 ff 101 10 %"
"%s %s".format([[1, "a"], {"k": 1.5}]) == '[1, "a"] {"k":1.500000}'
"""
ERRORS = {
    "1 / 0 == 1": "division by zero",
    "1 % 0 == 1": "modulus by zero",
    "9223372036854775807 + 1 > 0": "integer overflow",
    "-9223372036854775808 - 1 > 0": "integer overflow",
    "-(-9223372036854775808) > 0": "integer overflow",
    "9223372036854775807 * 2 > 0": "integer overflow",
    "-9223372036854775808 / -1 > 0": "integer overflow",
    "0u - 1u > 0u": "unsigned integer overflow",
    "[1][1] == 1": "index out of bounds: 1",
    '{"a": 1}["b"] == 1': "no such key: b",
    'dyn(1) + "a" == "b"': "no such overload",
    "dyn(1).startsWith('a')": "no such overload",
    "dyn('a') < 1": "no such overload",
    "0.0 / 0.0 < 1.0": "NaN values cannot be ordered",
    "1 / 0 == 1 && true": "division by zero",
    "dyn('a') && true": "no such overload",
    "optional.none().value() == 1": "optional.none() dereference",
    "int(device.driver) == 1": "type conversion error from 'string' to 'int'",
    "[1, 2].exists_one(x, 1 / (x - 1) > 0)": "division by zero",
    "['a', 'a'].transformMapEntry(i, v, {v: i}) == {}": "insert failed: key a already exists",
    "['a'].transformMapEntry(i, v, {dyn(1): v, dyn(1u): v}) == {}": "insert failed: key 1 already exists",
    "dyn(1).all(x, true)": "got 'int', expected iterable type",
    "timestamp('9999-12-31T23:59:59Z') + duration('1s') == timestamp(0)": "timestamp overflow",
    "timestamp(0).getHours('Europe/Berlin') == 1": "unknown time zone",
    "dyn(5)": "CEL result of type int could not be converted to bool",
}
BROKEN = {
    "": "Syntax error",
    "?!": "Syntax error",
    "1 +": "Syntax error",
    "(1": "expecting ')'",
    "[1,,2] == []": "Syntax error",
    "'a": "token recognition error",
    "'\\q' == ''": "token recognition error",
    "1 == 1 == ": "Syntax error",
    "a": "undeclared reference to 'a'",
    "f(1)": "undeclared reference to 'f'",
    "1": "must evaluate to bool or the unknown type, not int",
    "[true]": "must evaluate to bool or the unknown type, not list(bool)",
    "1 + 'a' == 2": "found no matching overload for '_+_' applied to '(int, string)'",
    "1 == 'a'": "found no matching overload for '_==_' applied to '(int, string)'",
    "1 && true": "expected type 'bool' but found 'int'",
    "1 ? true : false": "found no matching overload for '_?_:_'",
    "'a'.size(1) == 1": "found no matching overload for 'size'",
    "[1, 'a'] == []": "expected type 'int' but found 'string'",
    "{'a': 1, 'b': 'c'} == {}": "expected type 'int' but found 'string'",
    "1.x == 1": "type 'int' does not support field selection",
    "has(1)": "invalid argument to has() macro",
    "[1].all(x.y, true)": "argument must be a simple name",
    "[1].all(x, x, true)": "duplicate variable name: x",
    "5.all(x, true)": "expression of type 'int' cannot be range of a comprehension",
    "[1].map(__result__, 1) == [1]": "iteration variable overwrites accumulator variable",
    "let == 1": "reserved identifier: let",
    "9223372036854775808 > 0": "invalid int literal",
    "18446744073709551616u > 0u": "invalid uint literal",
    "1e999 > 0.0": "invalid double literal",
    "duration('x') > duration('1s')": "type conversion error",
    "timestamp('2024') > timestamp(0)": "type conversion error",
    "int('x') == 1": "type conversion error from 'string' to 'int'",
    "int(1e19) > 0": "integer overflow",
    "'a'.matches('(')": "missing closing )",
    "'%d'.format(['a']) == ''": "decimal clause can only be used on integers, was given string",
    "'%d'.format([1, 2]) == ''": "too many arguments supplied to string.format (expected 1, got 2)",
    "'%d'.format([]) == ''": "index 0 out of range",
    "google.type.Date{year: 1} == 1": "undeclared reference to 'google'",
    "[1][null] == 1": "found no matching overload",
}


@pytest.mark.parametrize("expression", TRUE.strip().splitlines())
def test_it_is_true(expression: str) -> None:
    assert holds(expression)


def test_text_in_three_quotes_may_have_lines() -> None:
    assert holds("'''a\nb''' == \"a\\nb\" && r'''\\''' == '\\\\'")


@pytest.mark.parametrize("expression", ERRORS)
def test_its_errors_are_those_of_upstream(expression: str) -> None:
    selector = kubecel.compile(expression)
    with pytest.raises(SelectorError) as error:
        selector.matches(GPU, DRIVER)
    assert ERRORS[expression] in str(error.value)


@pytest.mark.parametrize("expression", BROKEN)
def test_it_is_no_selector(expression: str) -> None:
    with pytest.raises(SelectorError) as error:
        kubecel.compile(expression)
    assert BROKEN[expression] in str(error.value)


def test_a_broken_expression_is_reported_by_line_and_column() -> None:
    with pytest.raises(SelectorError, match=r"<input>:2:4: undeclared reference to 'x'"):
        kubecel.compile("true &&\n   x")


def test_all_that_is_wrong_is_reported_at_once() -> None:
    with pytest.raises(SelectorError) as error:
        kubecel.compile("x && y")
    assert "'x'" in str(error.value) and "'y'" in str(error.value)


def test_an_expression_has_at_most_ten_kibibytes() -> None:
    assert holds("true" + " " * (kubecel.MAX_LENGTH - 4))
    with pytest.raises(SelectorError, match="at most 10240 are allowed"):
        kubecel.compile("true" + " " * (kubecel.MAX_LENGTH - 3))
    with pytest.raises(SelectorError, match="at most 10240"):
        kubecel.compile("'" + "\u00fc" * 5200 + "' == ''")


@pytest.mark.parametrize(
    "expression",
    ["(" * 1000 + "true" + ")" * 1000, "[" * 500 + "]" * 500 + " == []", "1 + " * 1000 + "1 > 0",
     "!" * 999 + "(" * 100 + "true" + ")" * 100, "true ? " * 600 + "true" + " : true" * 600,
     "-(" * 900 + "1" + ")" * 900],
)  # fmt: skip
def test_what_nests_too_deeply_is_refused(expression: str) -> None:
    with pytest.raises(SelectorError, match=r"recursion limit exceeded|Syntax error"):
        kubecel.compile(expression)


def test_what_nests_as_deeply_as_is_allowed_is_evaluated() -> None:
    assert holds("(" * 55 + "true" + ")" * 55)
    assert holds(" + ".join(["1"] * 110) + " == 110")
    assert holds(" && ".join(["true"] * 1000))


def test_a_selector_that_costs_too_much_errs() -> None:
    selector = kubecel.compile(
        "lists.range(1000).all(x, lists.range(1000).all(y, x + y >= 0)) || device.driver == 'never asked'"
    )
    with pytest.raises(SelectorError, match="actual cost limit exceeded"):
        selector.matches(GPU, DRIVER)


def test_text_that_doubles_without_cost_is_ended() -> None:
    doubling = "[1].map(i, dyn('x')).map(x, x + x)" + ".map(x, x + x)" * 40 + "[0].size() > 0"
    with pytest.raises(SelectorError, match="too large"):
        kubecel.compile(doubling).matches(GPU, DRIVER)


@pytest.mark.parametrize(
    "expression",
    [
        "lists.range(900000).distinct().size() > 0",
        "cel.bind(x, lists.range(300000), lists.range(20000).all(i, !(dyn(-1) in dyn(x))))",
        "cel.bind(x, [lists.range(300000)], lists.range(20000).all(i, x == x))",
        "cel.bind(x, lists.range(300000), lists.range(20000).all(i, (dyn(x) + dyn([1])).size() > 0))",
    ],
)
@pytest.mark.slow
def test_long_lists_do_not_hold_anything_up(expression: str) -> None:
    with pytest.raises(SelectorError, match=r"cost limit exceeded|too many elements"):
        kubecel.compile(expression).matches(GPU, DRIVER)


def test_what_costs_is_counted_as_upstream_counts() -> None:
    assert cost("true") == 0
    assert cost("[1, 2, 3] == [1, 2, 3] && 'a' in ['a', 'b']") == 1
    assert cost("'a' in ['a', device.driver]") == 14
    assert cost('device.driver == "gpu.example.com"') == 4
    assert cost('cel.bind(a, device.attributes["gpu.example.com"], a.fast)') == 5
    assert cost('has(device.attributes["gpu.example.com"].fast)') == 3
    assert cost('device.attributes["gpu.example.com"].productName.matches("H[0-9]+")') == 10
    assert cost("[1, 2, 3].exists(x, x > 1)") == 3 * 3 + 2 * 3 + 1
    assert cost('device.capacity["gpu.example.com"].memory.compareTo(quantity("40Gi")) > 0') == 7
