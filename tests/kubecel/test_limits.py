# SPDX-License-Identifier: Apache-2.0
"""Short selectors that would take for ever, or all memory, are ended by what they count."""

import random
from itertools import islice

import pytest

import kubecel
from kubecel import SelectorError, costs, evaluation, values
from kubecel.values import LARGEST, LONGEST_NUMBER, Map, Optional
from tests.kubecel.cel_devices import DRIVER, GPU, holds

TOO_MANY = "too many elements were examined"
TOO_LARGE = "a value became too large"
TOO_COSTLY = "actual cost limit exceeded"


def grown(first: str, step: str, times: int, body: str) -> str:
    """Local variables, each made of the one before it: `$` in a step is that one, in the body the last."""
    inits = [first] + [step.replace("$", f"x{i}") for i in range(times)]
    opened = "".join(f"cel.bind(x{i}, {init}, " for i, init in enumerate(inits))
    return opened + body.replace("$", f"x{times}") + ")" * len(inits)


def tree(depth: int, body: str) -> str:
    """About two to the power of `depth` elements, in a few lists that hold each other twice."""
    return grown("[1]", "[$, $]", depth, body)


def long_text(body: str, first: str = "abcdefgh") -> str:
    """A text of half a million characters, doubled at a cost that does not grow with it."""
    return grown(f"dyn('{first}')", "$ + $", 16, body)


def ended(expression: str) -> str:
    with pytest.raises(SelectorError) as error:
        kubecel.compile(expression).evaluate(GPU, DRIVER)
    return str(error.value)


WALKS = {
    "==": "$ == $", "!=": "$ != $", "+": "size($ + $) > 0", "in": "dyn($) in [dyn($), dyn(1)]", "<": "dyn($) < dyn($)",
    "includes": "$.includes(1)", "indexOf": "[$].indexOf($) == 0", "lastIndexOf": "[$].lastIndexOf($) == 0",
    "format": "'%s'.format([$]) != ''", "distinct": "[$, $].distinct().size() == 1",
    "contains": "sets.contains([$], [$])", "intersects": "sets.intersects([$], [$])",
    "equivalent": "sets.equivalent([$], [$])", "flatten": "dyn([$]).flatten(100).size() > 0",
    "sort": "dyn($).sort() == []", "max": "dyn($).max() == 1", "unwrap": "optional.unwrap([optional.of($)]) == []",
    "optionals": "optional.of($) == optional.of($)", "maps": "{'a': $} == {'a': $}",
}  # fmt: skip


@pytest.mark.parametrize("body", WALKS.values(), ids=WALKS)
@pytest.mark.slow
def test_lists_that_hold_each_other_twice_are_not_walked_to_the_end(body: str) -> None:
    assert TOO_MANY in ended(tree(30, body))


@pytest.mark.parametrize("body", ["$ == $", "'%s'.format([$]) != ''", "sets.contains([$], [$])"])
def test_a_small_tree_is_walked(body: str) -> None:
    assert holds(tree(8, body))


@pytest.mark.parametrize("step", ["{'a': $, 'b': $}", "[optional.of($), optional.of($)]"])
def test_maps_and_optionals_count_as_lists_do(step: str) -> None:
    assert TOO_MANY in ended(grown("dyn([1])", f"dyn({step})", 30, "$ == $"))


def test_elements_count_wherever_they_stand_and_texts_by_their_length() -> None:
    twice = [1, 2]
    assert costs.work_of([[twice, twice]], 1000) == 2 + 2 + 2
    assert costs.work_of([Map({"a": [1]}), Optional([1, 2]), "t" * 32, 5, None], 1000) == (1 + 1) + (1 + 2) + 2


@pytest.mark.parametrize("seed", range(20))
def test_what_occurs_more_than_once_counts_each_time(seed: int) -> None:
    dice = random.Random(seed)
    made: list[object] = ["t" * 40, [], [1, 2]]
    counts = [2, 0, 2]
    for _ in range(12):
        chosen = dice.choices(range(len(made)), k=dice.choice((1, 2, 20)))
        parts, inner = [made[i] for i in chosen], [counts[i] for i in chosen]
        kind = dice.choice((list, Map, Optional))
        made.append(parts if kind is list else Optional(parts[0]) if kind is Optional else Map(dict(enumerate(parts))))
        counts.append(1 + inner[0] if kind is Optional else len(parts) + sum(inner))
    assert costs.work_of(made, sum(counts)) == sum(counts)
    assert costs.work_of(made, sum(counts) - 1) >= sum(counts)


def test_the_count_itself_ends_soon_after_the_limit() -> None:
    value: object = [1]
    for _ in range(200):
        value = [value, value]
    assert 1000 < costs.work_of([value], 1000) <= 1002


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "called"),
    [("optional.of(i)", "unwrapOpt().size() > 0"), ("''", "join() == ''"), ("''", "max() == ''"),
     ("''", "isSorted()"), ("[i]", "flatten().size() > 0"), ("[i]", "indexOf([0]) == 0")],
)  # fmt: skip
def test_a_list_can_be_gone_through_and_at_little_cost_not_for_ever(made: str, called: str) -> None:
    selector = f"cel.bind(y, lists.range(5000).map(i, {made}), lists.range(%d).all(i, y.{called}))"
    assert holds(selector % 10)
    assert ended(selector % 1000).endswith((TOO_MANY, TOO_COSTLY))


def test_a_map_inserted_time_and_again_counts_each_time() -> None:
    selector = (
        "cel.bind(m, lists.range(1000).transformMap(i, v, v), "
        "lists.range(%d).all(i, [1].transformMapEntry(i, v, m).size() == 1000))"
    )
    assert holds(selector % 10)
    assert TOO_MANY in ended(selector % 1000)


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_loop_that_ends_at_once_takes_no_more_than_its_first_element(size: int) -> None:
    pairs = evaluation.pairs(list(range(size)), two=False)
    assert not isinstance(pairs, (values.Err, list))
    assert list(islice(pairs, 1)) == [(0, None)]


@pytest.mark.parametrize(
    "asked",
    [
        "cel.bind(t, dyn($ + 'a'), lists.range(9000).all(i, dyn($) < t))",
        "cel.bind(t, [$ + 'a'], cel.bind(u, [$ + 'a'], lists.range(9000).all(i, t == u)))",
        "lists.range(9000).all(i, bytes($).size() > 0)",
        "lists.range(9000).all(i, string(duration($)) == '' || true)",
        "lists.range(9000).all(i, double($) == 1.0 || true)",
        "lists.range(9000).all(i, '%s'.format([$]).size() > 0)",
        "lists.range(9000).map(i, $ + 'a').size() > 0",
    ],
)
def test_a_long_text_is_not_gone_through_for_ever_at_little_cost(asked: str) -> None:
    assert ended(long_text(asked)).endswith((TOO_MANY, TOO_COSTLY))


def test_a_url_is_as_much_to_look_at_as_it_is_long() -> None:
    asked = "cel.bind(u, url('http://a/?' + $), lists.range(9000).all(i, u.getQuery().size() == 1))"
    assert TOO_MANY in ended(grown("'a&'", "$ + $", 8, asked))


def test_texts_that_replace_makes_long_do_not_fill_the_memory() -> None:
    text = "cel.bind(t, lists.range(900).map(i, 'a').join(), %s)"
    assert holds(text % "t.replace('a', t).size() == 810000")
    assert TOO_MANY in ended(text % "lists.range(3000).map(i, t.replace('a', t)).size() > 0")


def test_join_makes_no_text_that_is_too_long() -> None:
    text = "cel.bind(s, lists.range(1000).map(i, 'a').join(), %s)"
    assert holds(text % "lists.range(999).map(i, '').join(s).size() == 998000")
    assert TOO_LARGE in ended(text % "lists.range(1002).map(i, '').join(s) != ''")
    assert TOO_LARGE in ended(text % "lists.range(1001).map(i, s).join() != ''")


@pytest.mark.parametrize("step", ["'%s%s'.format([$, $])", "'%s'.format([[$, $]])", "'%s'.format([{'a': $, 'b': $}])"])
def test_format_makes_no_text_that_is_too_long(step: str) -> None:
    assert holds(grown("'ab'", step, 8, "$ != ''"))
    assert TOO_LARGE in ended(grown("'ab'", step, 30, "$ != ''"))


def test_format_stops_at_the_clause_that_makes_it_too_long() -> None:
    clauses = LARGEST // 1000 + 1
    asked = f"dyn($).format(lists.range({clauses}).map(i, 1.5)) != ''"
    assert TOO_LARGE in ended(f"cel.bind(c, lists.range({clauses}).map(i, '%.999f').join(), {asked.replace('$', 'c')})")


@pytest.mark.parametrize("read", ["quantity('1%s')", "semver('1.0.0-%s')"])
def test_a_quantity_or_version_has_a_longest_text(read: str) -> None:
    fits = LONGEST_NUMBER - len(read.partition("'")[2]) + len("%s')")
    assert holds(f"{read % ('1' * 9)} != {read % '2'}")
    assert TOO_LARGE not in ended(f"{read % ('a' * fits)} == dyn(1)")
    for digit in "1a":
        assert TOO_LARGE in ended(f"{read % (digit * (fits + 1))} != {read % '2'}")
    assert TOO_LARGE in ended(f"{read % ('1' * 5000)} != {read % '2'}")


@pytest.mark.parametrize("body", ["$ == $", "'%s'.format([$]) == ''", "$.includes(1)", "$ in [$]"])
@pytest.mark.parametrize("opaque", ["", "dyn"])
@pytest.mark.slow
def test_what_nests_too_deeply_by_way_of_variables_is_an_error(body: str, opaque: str) -> None:
    inits = [f"{opaque}({'[' * (45 - i)}{f'x{i - 1}' if i else 1}{']' * (45 - i)})" for i in range(30)]
    opened = "".join(f"cel.bind(x{i}, {init}, " for i, init in enumerate(inits))
    assert "nested too deeply" in ended(opened + body.replace("$", "x29") + ")" * 30)


def test_an_error_shows_no_long_or_nested_value() -> None:
    assert values.shown("a" * 99) == "a" * 99
    assert [values.shown(one) for one in ("a" * 100, [[1]], Map({}), None, True)] == [
        "string", "list", "map", "null_type", "true"
    ]  # fmt: skip
