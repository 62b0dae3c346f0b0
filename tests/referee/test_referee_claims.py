# SPDX-License-Identifier: Apache-2.0
"""The claims of random pods: what kube-scheduler's own allocator would give them, and what Dovetail does.

Rules: whether a node can serve the claims of a pod agrees exactly, and so does whether that is an error. Which devices
they get may differ, so what Dovetail chose is asked about once more with nothing else left to choose: then upstream's
allocator must choose it too, with the same capacity taken and the same nodes to be used from.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.referee import dra_ours
from tests.referee.dra_claims import asked
from tests.referee.dra_devices import Features, Manifest
from tests.referee.dra_ours import Verdict
from tests.referee.dra_pins import chosen_of, configurations, pinned, substance
from tools.controlplane import referee

PER_LINE = 50
CHUNKS, PER_CHUNK = 2, 350
ALL_FEATURES: tuple[Features, ...] = ("default", "all")


def lines(question: str, features: str, cases: list[Manifest]) -> Iterator[referee.Case]:
    for first in range(0, len(cases), PER_LINE):
        some = cases[first : first + PER_LINE]
        yield {"id": str(first), "question": question, "features": features, "asked": some}


def allocate(program: Path, features: Features, cases: list[Manifest]) -> list[Manifest]:
    """What the referee answers to each of the cases."""
    stated: dict[int, list[Manifest]] = {}
    for answer in referee.answers(program, lines("allocate", features, cases)):
        assert "error" not in answer, answer
        stated[int(answer["id"])] = answer["answers"]
    return [one for first in sorted(stated) for one in stated[first]]


def upshot(theirs: Manifest) -> str:
    return "fits" if theirs["fits"] else "error" if "error" in theirs else "does not fit"


def our_upshot(ours: Verdict) -> str:
    return "fits" if ours.fits else "error" if ours.error else "does not fit"


def agree(theirs: Manifest, ours: Verdict) -> bool:
    """A broken selector is reported at once; upstream's allocator evaluates it only where it needs the result."""
    if not theirs["fits"] and "CEL compile error" in ours.error:
        return True
    return upshot(theirs) == our_upshot(ours)


def disagreements(seeds: range, theirs: list[Manifest], ours: list[Verdict]) -> list[str]:
    return [
        f"case {seed}: kube-scheduler: {upshot(one)} {one.get('error', '')}, Dovetail: {our_upshot(two)} {two.detail}"
        for seed, one, two in zip(seeds, theirs, ours, strict=True)
        if not agree(one, two)
    ]


@pytest.mark.plane
@pytest.mark.parametrize("features", ALL_FEATURES)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_dovetail_allocates_where_kube_scheduler_does_and_what_it_could(
    program: Path, chunk: int, features: Features
) -> None:
    seeds = range(PER_CHUNK * chunk, PER_CHUNK * (chunk + 1))
    cases = [asked(seed, features) for seed in seeds]
    ours = [dra_ours.ask(case) for case in cases]
    theirs = allocate(program, features, cases)
    assert disagreements(seeds, theirs, ours) == []

    served = [one for one in zip(seeds, cases, theirs, ours, strict=True) if one[-1].fits]
    alone = allocate(program, features, [pinned(case, chosen_of(mine.allocations)) for _, case, _, mine in served])
    for (seed, _, upstream, mine), legal in zip(served, alone, strict=True):
        chosen, freely = chosen_of(mine.allocations), chosen_of(upstream["allocations"])
        assert legal["fits"], f"case {seed}: {chosen} is not allowed: {legal}"
        assert [substance(one) for one in mine.allocations] == [substance(one) for one in legal["allocations"]], seed
        if [one.keys() for one in chosen] == [one.keys() for one in freely]:
            reported = [configurations(one) for one in upstream["allocations"]]
            assert [configurations(one) for one in mine.allocations] == reported, f"case {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("features", ALL_FEATURES)
def test_one_world_after_the_other_leaves_nothing_behind(features: Features) -> None:
    world = dra_ours.World()
    for seed in range(120):
        case = asked(seed, features)
        world.become(case)
        assert world.verdict() == dra_ours.ask(case), f"case {seed}"
        assert world.audit() == [], f"case {seed}"


@pytest.mark.plane
@pytest.mark.parametrize("features", ALL_FEATURES)
def test_about_half_of_the_cases_can_be_served(program: Path, features: Features) -> None:
    kinds: Counter[str] = Counter()
    for answer in allocate(program, features, [asked(seed, features) for seed in range(600)]):
        kinds[upshot(answer)] += 1
        kinds["invalid pools"] += "reason" in answer
    assert 200 < kinds["fits"] < 350, kinds
    assert 200 < kinds["does not fit"] < 350, kinds
    assert 25 < kinds["error"] < 125, kinds
    assert kinds["invalid pools"] > 5, kinds


@pytest.mark.plane
@pytest.mark.parametrize("features", ALL_FEATURES)
def test_the_objects_are_such_as_an_api_server_would_hand_out(program: Path, features: Features) -> None:
    # Its gates are the default ones, so that it does not know what can be done with lists.
    known = ("Syntax error", "undeclared reference to 'includes'")
    cases = [asked(seed, features) for seed in range(300)]
    for answer in referee.answers(program, lines("admit-claims", features, cases)):
        assert "error" not in answer, answer
        assert [problem for problem in answer["problems"] if not any(text in problem for text in known)] == []


@pytest.mark.plane
@pytest.mark.parametrize("features", ALL_FEATURES)
def test_what_is_asked_about_with_nothing_else_left_is_what_is_chosen(program: Path, features: Features) -> None:
    cases = [asked(seed, features) for seed in range(400)]
    fitting = [
        (c, a["allocations"]) for c, a in zip(cases, allocate(program, features, cases), strict=True) if a["fits"]
    ]
    alone = allocate(program, features, [pinned(case, chosen_of(given)) for case, given in fitting])
    assert len(alone) > 120
    for (_, given), answer in zip(fitting, alone, strict=True):
        assert chosen_of(answer["allocations"]) == chosen_of(given)


def answered_cases(program: Path, count: int) -> Iterator[tuple[Manifest, Manifest]]:
    cases = [asked(seed, "default") for seed in range(count)]
    yield from zip(cases, allocate(program, "default", cases), strict=True)


@pytest.mark.plane
def test_devices_that_others_have_are_no_legal_choice(program: Path) -> None:
    stolen = []
    for case, answer in answered_cases(program, 700):
        held = [result for claim in case["allocated"] for result in claim["status"]["allocation"]["devices"]["results"]]
        whole = [one for one in held if "shareID" not in one and "adminAccess" not in one]
        device_requests = {
            request["name"]: request["exactly"]
            for request in case["claims"][0]["spec"]["devices"]["requests"]
            if "exactly" in request
        }
        if not answer["fits"] or not whole:
            continue
        for name, devices in chosen_of(answer["allocations"])[0].items():
            device_request = device_requests.get(name, {})
            if device_request.get("allocationMode") == "ExactCount" and not device_request.get("adminAccess"):
                theft = chosen_of(answer["allocations"])
                theft[0][name] = [f"{whole[0]['driver']}/{whole[0]['pool']}/{whole[0]['device']}", *devices[1:]]
                stolen.append(pinned(case, theft))
    assert len(stolen) > 35
    assert [answer for answer in allocate(program, "default", stolen) if answer["fits"]] == []


def each_device(change: Callable[[Manifest], object]) -> Callable[[Manifest], None]:
    def blind(case: Manifest) -> None:
        for one in case["slices"]:
            for device in one["spec"].get("devices", ()):
                change(device)

    return blind


def each_slice(change: Callable[[Manifest], object]) -> Callable[[Manifest], None]:
    def blind(case: Manifest) -> None:
        for one in case["slices"]:
            change(one["spec"])

    return blind


def each_request(change: Callable[[Manifest], object]) -> Callable[[Manifest], None]:
    def blind(case: Manifest) -> None:
        for claim in case["claims"]:
            for request in claim["spec"]["devices"]["requests"]:
                for device_request in (request["exactly"],) if "exactly" in request else request["firstAvailable"]:
                    change(device_request)

    return blind


def each_result(change: Callable[[Manifest], object]) -> Callable[[Manifest], None]:
    def blind(case: Manifest) -> None:
        for claim in case["allocated"]:
            for result in claim["status"]["allocation"]["devices"]["results"]:
                change(result)

    return blind


def only_first(case: Manifest) -> None:
    for claim in case["claims"]:
        for request in claim["spec"]["devices"]["requests"]:
            del request.get("firstAvailable", [])[1:]


def no_constraints(case: Manifest) -> None:
    for claim in case["claims"]:
        claim["spec"]["devices"].pop("constraints", None)


def everywhere(spec: Manifest) -> None:
    for where in ("nodeName", "nodeSelector", "perDeviceNodeSelection"):
        spec.pop(where, None)
    spec["allNodes"] = True


def anywhere(device: Manifest) -> None:
    if {"nodeName", "nodeSelector"} & device.keys():
        del device["nodeName" if "nodeName" in device else "nodeSelector"]
        device["allNodes"] = True


def one_of_all(device_request: Manifest) -> None:
    if device_request["allocationMode"] == "All":
        device_request |= {"allocationMode": "ExactCount", "count": 1}


def no_policies(device: Manifest) -> None:
    for capacity in device.get("capacity", {}).values():
        capacity.pop("requestPolicy", None)


BLIND: dict[str, Callable[[Manifest], object]] = {
    "attributes": each_device(lambda device: device["attributes"].clear()),
    "capacities": each_device(lambda device: device.pop("capacity", None)),
    "request policies": each_device(no_policies),
    "shared devices": each_device(lambda device: device.pop("allowMultipleAllocations", None)),
    "taints": each_device(lambda device: device.pop("taints", None)),
    "counters": each_device(lambda device: device.pop("consumesCounters", None)),
    "counter sets": each_slice(lambda spec: spec.pop("sharedCounters", None)),
    "nodes of slices": each_slice(everywhere),
    "nodes of devices": each_device(anywhere),
    "generations": each_slice(lambda spec: spec["pool"].update(generation=1)),
    "how many slices a pool has": each_slice(lambda spec: spec["pool"].update(resourceSliceCount=1)),
    "selectors of classes": lambda case: [one["spec"].pop("selectors", None) for one in case["classes"]],
    "selectors of requests": each_request(lambda device_request: device_request.pop("selectors", None)),
    "tolerations": each_request(lambda device_request: device_request.pop("tolerations", None)),
    "counts": each_request(lambda device_request: "count" in device_request and device_request.update(count=1)),
    "all devices": each_request(one_of_all),
    "admin access": each_request(lambda device_request: device_request.pop("adminAccess", None)),
    "amounts": each_request(lambda device_request: device_request.pop("capacity", None)),
    "alternatives": only_first,
    "constraints": no_constraints,
    "allocated claims": lambda case: case["allocated"].clear(),
    "shares": each_result(lambda result: result.pop("shareID", None)),
    "consumed capacity": each_result(lambda result: result.pop("consumedCapacity", None)),
    "admin access of others": each_result(lambda result: result.pop("adminAccess", None)),
}
"""What Dovetail could fail to see."""


SHOWN_BY = {
    "attributes": 0, "capacities": 0, "counter sets": 0, "how many slices a pool has": 0, "selectors of classes": 2,
    "alternatives": 5, "request policies": 8, "shares": 8, "generations": 10, "amounts": 12, "shared devices": 14,
    "counts": 17, "constraints": 17, "allocated claims": 17, "taints": 26, "selectors of requests": 28,
    "all devices": 29, "nodes of slices": 47, "counters": 59, "admin access of others": 73, "nodes of devices": 249,
    "tolerations": 344, "consumed capacity": 419, "admin access": 681,
}  # fmt: skip
"""The first of the random cases that depends on each. CASES are sought for another where it does not any more."""
CASES = 1500


def depends(what: str, seed: int, theirs: Manifest) -> bool:
    """Whether it is noticed in this case if Dovetail does not see that."""
    case, blind = asked(seed, "default"), asked(seed, "default")
    BLIND[what](blind)
    return blind != case and bool(disagreements(range(seed, seed + 1), [theirs], [dra_ours.ask(blind)]))


@pytest.fixture(scope="module")
def answers(program: Path) -> dict[int, Manifest]:
    """Those to the cases of SHOWN_BY."""
    seeds = sorted({*SHOWN_BY.values()})
    return dict(zip(seeds, allocate(program, "default", [asked(seed, "default") for seed in seeds]), strict=True))


@pytest.mark.plane
@pytest.mark.parametrize("what", BLIND)
def test_it_is_noticed_if_dovetail_does_not_see(what: str, program: Path, answers: dict[int, Manifest]) -> None:
    seed = SHOWN_BY.get(what, 0)
    if not depends(what, seed, answers[seed]):
        every = allocate(program, "default", [asked(seed, "default") for seed in range(CASES)])
        others = [seed for seed, theirs in enumerate(every) if depends(what, seed, theirs)]
        pytest.fail(f"{what}: SHOWN_BY names no case that depends on it; those that do: {others[:9]}")


def test_a_case_is_the_same_one_for_the_same_seed() -> None:
    assert asked(7, "all") == asked(7, "all") != asked(8, "all")


BAD: dict[str, tuple[Manifest, str]] = {
    "features that are not known": ({"features": "some"}, 'features: "some" is neither default nor all'),
    "no node": ({"asked": [{"slices": []}]}, "asked[0].node: "),
    "a field that does not exist": ({"asked": [asked(0, "all") | {"nodes": []}]}, 'unknown field "asked[0].nodes"'),
    "a field that an object does not have": (
        {"asked": [asked(0, "all"), asked(0, "all") | {"claims": [{"metadata": {"name": "c"}, "specs": {}}]}]},
        'asked[1].claims[0]: unknown field "specs"',
    ),
    "the same slice twice": (
        {"asked": [asked(0, "all") | {"slices": [*asked(0, "all")["slices"][:1]] * 2}]},
        "is also asked[0].slices[0]",
    ),
}


@pytest.mark.plane
@pytest.mark.parametrize("what", BAD)
def test_a_bad_case_is_reported_by_field(program: Path, what: str) -> None:
    change, stated = BAD[what]
    case = {"id": "bad", "question": "allocate", "features": "default", "asked": []} | change
    [answer] = referee.answers(program, [case])
    assert stated in answer["error"]
