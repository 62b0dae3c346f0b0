# SPDX-License-Identifier: Apache-2.0
"""What a selector sees of a device, and what it reports that it reads."""

import pytest

import kubecel
from kubecel import SelectorError, SelectorReads
from tests.kubecel.cel_devices import DRIVER, GPU, Capacity, Device, Version, holds
from tests.kubecel.cel_expressions import Expressions

A, C = f'device.attributes["{DRIVER}"]', f'device.capacity["{DRIVER}"]'
TRUE = [
    f'device.driver == "{DRIVER}"',
    "!device.allowMultipleAllocations",
    f'{A}.productName == "NVIDIA H100 80GB HBM3" && {A}["productName"] == {A}.productName',
    f"{A}.fast",
    f"{A}.numaNode == 1 && {A}.numaNode < 1.5",
    f'{A}.driverVersion.compareTo(semver("550.54.0")) > 0 && {A}.driverVersion.isLessThan(semver("551.0.0"))',
    f'{A}.driverVersion == semver("550.54.15+build") && {A}.driverVersion.major() == 550',
    f"{A}.links == [1, 3, 5] && {A}.links.includes(3) && {A}.links.exists(x, x > 4) && 5 in {A}.links",
    f'{A}.names.includes("b") && {A}.productName.includes("NVIDIA H100 80GB HBM3") && !{A}.names.includes("c")',
    f'{A}.versions.all(v, v.isGreaterThan(semver("0.9.0"))) && {A}.versions[1].major() == 2',
    'device.attributes["resource.kubernetes.io"].pcieRoot.startsWith("pci")',
    f'{C}.memory.compareTo(quantity("80Gi")) == 0 && {C}.memory.isGreaterThan(quantity("79G"))',
    f"{C}.cores.asInteger() == 132 && {C}.cores.add(1).compareTo(quantity('133')) == 0",
    f'"{DRIVER}" in device.attributes && !("absent" in device.attributes) && "fast" in {A}',
    f'has({A}.fast) && !has({A}.slow) && !has(device.attributes["absent"].x)',
    f'{A}.?slow.orValue(true) && device.attributes["absent"].?x.orValue(1) == 1 && {A}.?numaNode.orValue(5) == 1',
    'device.attributes["absent"].size() == 0 && device.attributes.size() == 2 && device.capacity.size() == 1',
    'device.attributes[?"absent"].hasValue()',
    f'cel.bind(gpu, {A}, gpu.productName.contains("H100") && gpu.fast)',
    f"{A}.slow == 1 || true",
    f"!({A}.slow == 1 && false)",
    f"device.attributes[device.driver].fast && device.attributes.exists(d, d == '{DRIVER}')",
    f'{A}.fast ? {A}.numaNode == 1 : {A}.slow == 1',
    f'({A}.fast ? {A} : device.attributes["x"]).fast',
]  # fmt: skip
ERRORS = {
    f"{A}.slow == 1": "no such key: slow",
    'device.attributes["absent"].x == 1': "no such key: x",
    f'{C}.slow.compareTo(quantity("1")) == 0': "no such key: slow",
    f"{A}.slow == 1 && true": "no such key: slow",
    f"{A}.productName": "CEL result of type string could not be converted to bool",
    f"{A}.links": "CEL result of type list could not be converted to bool",
    f'{A}.driverVersion == "550.54.15"': "no such overload",
    f"{A}.productName.compareTo(quantity('1')) == 0": "no such overload",
    f"{A}.driverVersion > 1": "no such overload",
    f"{A}.productName.x == 1": "no such key: x",
    f"{A}.links[7] == 1": "index out of bounds: 7",
    f'{A}.driverVersion in ["550.54.15"]': "unhashable",
}
BROKEN = {
    "device.name == 'gpu-0'": "undefined field 'name'",
    "device.driver == 1": "found no matching overload for '_==_' applied to '(string, int)'",
    f"{C}.memory > 1": "found no matching overload for '_>_' applied to '(kubernetes.Quantity, int)'",
    f"{C}.memory == 1": "found no matching overload for '_==_' applied to '(kubernetes.Quantity, int)'",
    "device.attributes": "must evaluate to bool or the unknown type, not map(string, map(string, dyn))",
    "claim.name == ''": "undeclared reference to 'claim'",
}


@pytest.mark.parametrize("expression", TRUE)
def test_it_is_true_of_the_device(expression: str) -> None:
    assert holds(expression)


@pytest.mark.parametrize("expression", ERRORS)
def test_it_errs_on_the_device_and_does_not_just_not_match(expression: str) -> None:
    selector = kubecel.compile(expression)
    with pytest.raises(SelectorError) as error:
        selector.matches(GPU, DRIVER)
    assert ERRORS[expression] in str(error.value)


@pytest.mark.parametrize("expression", BROKEN)
def test_it_is_no_selector_of_devices(expression: str) -> None:
    with pytest.raises(SelectorError) as error:
        kubecel.compile(expression)
    assert BROKEN[expression] in str(error.value)


def test_a_shareable_device_has_the_attribute() -> None:
    assert holds("device.allowMultipleAllocations", Device("shared", shareable=True))


def test_capacities_are_exact() -> None:
    device = Device("d", capacity=((f"{DRIVER}/memory", Capacity(1500)),))
    assert holds(f'{C}.memory == quantity("1.5") && {C}.memory == quantity("1500m")', device)
    assert holds(f"!{C}.memory.isInteger()", device)
    large = Device("d", capacity=((f"{DRIVER}/memory", Capacity(2**62 * 1000 - 1000)),))
    assert holds(f'{C}.memory.isLessThan(quantity("4611686018427387904"))', large)


def test_a_broken_version_of_a_device_is_an_error() -> None:
    device = Device("d", attributes=((f"{DRIVER}/driverVersion", Version("550")),))
    with pytest.raises(SelectorError, match="parse semantic version"):
        holds("true", device)


def test_one_selector_is_asked_about_many_devices() -> None:
    selector = kubecel.compile(f'{A}.names.map(n, n + "!").exists(n, n == "b!")')
    other = Device("d", attributes=((f"{DRIVER}/names", ("c",)),))
    assert [selector.matches(device, DRIVER) for device in (GPU, other, GPU)] == [True, False, True]


def attribute(name: str) -> SelectorReads:
    return SelectorReads("attributes", DRIVER, name)


READS: dict[str, set[SelectorReads] | None] = {
    "true": set(),
    f'device.driver == "{DRIVER}"': {SelectorReads("driver", "", "")},
    "device.allowMultipleAllocations": {SelectorReads("shareable", "", "")},
    f'{A}.productName == "x" && sign({C}.memory) == 1': {
        attribute("productName"),
        SelectorReads("capacity", DRIVER, "memory"),
    },
    f'{A}["productName"] == "x" || {A}.?numaNode.orValue(1) == 1': {attribute("productName"), attribute("numaNode")},
    f"has({A}.fast)": {attribute("fast")},
    f"{A}.links.exists(x, x > 4)": {attribute("links")},
    f"cel.bind(gpu, {A}, gpu.fast && gpu.numaNode == 1)": {attribute("fast"), attribute("numaNode")},
    f"cel.bind(all, device.attributes, all['{DRIVER}'].fast)": {attribute("fast")},
    f"cel.bind(gpu, {A}, gpu.exists(name, name == 'fast'))": {attribute("")},
    f"cel.bind(unused, {A}.fast, true)": set(),
    f'"fast" in {A}': {attribute("")},
    f"{A}[{A}.productName] == 1": {attribute(""), attribute("productName")},
    "device.attributes[device.driver].fast": None,
    "device.attributes.exists(domain, domain == 'x')": None,
    "'x' in device.attributes": None,
    "[device].size() == 1": None,
}


@pytest.mark.parametrize("expression", READS)
def test_a_selector_reports_all_that_its_answer_depends_on(expression: str) -> None:
    assert kubecel.compile(expression).reads == READS[expression]


def test_an_answer_depends_on_nothing_else() -> None:
    changed = Device("other", attributes=((f"{DRIVER}/fast", True), (f"{DRIVER}/uuid", "GPU-1")), capacity=GPU.capacity)
    selector = kubecel.compile(f"cel.bind(gpu, {A}, gpu.fast)")
    assert selector.reads == {attribute("fast")}
    assert selector.matches(changed, DRIVER) is selector.matches(GPU, DRIVER) is True


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
def test_a_device_with_only_what_is_read_gets_the_same_answer(seed: int) -> None:
    drawn = Expressions(1000 + seed)
    reported = 0
    for _ in range(300):
        try:
            selector = kubecel.compile(drawn.one())
        except SelectorError:
            continue
        reads = selector.reads
        if reads is None:
            continue
        reported += bool(reads)
        for device in (GPU, Device("d", attributes=GPU.attributes[3:], capacity=GPU.capacity[1:], shareable=True)):
            assert outcome(selector, device) == outcome(selector, reduced(device, reads)), selector.expression
    assert reported > 50


def outcome(selector: kubecel.Selector, device: Device) -> object:
    try:
        return selector.evaluate(device, DRIVER)
    except SelectorError as error:
        return str(error)


def reduced(device: Device, reads: frozenset[SelectorReads]) -> Device:
    def kept(kind: str, qualified: str) -> bool:
        domain, _, name = qualified.partition("/")
        return any(read.kind == kind and read.domain == domain and read.name in ("", name) for read in reads)

    return Device(
        "reduced",
        attributes=tuple(one for one in device.attributes if kept("attributes", one[0])),
        capacity=tuple(one for one in device.capacity if kept("capacity", one[0])),
        shareable=device.shareable and any(read.kind == "shareable" for read in reads),
    )
