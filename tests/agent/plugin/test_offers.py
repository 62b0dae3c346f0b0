# SPDX-License-Identifier: Apache-2.0
"""What a host offers under which names."""

from __future__ import annotations

import pytest

from dovetail.agent.config import Config, Shared
from dovetail.agent.plugin.offers import ResourceOffer, offers
from tests.agent.agents import GPU, host, mig_uuid, uuid, without

SHARED = Config(sharing={GPU: Shared("time-slicing", 3, False, f"{GPU}.shared")})
SMALL = [("1g.5gb", i, 1) for i in range(2)]


def ids(found: dict[str, ResourceOffer]) -> dict[str, list[str]]:
    return {resource: list(offer.devices) for resource, offer in found.items()}


def test_whole_gpus_with_their_numa_nodes() -> None:
    found, problems = offers(host(4), Config(), (), {})
    assert ids(found) == {GPU: [uuid(i) for i in range(4)]} and problems == ()
    assert [device.numa for device in found[GPU].devices.values()] == [0, 0, 1, 1]
    assert [device.part for device in found[GPU].devices.values()] == ["0", "1", "2", "3"]


def test_no_gpus_offer_nothing() -> None:
    assert offers(host(0), Config(), (), {}) == ({}, ())


def test_replicas_bear_the_name_of_what_they_are_of_and_a_number() -> None:
    found, _ = offers(host(2), SHARED, (), {})
    assert ids(found) == {f"{GPU}.shared": [f"{uuid(i)}::{n}" for i in range(2) for n in range(3)]}
    assert [device.part for device in found[f"{GPU}.shared"].devices.values()] == ["0"] * 3 + ["1"] * 3


def test_mixed_names_a_resource_for_each_profile() -> None:
    divided = host(3, mig={1: [*SMALL, ("1g.10gb+me", 2, 2)], 2: []})
    found, problems = offers(divided, Config(mig_strategy="mixed"), (), {})
    assert ids(found) == {
        GPU: [uuid(0)],
        "nvidia.com/mig-1g.5gb": [mig_uuid(1, 0), mig_uuid(1, 1)],
        "nvidia.com/mig-1g.10gb.me": [mig_uuid(1, 2)],
    }
    assert problems == ()
    (device,) = found["nvidia.com/mig-1g.10gb.me"].devices.values()
    assert (device.part, device.index, device.numa) == ("1/1g.10gb+me@2", "1:2", 0)


def test_single_offers_instances_as_gpus() -> None:
    found, problems = offers(host(2, mig={0: SMALL, 1: SMALL}), Config(mig_strategy="single"), (), {})
    assert ids(found) == {GPU: [mig_uuid(card, start) for card in (0, 1) for start in (0, 1)]}
    assert problems == () and found[GPU].profile == "1g.5gb"


def test_single_without_mig_offers_gpus() -> None:
    assert ids(offers(host(2), Config(mig_strategy="single"), (), {})[0]) == {GPU: [uuid(0), uuid(1)]}


@pytest.mark.parametrize(
    ("mig", "message"),
    [
        ({0: SMALL}, "GPU 1 is not in MIG mode while others are"),
        ({0: SMALL, 1: []}, "GPU 1 has no MIG instance"),
        ({0: SMALL, 1: [("2g.10gb", 0, 2)]}, "there are instances of 1g.5gb, 2g.10gb"),
    ],
)
def test_single_offers_nothing_if_gpus_differ_and_reports_the_reason(mig: dict, message: str) -> None:
    found, problems = offers(host(2, mig=mig), Config(mig_strategy="single"), (), {})
    assert found == {} and len(problems) == 1 and message in problems[0]


def test_none_offers_gpus_in_mig_mode_whole_with_a_note() -> None:
    found, problems = offers(host(2, mig={1: SMALL}), Config(), (), {})
    assert ids(found) == {GPU: [uuid(0), uuid(1)]}
    assert len(problems) == 1 and "GPU 1 is in MIG mode" in problems[0]


def test_instances_are_shared_by_time_but_not_by_mps() -> None:
    resource = "nvidia.com/mig-1g.5gb"
    timed = Config(mig_strategy="mixed", sharing={resource: Shared("time-slicing", 2, False, f"{resource}.shared")})
    found, _ = offers(host(1, mig={0: SMALL}), timed, (), {})
    assert len(found[f"{resource}.shared"].devices) == 4
    by_mps = Config(mig_strategy="single", sharing={GPU: Shared("mps", 2, True, f"{GPU}.shared")})
    found, problems = offers(host(1, mig={0: SMALL}), by_mps, (), {})
    assert list(found) == [GPU] and "MPS does not share" in problems[0]


def test_an_unhealthy_gpu_makes_all_its_devices_unhealthy_an_instance_only_itself() -> None:
    mixed = Config(mig_strategy="mixed")
    divided = host(2, mig={1: SMALL})

    def unhealthy(*uuids: str) -> set[str]:
        found, _ = offers(divided, mixed, uuids, {})
        return {d.id for offer in found.values() for d in offer.devices.values() if not d.healthy}

    assert unhealthy(uuid(1)) == {mig_uuid(1, 0), mig_uuid(1, 1)}
    assert unhealthy(mig_uuid(1, 1)) == {mig_uuid(1, 1)}
    replicas, _ = offers(host(2), SHARED, (uuid(0),), {})
    assert [d.healthy for d in replicas[f"{GPU}.shared"].devices.values()] == [False] * 3 + [True] * 3


def test_a_removed_gpu_stays_listed_as_unhealthy_and_no_annotation_selects_it() -> None:
    before, _ = offers(host(4), Config(), (), {})
    after, _ = offers(without(host(4), 1), Config(), (), before)
    devices = after[GPU].devices
    assert {*devices} == {uuid(i) for i in range(4)}
    assert not devices[uuid(1)].healthy and after[GPU].part(uuid(1)) is None
    assert [after[GPU].part(uuid(i)) for i in (0, 2, 3)] == ["0", "1", "2"]
    back, _ = offers(host(4), Config(), (), after)
    assert back[GPU] == before[GPU]


def test_all_gpus_may_go() -> None:
    before, _ = offers(host(2), Config(), (), {})
    after, _ = offers(host(0), Config(), (), before)
    assert [d.healthy for d in after[GPU].devices.values()] == [False, False]


def test_an_instance_that_was_taken_away_is_not_offered_any_more() -> None:
    mixed = Config(mig_strategy="mixed")
    before, _ = offers(host(1, mig={0: SMALL}), mixed, (), {})
    after, _ = offers(host(1, mig={0: [("2g.10gb", 0, 2)]}), mixed, (), before)
    assert list(after) == ["nvidia.com/mig-2g.10gb"]
