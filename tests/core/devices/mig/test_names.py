# SPDX-License-Identifier: Apache-2.0
"""Names of MIG resources as people write them."""

from __future__ import annotations

import pytest

from dovetail.core.devices.mig.names import Name, fault, is_like, nearest, read
from dovetail.core.devices.mig.products import GEOMETRIES
from tests.core.devices.mig.mig_oracle import geometry

A100, H200, GB200 = [geometry("A100-40GB")], [geometry("H200-141GB")], [geometry("GB200-186GB")]


def test_every_resource_of_the_table_is_read_and_has_no_fault() -> None:
    for card in GEOMETRIES:
        for profile in card.profiles:
            assert read(profile.resource) == Name(profile.name, shared=False)
            assert read(profile.resource + ".shared") == Name(profile.name, shared=True)
            assert is_like(profile.resource)
            assert fault(profile.resource) == fault(profile.resource, [card]) == ""


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("nvidia.com/gpu.mig-1g.5gb", "nvidia.com/mig-1g.5gb"),
        ("nvidia.com/mig-1g.5GB", "nvidia.com/mig-1g.5gb"),
        ("nvidia.com/MIG-1g.5gb", "nvidia.com/mig-1g.5gb"),
        ("nvidia.com/mig-1g-5gb", "nvidia.com/mig-1g.5gb"),
        ("nvidia.com/mig-1g5gb", "nvidia.com/mig-1g.5gb"),
        ("nvidia.com/mig1g.5gb", "nvidia.com/mig-1g.5gb"),
        ("nvidia.com/mig_1g_5gb", "nvidia.com/mig-1g.5gb"),
        ("nvidia.com/mig-1g.5g", "nvidia.com/mig-1g.5gb"),
        ("nvidia.com/mig-1g.5gib", "nvidia.com/mig-1g.5gb"),
        ("nvidia.com/1g.5gb", "nvidia.com/mig-1g.5gb"),
        ("nvidia.com/mig-01g.5gb", "nvidia.com/mig-1g.5gb"),
        ("nvidia.com/mig-1g.5gb+me", "nvidia.com/mig-1g.5gb.me"),
        ("nvidia.com/mig-1g.24gb.-me", "nvidia.com/mig-1g.24gb.me"),
        ("nvidia.com/mig-1g.24gb-ME", "nvidia.com/mig-1g.24gb-me"),
        ("nvidia.com/mig-1g.24gb.me-all", "nvidia.com/mig-1g.24gb.me.all"),
        ("nvidia.com/mig-2g.48gb+gfx", "nvidia.com/mig-2g.48gb.gfx"),
        ("nvidia.com/mig-1c.3g.20gb", "nvidia.com/mig-3g.20gb"),
        ("nvidia.com/gpu.mig-1g.5gb.shared", "nvidia.com/mig-1g.5gb.shared"),
    ],
)
def test_a_misspelt_name_is_reported_with_the_right_one(wrong: str, right: str) -> None:
    assert is_like(wrong)
    assert read(wrong) is None
    assert fault(wrong) == f"must be nvidia.com/mig-<compute slices>g.<memory>gb; nearest valid value: {right}"


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("nvidia.com/mig-1g.4gb", "nvidia.com/mig-1g.5gb"),
        ("nvidia.com/mig-2g.11gb", "nvidia.com/mig-2g.12gb"),
        ("nvidia.com/mig-8g.80gb", "nvidia.com/mig-7g.80gb"),
        ("nvidia.com/mig-1g.5gb.gfx", "nvidia.com/mig-1g.24gb.gfx"),
        ("nvidia.com/mig-7g.999gb", "nvidia.com/mig-7g.278gb"),
    ],
)
def test_a_profile_of_no_product_is_reported_with_the_one_that_is_enough(wrong: str, right: str) -> None:
    assert fault(wrong) == f"no such MIG profile; nearest valid value: {right}"


@pytest.mark.parametrize(
    ("asked", "right"),
    [
        ("nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.18gb"),
        ("nvidia.com/mig-1g.5gb.me", "nvidia.com/mig-1g.18gb.me"),
        ("nvidia.com/mig-2g.10gb", "nvidia.com/mig-2g.35gb"),
        ("nvidia.com/mig-3g.20gb", "nvidia.com/mig-3g.71gb"),
        ("nvidia.com/mig-7g.40gb", "nvidia.com/mig-7g.141gb"),
    ],
)
def test_a_profile_of_another_product_is_reported_with_the_one_that_fits(asked: str, right: str) -> None:
    assert fault(asked, H200) == f"is a profile of A100-40GB; the nodes have H200-141GB; nearest valid value: {right}"


def test_a_profile_with_more_memory_than_its_compute_has_here_gets_more_compute() -> None:
    assert fault("nvidia.com/mig-2g.20gb", A100).endswith("nearest valid value: nvidia.com/mig-3g.20gb")
    assert fault("nvidia.com/mig-1g.18gb", A100).endswith("nearest valid value: nvidia.com/mig-3g.20gb")


def test_what_nodes_offer_is_right_whatever_the_table_states() -> None:
    offered = ["nvidia.com/mig-1g.25gb"]
    assert fault("nvidia.com/mig-1g.25gb", GB200) != ""
    assert fault("nvidia.com/mig-1g.25gb", GB200, offered) == ""
    assert fault("nvidia.com/gpu.mig-1g.25gb", GB200, offered).endswith("nearest valid value: nvidia.com/mig-1g.25gb")


def test_a_name_of_another_driver_is_right_until_nodes_offer_it_by_theirs() -> None:
    assert fault("nvidia.com/mig-1g.24gb", GB200) == ""
    assert fault("nvidia.com/mig-1g.24gb", GB200, ["nvidia.com/mig-1g.24gb"]) == ""
    assert fault("nvidia.com/mig-1g.24gb", GB200, ["nvidia.com/mig-1g.23gb"]) == (
        "is named differently by the nodes' drivers; nearest valid value: nvidia.com/mig-1g.23gb"
    )


def test_without_cards_that_can_be_divided_no_value_is_near() -> None:
    assert fault("nvidia.com/mig-7g.40gb", []) == "is a profile of A100-40GB; the nodes have no GPU that supports MIG"


def test_an_unknown_name_is_reported_with_the_most_similar() -> None:
    assert (
        nearest("nvidia.com/mig-small", ["nvidia.com/mig-7g.40gb", "nvidia.com/mig-1g.5gb"]) == "nvidia.com/mig-1g.5gb"
    )
    assert "nearest valid value: nvidia.com/mig-" in fault("nvidia.com/mig-small", A100)


@pytest.mark.parametrize(
    "other", ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/migrations", "amd.com/mig-1g.5gb"]
)
def test_other_resources_are_not_taken_for_mig(other: str) -> None:
    assert not is_like(other)
    assert read(other) is None
