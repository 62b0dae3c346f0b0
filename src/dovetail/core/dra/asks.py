# SPDX-License-Identifier: Apache-2.0
"""The requests of a pod's claims, compiled, and the devices of a kind of node that can serve them.

Rules: equal specs are compiled once, and matched once against each kind of node: the devices that each request can get
at all, as bits. A selector is evaluated once on each profile of devices. An error on a device has upstream's effect: it
ends the allocation on the node when upstream would try the device; for `All` upstream tries all devices beforehand.
Source: dynamic-resource-allocation/structured, validateDeviceRequest and isSelectable (1.37).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from dovetail.core.dra.capacity import CapacityError, Draw, draw_of
from dovetail.core.dra.joins import Join
from dovetail.core.dra.kinds import DeviceKind, DeviceProfile, Kinds
from dovetail.core.dra.selectors import Compile, CompiledSelector
from dovetail.core.dra.types import ClaimSpec, DeviceClass, DeviceRequest, DeviceTaint
from dovetail.core.model import Toleration
from kubecel import SelectorError

_REMEMBERED = 16_384
_MOST_CHARACTERS = 2**18
"""The most characters of expressions that are kept: compiled, they take fifty times as much memory."""
MOST_RESULTS = 32
"""The most devices of one claim (resource.k8s.io: AllocationResultsMaxSize)."""


class RequestFault(Struct, frozen=True):
    """The error that ends the allocation on a node. `device` is the bit of a device whose name goes between the two
    parts of the text, -1 for none."""

    text: str
    device: int = -1
    rest: str = ""


class Test(Struct, eq=False):
    """A selector and its results so far, by the number of the profile: a text where it failed."""

    selector: CompiledSelector | None
    error: str
    results: dict[int, bool | str]

    def of(self, profile: DeviceProfile) -> bool | str:
        result = self.results.get(profile.number)
        if result is None:
            result = self.results[profile.number] = self._ask(profile)
        return result

    def _ask(self, profile: DeviceProfile) -> bool | str:
        if self.selector is None:
            return f"CEL compile error: {self.error}"
        try:
            return self.selector.matches(profile.device, profile.driver)
        except SelectorError as error:
            return f"CEL runtime error: {error}"


class Alternative(Struct, frozen=True, eq=False):
    """`tests` are those of the class, then its own, each with the text that names its place. `rules` are the indices of
    the claim's constraints that apply to it."""

    request: DeviceRequest
    tests: tuple[tuple[str, Test], ...]
    rules: tuple[int, ...]


class RequestRule(Struct, frozen=True):
    """A constraint: devices differ in the attribute (`distinct`), or have a value of it in common."""

    attribute: str
    distinct: bool


class ClaimAsk(Struct, frozen=True, eq=False):
    requests: tuple[tuple[Alternative, ...], ...]
    rules: tuple[RequestRule, ...]


class Ask(Struct, frozen=True, eq=False):
    """`missing` is a message about a class that does not exist. `broken` is a message about an expression that does not
    compile and so keeps every alternative of a request from any device. "" for none. `joined`: devices that claims can
    join with others are left to these."""

    number: int
    claims: tuple[ClaimAsk, ...]
    missing: str
    broken: str
    joined: bool


class RequestOption(Struct, frozen=True, eq=False):
    """An alternative on a kind of node. `matching` are the devices that it selects, `fitting` those of them without a
    taint that it does not tolerate. `draws[bit]` is what it consumes of each one's capacities. `count` is the number
    that it needs. `faults[bit]` is the error that ends the allocation once this device is tried."""

    request: DeviceRequest
    every: bool
    count: int
    matching: int
    fitting: int
    draws: dict[int, Draw]
    faults: dict[int, RequestFault]
    rules: tuple[int, ...]


class DeviceView(Struct, frozen=True, eq=False):
    """An ask on a kind of node. `fault` ends it whatever is free. `plain` are the devices of which any `count` will do,
    where no other rule applies, else 0. `ordered` is true where upstream's order of trying decides whether it fails."""

    kind: DeviceKind
    claims: tuple[tuple[tuple[RequestOption, ...], ...], ...]
    rules: tuple[tuple[RequestRule, ...], ...]
    fault: RequestFault | None
    plain: int
    count: int
    ordered: bool
    equivalence: tuple[int, ...]
    """By device: devices with equal numbers are equivalent for the ask; where one does not fit, no other does."""
    joins: tuple[Join, ...]
    """Those with devices of which the ask wants none, where claims of the cluster join devices."""


class Asks:
    """Asks by specs. `classes` are the device classes by name; call `forget` when one changes."""

    def __init__(self, kinds: Kinds, classes: Mapping[str, DeviceClass], compile: Compile) -> None:
        self._kinds = kinds
        self._classes = classes
        self._compile = compile
        self._tests: dict[str, Test] = {}
        self._asks: dict[tuple[bool, tuple[ClaimSpec, ...]], Ask] = {}
        self._views: dict[tuple[int, int], DeviceView] = {}
        self._version = 0
        self._made = 0
        self.joined = False
        """Whether claims of the cluster join devices by their root (`joins`); asks that were made otherwise differ."""
        self._characters = 0
        """The length of all expressions that are kept."""

    def forget(self) -> None:
        """Drop all that was derived from the classes, one of which changed."""
        self._asks.clear()
        self._views.clear()

    def of(self, specs: tuple[ClaimSpec, ...]) -> Ask:
        ask = self._asks.get((self.joined, specs))
        if ask is None:
            if len(self._asks) >= _REMEMBERED or self._characters > _MOST_CHARACTERS:
                self.forget()
                self._tests.clear()
                self._kinds.forget()
                self._characters = 0
            ask = self._asks[self.joined, specs] = self._new(specs)
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
        return Ask(self._made, claims, missing, _broken(claims), self.joined)

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
                test.results.clear()
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
        equivalence=_equivalence(ask, kind),
        joins=tuple(
            one for one in kind.joins if ask.joined and not any(option.fitting & one.others for option in options)
        ),
    )


def _equivalence(ask: Ask, kind: DeviceKind) -> tuple[int, ...]:
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
    """The result of an alternative on a profile; `draw` is None where it does not match. `text` and `rest` are the
    parts of an error: in a selector (`erred`), which is also tried on devices that are not for the node, or in the
    amounts."""

    draw: Draw | None = None
    tolerated: bool = False
    erred: bool = False
    text: str = ""
    rest: str = ""


def _judge(alternative: Alternative, profile: DeviceProfile) -> _Judgement:
    request = alternative.request
    for where, test in alternative.tests:
        result = test.of(profile)
        if isinstance(result, str):
            return _Judgement(erred=True, text=f"{where} on device ", rest=f": {result}")
        if not result:
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
    """The error that is found before any device is tried."""
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
    """The error of a request for all devices: it needs complete pools, and no error on any device."""
    for pool in kind.pools:
        state = "being updated" if pool.incomplete else "invalid" if pool.invalid else ""
        if state:
            text = f"request {option.request.name}: asks for all devices, but a resource pool of {pool.driver} is "
            return RequestFault(f"{text}currently {state}")
        for bit in range(pool.first, pool.end):
            if bit in option.faults:
                return option.faults[bit]
    return None
