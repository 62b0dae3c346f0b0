# SPDX-License-Identifier: Apache-2.0
"""What cards can be divided into: every legal set of instances of every family, against the rules read slowly."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dovetail.core.devices.mig.geometry import Engines, Geometry, GeometryError, MigProfile
from dovetail.core.devices.mig.instances import States, counts_of, states
from dovetail.core.devices.mig.products import GEOMETRIES, of_product
from dovetail.core.devices.mig.slices import MigSlices, most_taken, slices, taken
from dovetail.core.devices.products import PRODUCTS
from tests.core.devices.mig.mig_oracle import EIGHT_WIDE, FAMILIES, all_legal, bits, geometry

RESOURCES = {
    "A30-24GB": "1g.6gb 1g.6gb.me 2g.12gb 2g.12gb.me 4g.24gb",
    "A100-40GB": "1g.5gb 1g.5gb.me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb",
    "A100-80GB": "1g.10gb 1g.10gb.me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    "H100-80GB": "1g.10gb 1g.10gb.me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    "H100-94GB": "1g.12gb 1g.12gb.me 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb",
    "H100-96GB": "1g.12gb 1g.12gb.me 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb",
    "GH200-144GB": "1g.18gb 1g.18gb.me 1g.36gb 2g.36gb 3g.72gb 4g.72gb 7g.144gb",
    "H200-141GB": "1g.18gb 1g.18gb.me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb",
    "B200-180GB": "1g.23gb 1g.23gb.me 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb",
    "GB200-186GB": "1g.23gb 1g.23gb.me 1g.47gb 2g.47gb 3g.93gb 4g.93gb 7g.186gb",
    "B300-269GB": "1g.34gb 1g.34gb.me 1g.67gb 2g.67gb 3g.135gb 4g.135gb 7g.269gb",
    "GB300-278GB": "1g.35gb 1g.35gb.me 1g.70gb 2g.70gb 3g.139gb 4g.139gb 7g.278gb",
    "RTXPRO6000-96GB": "1g.24gb 1g.24gb.me 1g.24gb.gfx 1g.24gb.me.all 1g.24gb-me 2g.48gb 2g.48gb.gfx 2g.48gb.me.all "
    "2g.48gb-me 4g.96gb 4g.96gb.gfx",
}
"""NVIDIA's MIG user guide and the default configuration of mig-parted."""
MIXES = (
    {"3g.20gb": 2},
    {"4g.20gb": 1, "2g.10gb": 1, "1g.5gb": 1},
    {"3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 2},
    {"1g.5gb": 7},
    {"2g.10gb": 3, "1g.5gb": 1},
    {"4g.20gb": 1, "3g.20gb": 1},
    {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1},
)
"""Layouts of A100-40GB in use; the last one is what mig-parted calls balanced."""
TOO_MUCH = (
    {"3g.20gb": 2, "1g.5gb": 1},
    {"4g.20gb": 2},
    {"2g.10gb": 4},
    {"1g.5gb": 8},
    {"1g.5gb+me": 2},
    {"7g.40gb": 1, "1g.5gb": 1},
    {"1g.10gb": 4, "1g.5gb": 1},
    {"4g.20gb": 1, "3g.20gb": 1, "1g.5gb": 1},
)


@pytest.mark.parametrize("key", FAMILIES)
@pytest.mark.slow
def test_legal_states_are_those_of_the_rules(key: str) -> None:
    card = geometry(key)
    assert set(states(card).classes) == {bits(card, held) for held in all_legal(card)}


@pytest.mark.parametrize("key", FAMILIES)
def test_states_of_one_class_are_followed_by_the_same(key: str) -> None:
    card = geometry(key)
    known = states(card)
    of_class: dict[int, int] = {}
    for state, number in known.classes.items():
        other = of_class.setdefault(number, state)
        assert known.allowed(state) == known.allowed(other)
        assert known.rooms[number] == tuple(known.room(state, i) for i in range(len(card.profiles)))
        for bit, after in known.following[number]:
            assert known.classes[state | bit] == known.classes[other | bit] == after < number


def test_all_cards_of_eight_memory_slices_can_be_divided_equally() -> None:
    first = States(geometry(EIGHT_WIDE[0]))
    for key in EIGHT_WIDE[1:]:
        other = States(geometry(key))
        assert (other.classes, other.following) == (first.classes, first.following)
    assert {card.key for card in GEOMETRIES} - {*EIGHT_WIDE} == {"A30-24GB", "RTXPRO6000-96GB"}


@pytest.mark.parametrize("card", GEOMETRIES, ids=lambda card: card.key)
def test_an_empty_card_has_room_for_as_many_of_a_profile_as_is_published(card: Geometry) -> None:
    assert [states(card).room(0, i) for i in range(len(card.profiles))] == [own.most for own in card.profiles]


@pytest.mark.parametrize("card", GEOMETRIES, ids=lambda card: card.key)
def test_resources_are_named_as_the_device_plugin_does(card: Geometry) -> None:
    assert [own.resource for own in card.profiles] == [f"nvidia.com/mig-{name}" for name in RESOURCES[card.key].split()]
    assert all(len(own.resource) <= 63 for own in card.profiles)
    assert all(card.index(own.resource) == card.index(own.name) == i for i, own in enumerate(card.profiles))


@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_layouts_in_use_fit_an_a100(mix: dict[str, int]) -> None:
    card = geometry("A100-40GB")
    assert states(card).fits(0, counts_of(card, mix))


@pytest.mark.parametrize("mix", TOO_MUCH, ids=str)
def test_layouts_that_are_too_much_do_not_fit_an_a100(mix: dict[str, int]) -> None:
    card = geometry("A100-40GB")
    assert not states(card).fits(0, counts_of(card, mix))


@pytest.mark.parametrize("key", EIGHT_WIDE)
def test_three_compute_slices_take_four_memory_slices(key: str) -> None:
    card = geometry(key)
    small, _, double, _, three, four, seven = (own.name for own in card.profiles)
    known = states(card)
    assert card.bits([(three, 0), (small, 3)]) not in known.classes
    assert card.bits([(three, 0), (three, 4)]) in known.classes
    assert not known.fits(0, counts_of(card, {three: 2, small: 1}))
    assert card.profiles[card.index(seven)].memory_slices == 8
    for start in (1, 3, 5):
        with pytest.raises(GeometryError, match=r"starts at one of \(0, 2, 4, 6\)"):
            card.bits([(double, start)])
    with pytest.raises(GeometryError, match="not at 4"):
        card.bits([(four, 4)])


def test_media_extensions_of_a_card_go_to_one_instance() -> None:
    a30, pro = geometry("A30-24GB"), geometry("RTXPRO6000-96GB")
    assert not states(a30).fits(0, counts_of(a30, {"1g.6gb+me": 1, "2g.12gb+me": 1}))
    assert states(a30).fits(0, counts_of(a30, {"1g.6gb+me": 1, "1g.6gb": 1, "2g.12gb": 1}))
    assert not states(pro).fits(0, counts_of(pro, {"1g.24gb+me.all": 1, "1g.24gb": 1}))
    assert states(pro).fits(0, counts_of(pro, {"1g.24gb+me.all": 1, "1g.24gb-me": 3}))
    assert states(pro).fits(0, counts_of(pro, {"1g.24gb+me": 1, "1g.24gb": 1, "2g.48gb+gfx": 1}))


@pytest.mark.parametrize("key", FAMILIES)
def test_engines_limit_profiles_with_media_extensions_alone(key: str) -> None:
    card = geometry(key)
    plain = [i for i, own in enumerate(card.profiles) if "+me" not in own.name]
    boundless = replace(card, engines=Engines(99, 99, 99, 99, 99))
    allowed = sum(states(card).of_profile[i] for i in plain)
    without = {state for state in states(boundless).classes if not state & ~allowed}
    assert without == {state for state in states(card).classes if not state & ~allowed}


def test_instances_of_an_rtx_pro_6000_start_at_every_third_slice() -> None:
    card = geometry("RTXPRO6000-96GB")
    assert states(card).starts(0, card.index("1g.24gb")) == (0, 3, 6, 9)
    assert states(card).starts(card.bits([("2g.48gb", 6)]), card.index("1g.24gb")) == (0, 3)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA-A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "A100-40GB"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED", "A100-40GB"),
        ("NVIDIA-H100-80GB-HBM3-SHARED", "H100-80GB"),
        ("NVIDIA-H100-NVL", "H100-94GB"),
        ("NVIDIA-H200-NVL", "H200-141GB"),
        ("nvidia gb200", "GB200-186GB"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "RTXPRO6000-96GB"),
    ],
)
def test_a_product_is_known_by_its_name_and_its_label(name: str, key: str) -> None:
    found = of_product(name)
    assert found is not None and found.key == key


def test_what_is_not_in_the_table_is_not_known() -> None:
    assert of_product("NVIDIA-L40S") is None
    assert of_product("NVIDIA-A100") is None
    assert of_product("") is None
    divided = {product.model for product in PRODUCTS if any(map(of_product, product.names))}
    assert {"A30", "A100-PCIe-80GB", "A800-SXM4-80GB", "H20", "H800-SXM5", "GH200", "B300", "GB300"} <= divided
    assert not {"T4", "L4", "A10", "V100-SXM2", "RTX5090"} & divided


def test_names_that_differ_by_driver_are_one_profile() -> None:
    card = geometry("GB200-186GB")
    for name, other in (("1g.23gb", "1g.24gb"), ("1g.23gb+me", "1g.24gb+me"), ("7g.186gb", "7g.189gb")):
        assert card.index(name) == card.index(other)
    assert card.index("nvidia.com/mig-4g.95gb") == card.index("4g.93gb")
    assert counts_of(card, {"1g.23gb": 1, "1g.24gb": 2})[0] == 3


def test_a_profile_takes_the_scarcer_of_its_slices() -> None:
    def one(key: str, name: str) -> MigSlices:
        card = geometry(key)
        return slices(card, [card.profiles[card.index(name)]])

    assert one("A100-40GB", "1g.5gb") == (1, 1, 142, 125)
    assert one("A100-40GB", "1g.10gb") == (1, 2, 142, 250)
    assert one("A100-80GB", "1g.10gb") == (1, 1, 142, 125)
    assert one("A100-40GB", "3g.20gb").milli == 500
    assert one("A100-40GB", "4g.20gb").milli == 571
    assert one("RTXPRO6000-96GB", "1g.24gb") == (1, 3, 250, 250)
    assert most_taken("1g.10gb") == (1, 2, 142, 250)
    assert most_taken("1g.11gb") is None


@pytest.mark.parametrize("key", FAMILIES)
def test_no_state_takes_more_than_its_card_and_a_whole_card_takes_all(key: str) -> None:
    card = geometry(key)
    whole = [own for own in card.profiles if own.compute_slices == card.compute_slices]
    assert all(slices(card, [own]).milli == 1000 for own in whole)
    assert all(taken(card, state).milli <= 1000 for state in states(card).classes)


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"starts": (0, 7)}, r"profiles\[0\].starts", "start from 0 to 6"),
        ({"starts": (2, 0)}, r"profiles\[0\].starts", "ascending"),
        ({"starts": ()}, r"profiles\[0\].starts", "must be a list"),
        ({"compute_slices": 8}, r"profiles\[0\].compute_slices", "8 of 7"),
        ({"memory_slices": 9}, r"profiles\[0\].memory_slices", "9 of 8"),
        ({"most": 0}, r"profiles\[0\].most", "less than 1"),
        ({"engines": Engines(2)}, r"profiles\[0\].engines", "more than the card has"),
        ({"aliases": ("2g.10gb",)}, r"profiles\[0\].name", "listed twice"),
    ],
)
def test_a_geometry_that_cannot_be_is_refused(change: dict[str, object], field: str, message: str) -> None:
    profile = MigProfile("2g.10gb", 14, 2, 2, (0, 2, 4), 3, 9856)
    Geometry("card", (), 8, 7, Engines(1), (profile,))
    with pytest.raises(GeometryError, match=f"{field}: .*{message}"):
        Geometry("card", (), 8, 7, Engines(1), (replace(profile, **change),))  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_geometry_with_too_many_ways_is_refused() -> None:
    def profile(name: str, starts: int) -> MigProfile:
        return MigProfile(name, 0, 1, 1, tuple(range(starts)), starts, 1024)

    with pytest.raises(GeometryError, match="62 at most"):
        Geometry("card", (), 63, 63, Engines(), (profile("1g.1gb", 63),))
    with pytest.raises(GeometryError, match="ways to divide"):
        States(Geometry("card", (), 30, 30, Engines(), (profile("1g.1gb", 30), profile("1g.2gb", 30))))


def test_a_profile_of_another_product_is_named_with_what_there_is() -> None:
    with pytest.raises(GeometryError, match=r"A100-40GB has no 1g\.18gb; it has 1g\.5gb, "):
        geometry("A100-40GB").index("1g.18gb")
