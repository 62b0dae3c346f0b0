# SPDX-License-Identifier: Apache-2.0
"""What a client can make the server compute grows with what it sends, not with its square.

The inputs are such that a step for each pair of elements would be hundreds of millions of steps.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.apiserver.deletions import Deletions
from dovetail.apiserver.failures import Failure
from dovetail.apiserver.objects import Object
from dovetail.apiserver.ownership import applied
from dovetail.apiserver.patches import JSON, as_key, patched, strategic
from dovetail.apiserver.resources import PODS, Catalogue
from dovetail.apiserver.selectors import parse_labels
from dovetail.apiserver.store import Store

MANY = 20_000
ELEMENTS = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from(["a", "b", "c", "d"]) | st.integers(0, 2)}, optional={
        "value": st.integers(0, 3), "$patch": st.just("delete"),
    }),
    max_size=6,
)  # fmt: skip


def merged_one_by_one(old: list[Any], patch: list[Any]) -> list[Any]:
    """A strategic merge of a list by `name`, each element searched for in the whole list."""
    items = [dict(item) for item in old]
    for item in patch:
        place = next((n for n, other in enumerate(items) if as_key(other["name"]) == as_key(item["name"])), -1)
        if item.get("$patch") == "delete":
            items = [other for n, other in enumerate(items) if n != place]
        elif place < 0:
            items.append(dict(item))
        else:
            items[place] |= item
    return items


def unique(elements: list[Any]) -> list[Any]:
    return list({as_key(element["name"]): element for element in elements}.values())


@given(ELEMENTS.map(unique), ELEMENTS)
@pytest.mark.slow
def test_lists_are_merged_as_if_each_element_was_searched_for(old: list[Any], patch: list[Any]) -> None:
    old = [{name: value for name, value in item.items() if name != "$patch"} for item in old]
    assert strategic({"env": old}, {"env": patch})["env"] == merged_one_by_one(old, patch)


def variables(value: str, numbers: range) -> Object:
    return {"env": [{"name": f"n{number}", "value": value} for number in numbers]}


def test_long_lists_are_merged() -> None:
    merged = strategic(variables("old", range(MANY)), variables("new", range(MANY // 2, MANY + 5)))["env"]
    assert len(merged) == MANY + 5
    assert [merged[0]["value"], merged[-1]["value"]] == ["old", "new"]
    removed = strategic({"finalizers": [f"f{n}" for n in range(MANY)]}, {
        "$deleteFromPrimitiveList/finalizers": [f"f{n}" for n in range(MANY - 1)],
    })  # fmt: skip
    assert removed == {"finalizers": [f"f{MANY - 1}"]}


def apply(old: Object, document: Object, manager: str) -> Object:
    return applied(PODS, old, document, manager, force=False, subresource="", now_s=0.0)


@pytest.mark.slow
def test_large_objects_are_applied_and_fields_that_are_left_out_go() -> None:
    def of(data: range, elements: range) -> Object:
        metadata = {"name": "one", "annotations": {f"k{number}": "v" for number in data}}
        return {"metadata": metadata, "spec": {"containers": [{"name": "main", **variables("v", elements)}]}}

    one = apply({}, of(range(MANY), range(5_000)), "me")
    two = apply(one, of(range(10), range(4_990, 5_000)), "me")
    assert len(two["metadata"]["annotations"]) == 10
    (container,) = two["spec"]["containers"]
    assert [variable["name"] for variable in container["env"]] == [f"n{number}" for number in range(4_990, 5_000)]
    with pytest.raises(Failure, match="conflict with"):
        apply(two, {"metadata": {"name": "one", "annotations": {"k1": "other"}}}, "another")


def test_an_object_with_too_many_fields_is_not_tracked() -> None:
    deep: Object = {f"k{number}": "v" for number in range(20_000)}
    for _ in range(50):
        deep = {"a": deep}
    with pytest.raises(Failure) as refused:
        apply({}, {"metadata": {"name": "one"}, "spec": deep}, "me")
    assert refused.value.code == 413


def test_operations_on_a_long_list_are_bounded() -> None:
    old = {"metadata": {}, "list": list(range(200_000))}
    with pytest.raises(Failure) as refused:
        patched(PODS, old, JSON, [{"op": "add", "path": "/list/-", "value": 1}] * 5_000)
    assert refused.value.code == 413
    with pytest.raises(Failure, match="at most 10000 are carried out"):
        patched(PODS, old, JSON, [{"op": "test", "path": "/metadata", "value": {}}] * 10_001)


def test_selectors_of_commas_and_parentheses_are_refused() -> None:
    for text in ("," * MANY, "(," * MANY, "a in (" * MANY, f"a in ({'b,' * 300})"):
        with pytest.raises(Failure) as refused:
            parse_labels(text)
        assert refused.value.code == 400


def test_a_namespace_is_deleted_beside_a_large_one() -> None:
    store, catalogue = Store(), Catalogue()
    deletions = Deletions(store, catalogue, lambda: 0.0)
    store.put_raw("namespaces", {"metadata": {"name": "gone"}, "status": {"phase": "Active"}})
    for number in range(5_000):
        for namespace in ("kept", "gone"):
            store.put_raw("configmaps", {"metadata": {"namespace": namespace, "name": f"m{number}"}})
    namespaces = catalogue.of_collection("namespaces")
    assert namespaces is not None
    deletions.delete(namespaces, ("", "gone"), {})
    assert store.get("namespaces", "", "gone") is None
    assert {key[0] for key in store.collection("configmaps").objects} == {"kept"}
