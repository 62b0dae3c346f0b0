# SPDX-License-Identifier: Apache-2.0
"""Whether claims can be allocated is what trying everything finds; what is allocated is one of these possibilities."""

from __future__ import annotations

import random

import numpy as np
import pytest
from msgspec.structs import replace

from dovetail.core.model import Request
from tests.core.dra.allocation_oracle import Oracle, assignment_of
from tests.core.dra.device_worlds import World, random_spec, random_world


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(150))
def test_random_claims_fit_exactly_where_an_allocation_exists(seed: int) -> None:
    dice = random.Random(seed)
    world = random_world(dice)
    for _ in range(8):
        specs = tuple(random_spec(dice) for _ in range(dice.choice((1, 1, 2))))
        node = dice.choice(list(world.nodes.slots))
        oracle = Oracle(world, node)
        possible = set(oracle.assignments(specs))
        answer = world.answer(node, *specs)
        if answer.error:
            # The order of trying decides where a constraint is on all devices.
            assert any(one.mode == "All" for spec in specs for alternatives in spec.requests for one in alternatives)
            assert not answer.fits
            continue
        assert answer.fits == bool(possible), (node, specs, answer.detail)
        if answer.fits and dice.random() < 0.8:
            pod = world.pod(*specs)
            world.hold(node, pod)
            assert assignment_of(world, specs, pod.device_claims) in possible
            assert world.claims.check() == []


def fresh(world: World) -> World:
    """A world that is reported at once what this one came to know step by step."""
    made = World()
    for record in world.nodes.records:
        assert record is not None
        made.nodes.put(record)
    for slot in range(len(made.nodes.records)):
        made.claims.node_changed(slot)
    for claim in world.claims.claims.values():
        made.claims.put_claim(claim)
    for one in sorted(world.claims.slices.values(), key=lambda s: s.name, reverse=True):
        made.claims.put_slice(one)
    for one in world.claims.classes.values():
        made.claims.put_class(one)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_answers_are_those_of_a_fresh_world(seed: int) -> None:
    """Through holds and releases, reported allocations, slices that come and go, classes that change."""
    dice = random.Random(1000 + seed)
    world = random_world(dice)
    held = []
    for _ in range(30):
        kind = dice.random()
        node = dice.choice(list(world.nodes.slots))
        if kind < 0.5:
            pod = world.pod(random_spec(dice))
            if grants := world.hold(node, pod):
                held.append(grants)
        elif kind < 0.65 and held:
            world.claims.release(held.pop(dice.randrange(len(held))))
        elif kind < 0.8 and held:
            for grant in held.pop(dice.randrange(len(held))):
                claim = world.claims.claims.get(grant.claim)
                if claim is not None:
                    world.claims.put_claim(replace(claim, allocation=grant.allocation))
        elif kind < 0.85 and world.claims.claims:
            world.claims.remove_claim(dice.choice(list(world.claims.claims)))
        elif kind < 0.9:
            name = dice.choice(list(world.claims.slices))
            one = world.claims.slices[name]
            world.claims.put_slice(replace(one, devices=one.devices[:-1]))
        elif kind < 0.93:
            world.claims.remove_slice(dice.choice(list(world.claims.slices)))
        else:
            world.node(node, zone=dice.choice(("x", "y")))
        if not world.claims.slices:
            return
        assert world.claims.check() == []
        other = fresh(world)
        for grants in held:
            other.claims.assume(grants)
        asked = random_spec(dice)
        for name in world.nodes.slots:
            ours, theirs = world.answer(name, asked), other.answer(name, asked)
            assert ours == theirs


@pytest.mark.parametrize("seed", range(60))
def test_what_is_released_is_as_if_it_had_never_been_held(seed: int) -> None:
    dice = random.Random(2000 + seed)
    world = random_world(dice)
    world.hold("n1", world.pod(random_spec(dice)))
    asked = [random_spec(dice) for _ in range(4)]
    pod, node = world.pod(random_spec(dice)), dice.choice(list(world.nodes.slots))
    world.claims.answers.of(world.nodes.slots[node], world.shape(pod))
    before = [world.answer(node, spec) for spec in asked for node in world.nodes.slots]
    numbers = world.nodes.device_numbers.copy()
    grants = world.hold(node, pod)
    world.claims.release(grants)
    assert [world.answer(node, spec) for spec in asked for node in world.nodes.slots] == before
    assert numbers.tolist() == world.nodes.device_numbers.tolist()


@pytest.mark.parametrize("seed", range(40))
def test_as_many_fit_as_can_be_held_one_after_the_other(seed: int) -> None:
    dice = random.Random(3000 + seed)
    world = random_world(dice)
    spec = random_spec(dice)
    times = world.claims.answers.times(0, world.shapes.of(Request(), (spec,)), 6)
    held = 0
    while held < 6 and world.fits("n1", spec):
        world.hold("n1", world.pod(spec))
        held += 1
    assert times == held


@pytest.mark.parametrize("seed", range(40))
def test_many_nodes_are_answered_as_each_of_them(seed: int) -> None:
    dice = random.Random(4000 + seed)
    world = random_world(dice)
    for _ in range(3):
        world.hold(dice.choice(list(world.nodes.slots)), world.pod(random_spec(dice)))
    shape = world.shapes.of(Request(), (random_spec(dice),))
    alone = [world.claims.answers.of(slot, shape) for slot in range(world.nodes.used)]
    for index in (slice(0, world.nodes.used), np.arange(world.nodes.used)):
        fits, spare, close = world.claims.answers.of_slots(index, shape)
        assert fits.tolist() == [one.fits for one in alone]
        assert list(zip(spare[fits].tolist(), close[fits].tolist(), strict=True)) == [
            (one.spare, one.close) for one in alone if one.fits
        ]
