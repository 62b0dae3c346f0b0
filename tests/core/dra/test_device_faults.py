# SPDX-License-Identifier: Apache-2.0
"""What ends the allocation on a node, as upstream ends it, and with which words."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dovetail.core.dra.types import ClaimSpec, Constraint, DeviceClass
from dovetail.core.model import Problem, Request
from tests.core.dra.device_worlds import DRIVER, World, ask, claim, device, every, first, pool, world

HALF = (device("d0", model="a"), device("d1"))
"""A selector of the model errs on the second."""
OF_A = f"{DRIVER}/model=a"


def take(made: World, count: int = 1) -> None:
    made.hold("n1", made.pod(claim(ask(count))))


def test_a_selector_that_errs_on_a_device_ends_it_once_that_device_is_tried() -> None:
    made = world(pool("n1", *HALF))
    assert made.fits("n1", claim(ask(1, OF_A)))
    answer = made.answer("n1", claim(ask(2, OF_A)))
    assert (answer.fits, answer.error) == (False, True)
    assert answer.detail == (
        f"request r: selector #0 on device {DRIVER}/n1/d1: CEL runtime error: no such key: {DRIVER}/model"
    )
    take(made)
    assert made.answer("n1", claim(ask(1, OF_A))).error


def test_a_device_that_is_in_use_is_not_tried() -> None:
    made = world(pool("n1", HALF[1], HALF[0]))
    assert made.answer("n1", claim(ask(1, OF_A))).error
    take(made)
    assert made.fits("n1", claim(ask(1, OF_A)))


def test_more_than_there_are_is_an_error_where_a_selector_errs_on_the_rest() -> None:
    made = world(pool("n1", *HALF))
    assert made.answer("n1", claim(ask(3, OF_A))).error
    assert not made.answer("n1", claim(ask(3))).error


def test_all_devices_are_tried_where_all_are_wanted() -> None:
    made = world(pool("n1", *HALF))
    take(made, 2)
    assert made.answer("n1", claim(every(OF_A))).error
    assert made.answer("n1", claim(first(ask(1)[0], every(OF_A)[0]))).error


def test_selectors_of_the_class_come_first_and_what_they_leave_out_is_not_tried() -> None:
    classes = [DeviceClass("a", (f"{DRIVER}/model~a",)), DeviceClass("err", (OF_A,))]
    made = world(pool("n1", *HALF), classes=classes)
    assert not made.answer("n1", claim(ask(2, OF_A, device_class="a"))).error
    assert "class err: selector #0 on device" in made.answer("n1", claim(ask(2, device_class="err"))).detail


def test_each_node_names_its_own_device() -> None:
    made = world(pool("n1", HALF[1]), pool("n2", HALF[1]), nodes=("n1", "n2"))
    for node in ("n1", "n2"):
        assert f"on device {DRIVER}/{node}/d1:" in made.answer(node, claim(ask(1, OF_A))).detail
    assert made.nodes.device_numbers[0] == made.nodes.device_numbers[1] != 0


def test_a_selector_errs_on_devices_that_are_for_other_nodes_in_a_slice_that_is_for_this_one() -> None:
    devices = (replace(HALF[1], node="n2"), replace(HALF[0], node="n1"))
    made = world(pool("p", *devices, per_device=True), nodes=("n1", "n2"))
    assert made.answer("n1", claim(ask(1, OF_A))).error
    assert made.fits("n1", claim(ask(1, f"{DRIVER}/model~a")))
    assert not made.fits("n2", claim(ask(1, f"{DRIVER}/model~a")))


@pytest.mark.parametrize(
    ("lacking", "text"),
    [
        ({"pool_slices": 2}, "currently being updated"),
        ({"problem": Problem("spec.devices[0]", "x", "is wrong")}, "currently invalid"),
    ],
)
def test_all_devices_cannot_be_had_of_a_pool_that_is_not_known_as_a_whole(
    lacking: dict[str, object], text: str
) -> None:
    made = world(pool("p1", device("d"), node="n1"), pool("p2", device("d"), node="n1", **lacking))
    answer = made.answer("n1", claim(every()))
    assert answer.error and text in answer.detail
    assert made.fits("n1", claim(ask(1)))
    assert not made.fits("n1", claim(ask(2)))


def test_of_no_devices_all_cannot_be_had() -> None:
    made = world(pool("n1", device("d", model="b")))
    answer = made.answer("n1", claim(every(f"{DRIVER}/model~a")))
    assert (answer.fits, answer.error, answer.detail) == (False, False, "request r: all 0 wanted, 0 of 0 free")


def test_a_constraint_that_all_devices_together_violate_ends_it() -> None:
    made = world(pool("n1", device("d0", model="a"), device("d1", model="b")))
    same = [Constraint((), f"{DRIVER}/model")]
    answer = made.answer("n1", claim(every(), constraints=same))
    assert answer.error and "would not be satisfied" in answer.detail
    assert made.fits("n1", claim(every(f"{DRIVER}/model~a"), constraints=same))


def test_a_claim_has_32_devices_at_most() -> None:
    made = world(pool("n1", *(device(f"d{i}") for i in range(40))))
    assert made.fits("n1", claim(ask(32)))
    assert made.fits("n1", claim(ask(20)), claim(ask(20)))
    answer = made.answer("n1", claim(ask(20, name="a"), ask(13, name="b")))
    assert answer.error and answer.detail.startswith("request b: adding 13 devices exceeds the claim limit of 32")
    assert made.fits("n1", claim(ask(20, name="a"), first(ask(13)[0], ask(12)[0], name="b")))


def test_what_is_missing_is_reported_with_numbers() -> None:
    made = world(pool("n1", *(device(f"d{i}", model="a") for i in range(4))))
    take(made, 2)
    assert made.answer("n1", claim(ask(3, OF_A))).detail == "3 wanted, 2 of 4 free"
    asked = claim(ask(1, name="a"), ask(2, name="b"))
    assert made.answer("n1", asked).detail == "3 wanted, 2 of 4 free"
    constrained = claim(ask(3, name="a"), constraints=[Constraint((), f"{DRIVER}/model")])
    assert made.answer("n1", constrained).detail == "request a: 3 wanted, 2 of 4 free"


def test_a_search_without_end_is_stopped_and_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.core.dra.search.MOST_STEPS", 200)
    devices = [device(f"d{i}", serial=i) for i in range(20)]
    made = world(pool("n1", *devices))
    spec = claim(
        ask(10, name="a"), ask(10, name="b"), ask(1, name="c"), constraints=[Constraint((), "", f"{DRIVER}/serial")]
    )
    answer = made.answer("n1", spec)
    assert (answer.fits, answer.error) == (False, True)
    assert "stopped" in answer.detail


def test_expressions_are_compiled_once() -> None:
    made = world(pool("n1", device("d", model="a")))
    specs = [claim(ask(1, OF_A, name=name)) for name in "abc"]
    for spec in specs:
        made.answer("n1", spec)
    assert made.compile.compiled == [OF_A]


def test_a_broken_expression_ends_it_on_every_device() -> None:
    made = world(pool("n1", device("d")))
    answer = made.answer("n1", claim(ask(1, "(")))
    assert answer.error and "CEL compile error: Syntax error" in answer.detail


def test_a_broken_alternative_that_is_never_tried_does_no_harm() -> None:
    made = world(pool("n1", device("d")))
    pod = made.pod(claim(first(*ask(1), *ask(1, "("))))
    assert made.claims.refusal(pod) is None
    assert made.hold("n1", pod) != ()
    both = made.claims.refusal(made.pod(claim(first(*ask(1, "("), *ask(1, "(")))))
    assert both is not None and "request r/0: selector #0: CEL compile error" in both.detail


def test_a_claim_for_nothing_fits_everywhere() -> None:
    made = world(nodes=("n1",))
    assert made.claims.answers.of(0, made.shapes.of(Request(), (ClaimSpec(),))).fits
