# SPDX-License-Identifier: Apache-2.0
"""What the claims of a pod ask for, compiled, and what of it a kind of node can give.

Rules: an ask is made once for equal specs and seen once on each kind of node: which devices each request can get at
all, as bits. A selector is tried once on each profile of devices. It errs on a device as upstream says it: that ends
the allocation on the node, where upstream would come to try the device; for `All` it tries all of them beforehand.
Source: dynamic-resource-allocation/structured, validateDeviceRequest and isSelectable (1.37).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from dovetail.core.dra.capacity import CapacityError, Draw, draw_of
from dovetail.core.dra.kinds import DeviceKind, DeviceProfile, Kinds
from dovetail.core.dra.selectors import Compile, CompiledSelector
from dovetail.core.dra.types import ClaimSpec, DeviceClass, DeviceRequest, DeviceTaint
from dovetail.core.model import Toleration
from kubecel import SelectorError

_REMEMBERED = 16_384
_MOST_CHARACTERS = 2**18
"""Of expressions: compiled, they take fifty times as much."""
MOST_RESULTS = 32
"""Devices of one claim (resource.k8s.io: AllocationResultsMaxSize)."""


class RequestFault(Struct, frozen=True):
    """What ends the allocation on a node. `device` is the bit of a device whose name stands between the two parts of
    the text, -1 for none."""

    text: str
    device: int = -1
    rest: str = ""


class Test(Struct, eq=False):
    """A selector and what it said of profiles so far, by number: a text where it erred."""

    selector: CompiledSelector | None
    error: str
    said: dict[int, bool | str]

    def of(self, profile: DeviceProfile) -> bool | str:
        said = self.said.get(profile.number)
        if said is None:
            said = self.said[profile.number] = self._ask(profile)
        return said

    def _ask(self, profile: DeviceProfile) -> bool | str:
        if self.selector is None:
            return f"CEL compile error: {self.error}"
        try:
            return self.selector.matches(profile.device, profile.driver)
        except SelectorError as error:
            return f"CEL runtime error: {error}"


class Alternative(Struct, frozen=True, eq=False):
    """`tests` are those of the class, then its own, each with the text that says where it stands. `rules` are the
    numbers of the constraints of the claim that it is under."""

    request: DeviceRequest
    tests: tuple[tuple[str, Test], ...]
    rules: tuple[int, ...]


class RequestRule(Struct, frozen=True):
    """A constraint: devices differ in the attribute, or have a value of it in common."""

    attribute: str
    distinct: bool


class ClaimAsk(Struct, frozen=True, eq=False):
    requests: tuple[tuple[Alternative, ...], ...]
    rules: tuple[RequestRule, ...]


class Ask(Struct, frozen=True, eq=False):
    """`missing` names a class that does not exist. `broken` says which expression keeps a request, whatever its
    alternative, from any device, since it cannot be compiled. "" for none."""

    number: int
    claims: tuple[ClaimAsk, ...]
    missing: str
    broken: str


class RequestOption(Struct, frozen=True, eq=False):
    """An alternative on a kind of node. `matching` are the devices that it means, `fitting` those of them that are not
    kept from it by taints. `draws[bit]` is what it takes of the capacities of each. `count` is how many it needs.
    `faults[bit]` is why no device can be taken once this one is tried."""

    request: DeviceRequest
    every: bool
    count: int
    matching: int
    fitting: int
    draws: dict[int, Draw]
    faults: dict[int, RequestFault]
    rules: tuple[int, ...]


class DeviceView(Struct, frozen=True, eq=False):
    """An ask on a kind of node. `fault` ends it whatever is free. `plain` are the devices to choose any `count` of,
    where nothing else is to be heeded, else 0. `ordered` is true where upstream's order of trying decides whether it
    fails."""

    kind: DeviceKind
    claims: tuple[tuple[tuple[RequestOption, ...], ...], ...]
    rules: tuple[tuple[RequestRule, ...], ...]
    fault: RequestFault | None
    plain: int
    count: int
    ordered: bool
    alike: tuple[int, ...]
    """Devices with equal numbers are equal for the ask: where one does not do, the other does not."""


class Asks:
    """Asks by specs. `classes` are the device classes by name; tell `forget` when one changes."""

    def __init__(self, kinds: Kinds, classes: Mapping[str, DeviceClass], compile: Compile) -> None:
        self._kinds = kinds
        self._classes = classes
        self._compile = compile
        self._tests: dict[str, Test] = {}
        self._asks: dict[tuple[ClaimSpec, ...], Ask] = {}
        self._views: dict[tuple[int, int], DeviceView] = {}
        self._version = 0
        self._made = 0
        self._characters = 0
        """Of the expressions that are remembered."""

    def forget(self) -> None:
        """A class changed: what was made of it is made anew."""
        self._asks.clear()
        self._views.clear()

    def of(self, specs: tuple[ClaimSpec, ...]) -> Ask:
        ask = self._asks.get(specs)
        if ask is None:
            if len(self._asks) >= _REMEMBERED or self._characters > _MOST_CHARACTERS:
                self.forget()
                self._tests.clear()
                self._kinds.forget()
                self._characters = 0
            ask = self._asks[specs] = self._new(specs)
        return ask

    def _new(self, specs: tuple[ClaimSpec, ...]) -> Ask:
        requests = [request for spec in specs for alternatives in spec.requests for request in alternatives]
        missing = next(
            (
                f"request {request.name}: device class {request.device_class} does not exist"
                for request in requests
                if request.device_class not in self._classes
            ),
            "",
        )
        claims = tuple(self._claim(spec) for spec in specs)
        tests = [
            test for claim in claims for alternatives in claim.requests for one in alternatives for _, test in one.tests
        ]
        self._made += 1
        self._kinds.read(
            (test.selector.reads for test in tests if test.selector is not None),
            (rule.attribute for claim in claims for rule in claim.rules),
        )
        return Ask(self._made, claims, missing, _broken(claims))

    def _claim(self, spec: ClaimSpec) -> ClaimAsk:
        rules = tuple(RequestRule(one.match or one.distinct, bool(one.distinct)) for one in spec.constraints)

        def under(request: DeviceRequest) -> tuple[int, ...]:
            names = {request.name, request.name.partition("/")[0]}
            return tuple(
                i for i, one in enumerate(spec.constraints) if not one.requests or not names.isdisjoint(one.requests)
            )

        return ClaimAsk(
            tuple(
                tuple(Alternative(request, tuple(self._tests_of(request)), under(request)) for request in alternatives)
                for alternatives in spec.requests
            ),
            rules,
        )

    def _tests_of(self, request: DeviceRequest) -> Iterator[tuple[str, Test]]:
        found = self._classes.get(request.device_class)
        for i, expression in enumerate(found.selectors if found is not None else ()):
            yield f"class {request.device_class}: selector #{i}", self._test(expression)
        for i, expression in enumerate(request.selectors):
            yield f"request {request.name}: selector #{i}", self._test(expression)

    def _test(self, expression: str) -> Test:
        test = self._tests.get(expression)
        if test is None:
            try:
                test = Test(self._compile(expression), "", {})
            except SelectorError as error:
                test = Test(None, str(error), {})
            self._tests[expression] = test
            self._characters += len(expression)
        return test

    def view(self, ask: Ask, kind: DeviceKind) -> DeviceView:
        """The ask on a kind of node."""
        if self._version != self._kinds.version:
            self._version = self._kinds.version
            self._views.clear()
            for test in self._tests.values():
                test.said.clear()
        view = self._views.get((ask.number, kind.number))
        if view is None:
            view = self._views[ask.number, kind.number] = view_of(ask, kind)
        return view


def _broken(claims: tuple[ClaimAsk, ...]) -> str:
    for claim in claims:
        for alternatives in claim.requests:
            broken = [
                next(
                    (f"{where}: CEL compile error: {test.error}" for where, test in one.tests if test.selector is None),
                    "",
                )
                for one in alternatives
            ]
            if broken and all(broken):
                return broken[0]
    return ""


def view_of(ask: Ask, kind: DeviceKind) -> DeviceView:
    claims = tuple(
        tuple(tuple(_option(one, kind) for one in alternatives) for alternatives in claim.requests)
        for claim in ask.claims
    )
    fault = RequestFault(ask.missing) if ask.missing else _fault(claims, kind)
    options = [one for requests in claims for alternatives in requests for one in alternatives]
    exact = [one for one in options if not one.every]
    plain = options[0].fitting if options else 0
    is_plain = (
        len(exact) == len(options) == sum(len(requests) for requests in claims)
        and all(one.fitting == plain and not one.rules and not one.faults for one in options)
        and not any(one.request.admin_access for one in options)
        and not plain & (kind.shareable | kind.partitioned | kind.conditional)
    )
    return DeviceView(
        kind=kind,
        claims=claims,
        rules=tuple(claim.rules for claim in ask.claims),
        fault=fault,
        plain=plain if is_plain else 0,
        count=sum(one.count for one in options),
        ordered=any(one.faults for one in exact) or any(one.rules for one in options if one.every),
        alike=_alike(ask, kind),
    )


def _alike(ask: Ask, kind: DeviceKind) -> tuple[int, ...]:
    compared = [kind.compared(rule.attribute) for claim in ask.claims for rule in claim.rules]
    numbers: dict[object, int] = {}
    return tuple(
        numbers.setdefault(
            (profile.number, kind.here >> bit & 1, kind.uses[bit], *(values[bit] for values in compared)), len(numbers)
        )
        for bit, profile in enumerate(kind.profiles)
    )


def _option(alternative: Alternative, kind: DeviceKind) -> RequestOption:
    request = alternative.request
    judged: dict[int, _Judgement] = {}
    matching = fitting = 0
    draws: dict[int, Draw] = {}
    faults: dict[int, RequestFault] = {}
    for bit, profile in enumerate(kind.profiles):
        judgement = judged.get(profile.number)
        if judgement is None:
            judgement = judged[profile.number] = _judge(alternative, profile)
        here = bool(kind.here >> bit & 1)
        if judgement.text and (here or judgement.erred):
            faults[bit] = RequestFault(judgement.text, bit, judgement.rest)
        elif judgement.draw is not None and here:
            matching |= 1 << bit
            draws[bit] = judgement.draw
            fitting |= judgement.tolerated << bit
    every = request.mode == "All"
    count = matching.bit_count() if every else request.count
    return RequestOption(request, every, count, matching, fitting, draws, faults, alternative.rules)


class _Judgement(Struct, frozen=True):
    """What an alternative makes of a profile; `draw` is None where it cannot take it. `text` and `rest` are those of a
    fault: in a selector (`erred`), which is tried on devices that are not here too, or in what it would take."""

    draw: Draw | None = None
    tolerated: bool = False
    erred: bool = False
    text: str = ""
    rest: str = ""


def _judge(alternative: Alternative, profile: DeviceProfile) -> _Judgement:
    request = alternative.request
    for where, test in alternative.tests:
        said = test.of(profile)
        if isinstance(said, str):
            return _Judgement(erred=True, text=f"{where} on device ", rest=f": {said}")
        if not said:
            return _Judgement()
    try:
        draw = draw_of(profile.device, profile.driver, request.amounts)
    except CapacityError as error:
        text = f"request {request.name}: checking capacity for device "
        return _Judgement(text=text, rest=f": {error}")
    kept_away = any(
        taint.effect != "None" and not any(_tolerates(one, taint) for one in request.tolerations)
        for taint in profile.device.taints
    )
    return _Judgement(draw=draw, tolerated=not kept_away)


def _tolerates(toleration: Toleration, taint: DeviceTaint) -> bool:
    """Source: dynamic-resource-allocation/resourceclaim, ToleratesTaint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    return toleration.operator == "Exists" or (toleration.operator == "Equal" and toleration.value == taint.value)


def _fault(claims: tuple[tuple[tuple[RequestOption, ...], ...], ...], kind: DeviceKind) -> RequestFault | None:
    """What is found wrong before any device is tried."""
    for requests in claims:
        least = 0
        for options in requests:
            for option in options:
                if option.every and (fault := _fault_of_every(option, kind)) is not None:
                    return fault
            fewest = min((option.count for option in options), default=0)
            if fewest > MOST_RESULTS - least:
                return RequestFault(
                    f"request {options[0].request.name.partition('/')[0]}: adding {fewest} devices exceeds the claim "
                    f"limit of {MOST_RESULTS}, with {least} already accounted for"
                )
            least += fewest
    return None


def _fault_of_every(option: RequestOption, kind: DeviceKind) -> RequestFault | None:
    """All devices can only be had where all are known, and nothing errs on one."""
    for pool in kind.pools:
        state = "being updated" if pool.incomplete else "invalid" if pool.invalid else ""
        if state:
            text = f"request {option.request.name}: asks for all devices, but a resource pool of {pool.driver} is "
            return RequestFault(f"{text}currently {state}")
        for bit in range(pool.first, pool.end):
            if bit in option.faults:
                return option.faults[bit]
    return None
