# SPDX-License-Identifier: Apache-2.0
"""Random device selectors and devices: mostly such as compile, with names that are often there and sometimes not.

An expression grows from templates by kind. In a template `{int}` is an expression of the kind int, `{$URLS}` one of the
constants, `@int` a new variable of that kind, known from there on; `{T}` is a kind drawn for the whole template.
What is drawn has no more than one entry wherever a map is looked through, as upstream does so in an order of chance.
"""

import random
import re
from typing import Any

DRIVER = "gpu.example.com"
NAMES = ("name", "count", "flag", "version", "names", "counts", "versions", "flags", "missing")
CAPACITIES = ("memory", "cores", "missing")
CONSTANTS: dict[str, tuple[str, ...]] = {
    "DOMAINS": (DRIVER, DRIVER, DRIVER, "other.example.com", "absent.example.com"),
    "NAMES": NAMES,
    "CAPACITIES": CAPACITIES,
    "STRINGS": (
        "a", "", "NVIDIA H100", "nvidia-a100", "H100", "x-1.2.3", "10.0.0.1", "2001:db8::1", "\u00fcn\u00efcode \u00df",
        "b,c,,d", "1", "true", "550.54.15", "40Gi", "aaa", "http://a.example/p?q=1", "10.0.0.0/8",
    ),
    "PATTERNS": (
        "H[0-9]+", "^a", "a*", "(?i)nvidia", "[[:alpha:]]+$", r"\\d+", "(a|ab)(c|bcd)*", "b?", "x{1,2}", "(", "a**",
        r"\\b\\w+\\b", r"\\pL+", "[^a-c]+", "(?:a|b)+?c?", ".", "^$",
    ),
    "QUANTITIES": (
        "1", "0", "40Gi", "80Gi", "1.5", "100m", "1e3", "-1", "2Ki", "0.1", "1.0", "10E", "9223372036854775807",
        "1.5Gi", "x", "", "1n", "0.5Ki", "123456789012345678901",
    ),
    "VERSIONS": ("1.0.0", "550.54.15", "550.54.15-rc.1", "1.2.3+build", "1.2", "v1.2.3", "01.2.3", "", "2.0.0-a.b.10"),
    "DURATIONS": ("1s", "1h30m", "-2.5s", "1.5ms", "0", "1s", "1s", "x", "100000h"),
    "TIMES": ("2024-02-29T12:34:56Z", "1970-01-01T00:00:00Z", "2023-07-14T10:30:45.123+02:00", "9999-12-31T23:59:59Z"),
    "ADDRESSES": (
        "10.0.0.1", "::1", "2001:db8::1", "127.0.0.1", "169.254.1.1", "fe80::1", "224.0.0.1", "x", "::ffff:1.2.3.4",
        "255.255.255.255", "0.0.0.0",
    ),
    "NETWORKS": ("10.0.0.0/8", "10.1.2.3/16", "2001:db8::/32", "0.0.0.0/0", "x/8", "10.0.0.0/33"),
    "URLS": (
        "http://a.example/p?q=1&q=2", "https://a.example:443/x%20y", "/path", "a/b", "http://[::1]:80/",
        "mailto:a@b", "",
    ),
    "INTS": ("0", "1", "2", "-1", "3", "10", "9223372036854775807", "-9223372036854775808", "0x10"),
    "UINTS": ("0u", "1u", "2u", "18446744073709551615u"),
    "DOUBLES": ("0.0", "1.0", "1.5", "-2.25", "1e300", "3.0", "1e-7"),
    "BYTES": ('b"a"', 'b""', 'b"\\xff"', 'b"abc"'),
    "TYPES": (
        "int", "string", "type", "list", "map", "google.protobuf.Duration", "net.IP", "null_type", "optional_type",
    ),
    "ORDER": ("<", "<=", ">", ">="),
    "EQUALITY": ("==", "!="),
    # Optionals whose type is known: upstream's validator of literals dies of one that is not.
    "SOME": ("optional.none()", "optional.of(1)", "[1, 2][?0]", "[1, 2][?5]", "optional.of(1).or(optional.none())"),
}  # fmt: skip
SCALARS = ("bool", "int", "uint", "double", "string", "bytes", "duration", "timestamp")
ATTRIBUTE = 'device.attributes["{$DOMAINS}"]'
LEAVES: dict[str, str] = {
    "bool": """true | false | device.allowMultipleAllocations | has(device.attributes.x)
        has(device.attributes["{$DOMAINS}"].{$NAMES}) | has(device.capacity["{$DOMAINS}"].{$CAPACITIES})""",
    "int": "{$INTS}",
    "uint": "{$UINTS}",
    "double": "{$DOUBLES}",
    "string": '"{$STRINGS}" | "{$STRINGS}" | device.driver',
    "bytes": "{$BYTES}",
    "duration": 'duration("1s") | duration("1h30m") | duration("-2.5s") | duration("0")',
    "timestamp": 'timestamp("{$TIMES}")',
    "quantity": 'quantity("{$QUANTITIES}") | device.capacity["{$DOMAINS}"].{$CAPACITIES}',
    "semver": 'semver("{$VERSIONS}")',
    "ints": "[1, 2, 3] | [] | [3, 1, 2, 1] | [5]",
    "doubles": "[1.0, 2.5] | [0.5] | [2.0, 1.0]",
    "strings": '["a", "b"] | [] | ["b", "a", "a"] | ["NVIDIA H100"]',
    "map": '{"a": 1} | {} | {"b": 2} | {"a": 1, "b": 2}',
    "optional": "optional.none() | optional.of(1) | optional.of(5)",
    "optints": "optional.none() | optional.of([1, 2])",
    "dyn": f'{ATTRIBUTE}.{{$NAMES}} | {ATTRIBUTE}["{{$NAMES}}"] | dyn(1) | dyn("a") | dyn(true) | dyn([1])',
    "null": "null",
    "ip": 'ip("{$ADDRESSES}")',
    "cidr": 'cidr("{$NETWORKS}")',
    "url": 'url("{$URLS}")',
    "type": "{$TYPES}",
    "format": "format.dns1123Label() | format.uuid() | format.labelValue() | format.qualifiedName()",
}
KINDS = tuple(LEAVES)
FORMS: dict[str, str] = {
    "bool": f"""({{bool}} && {{bool}}) | ({{bool}} || {{bool}}) | ({{bool}} && {{bool}} && {{bool}}) | !{{bool}}
        ({{bool}} || {{bool}} || {{bool}}) | ({{bool}} ? {{bool}} : {{bool}}) | cel.bind(@ANY, {{ANY}}, {{bool}})
        ({{T}} {{$ORDER}} {{T}}) | ({{T}} {{$ORDER}} {{T}}) | ({{T}} {{$EQUALITY}} {{T}})
        ({{NUMBER}} {{$ORDER}} {{OTHER}}) | ({{ANY}} {{$EQUALITY}} {{ANY}}) | ({{dyn}} {{$EQUALITY}} {{T}})
        ({{T}} {{$EQUALITY}} {{dyn}}) | ({{dyn}} {{$ORDER}} {{T}}) | ({{dyn}} {{$ORDER}} {{dyn}})
        ({{T}} in [{{T}}]) | ({{T}} in [{{T}}, {{T}}]) | ({{T}} in []) | ({{dyn}} in [{{T}}, {{T}}])
        ({{dyn}} in [{{$INTS}}, {{$INTS}}]) | ({{dyn}} in ["{{$STRINGS}}", "{{$STRINGS}}"]) | ({{dyn}} in [1.0, 2.5])
        ({{string}} in ["{{$STRINGS}}", "{{$STRINGS}}"]) | ({{int}} in [{{$INTS}}]) | ({{uint}} in [1u, 2u])
        ({{string}} in {{map}}) | ({{dyn}} in {{dyn}}) | ({{string}} in device.attributes)
        {ATTRIBUTE}.{{$NAMES}} | has({ATTRIBUTE}.{{$NAMES}}) | has(device.capacity["{{$DOMAINS}}"].{{$CAPACITIES}})
        has({{map}}.a) | has(({{bool}} ? {{map}} : {{map}}).a) | has({ATTRIBUTE}.?{{$NAMES}}.x)
        {{quantity}}.isGreaterThan({{quantity}}) | {{dyn}}.isLessThan({{quantity}}) | {{quantity}}.isInteger()
        {{semver}}.isLessThan({{semver}}) | {{dyn}}.isGreaterThan({{semver}})
        {{quantity}}.compareTo({{quantity}}) >= 0
        {{dyn}}.compareTo({{semver}}) < 1 | {{string}}.startsWith({{string}}) | {{dyn}}.endsWith({{string}})
        {{string}}.contains({{string}}) | {{dyn}}.contains({{dyn}}) | {{string}}.matches("{{$PATTERNS}}")
        {{dyn}}.matches("{{$PATTERNS}}") | matches({{string}}, {{string}}) | {{dyn}}.includes({{dyn}})
        {{strings}}.includes({{string}}) | {{ints}}.isSorted() | {{strings}}.isSorted() | {{dyn}}.isSorted()
        sets.contains({{ints}}, {{ints}}) | sets.intersects({{strings}}, {{dyn}}) | sets.equivalent({{ints}}, {{ints}})
        {{optional}}.hasValue() | isQuantity({{string}}) | isSemver({{string}}) | isSemver({{string}}, {{bool}})
        isIP({{string}}) | isCIDR({{string}}) | isURL({{string}}) | ip.isCanonical({{string}}) | {{ip}}.isLoopback()
        {{ip}}.isGlobalUnicast() | {{ip}}.isUnspecified() | {{ip}}.isLinkLocalUnicast() | {{ip}}.isLinkLocalMulticast()
        {{cidr}}.containsIP({{ip}}) | {{cidr}}.containsIP({{string}}) | {{cidr}}.containsCIDR({{cidr}})
        {{cidr}}.containsCIDR({{string}}) | {{format}}.validate({{string}}).hasValue() | bool({{string}})
        bool({{dyn}})
        {{ints}}.all(@int, {{bool}}) | {{strings}}.exists(@string, {{bool}}) | {{ints}}.exists_one(@int, {{bool}})
        {{dyn}}.exists(@dyn, {{bool}}) | {{dyn}}.all(@dyn, {{bool}}) | {{ints}}.all(@int, @int, {{bool}})
        {{strings}}.exists(@int, @string, {{bool}}) | {{ints}}.existsOne(@int, @int, {{bool}})
        {{"k": 3}}.exists(@string, {{bool}}) | {{"k": 3}}.all(@string, @int, {{bool}})""",
    "int": """({int} + {int}) | ({int} - {int}) | ({int} * {int}) | ({int} / {int}) | ({int} % {int}) | -({int})
        size({string}) | {ints}.size() | {map}.size() | size({dyn}) | int({double}) | int({uint}) | int({string})
        int({dyn}) | int({timestamp}) | int({duration}) | ({bool} ? {int} : {int}) | cel.bind(@ANY, {ANY}, {int})
        {ints}.sum() | {ints}.min() | {ints}.max() | {dyn}.max() | {ints}.indexOf({int}) | {ints}.lastIndexOf({int})
        {string}.indexOf({string}) | {string}.lastIndexOf({string}) | {string}.indexOf({string}, {int})
        {dyn}.indexOf({string}) | {string}.lastIndexOf({string}, {int}) | {optional}.orValue({int}) | {optional}.value()
        {ints}[{int}] | {map}[{string}] | {map}.a | {quantity}.asInteger() | {quantity}.compareTo({quantity})
        sign({quantity}) | {semver}.major() | {dyn}.minor() | {semver}.patch() | {semver}.compareTo({semver})
        {ip}.family() | {cidr}.prefixLength() | {duration}.getHours() | {timestamp}.getFullYear()
        {timestamp}.getDayOfYear() | {timestamp}.getHours("+02:30") | {timestamp}.getDayOfWeek()
        {timestamp}.getMilliseconds() | {timestamp}.getDate() | {timestamp}.getMonth() | {duration}.getSeconds()
        {dyn}.getMinutes() | ({dyn} + {int}) | ({dyn} * {dyn}) | ({strings}.size() + {int})""",
    "uint": """({uint} + {uint}) | ({uint} - {uint}) | ({uint} * {uint}) | ({uint} / {uint}) | ({uint} % {uint})
        uint({int}) | uint({double}) | uint({string}) | uint({dyn})""",
    "double": """({double} + {double}) | ({double} / {double}) | ({double} * {double}) | -({double}) | double({int})
        double({string}) | double({uint}) | {quantity}.asApproximateFloat() | {doubles}.sum() | {doubles}.min()
        double({dyn})""",
    "string": """({string} + {string}) | string({int}) | string({double}) | string({bool}) | string({duration})
        string({timestamp}) | string({bytes}) | string({ip}) | string({cidr}) | string({dyn}) | {string}.lowerAscii()
        {dyn}.upperAscii() | {string}.trim() | {string}.charAt({int}) | {string}.substring({int})
        {string}.substring({int}, {int}) | {string}.replace({string}, {string})
        {string}.replace({string}, {string}, {int}) | {strings}.join({string}) | {strings}.join()
        strings.quote({string}) | ({bool} ? {string} : {string}) | cel.bind(@ANY, {ANY}, {string})
        {string}.find("{$PATTERNS}") | {dyn}.find({string}) | {strings}[{int}] | {url}.getHost() | {url}.getPort()
        {url}.getHostname() | {url}.getScheme() | {url}.getEscapedPath() | "%s %d".format([{dyn}, {dyn}])
        "%s:%s".format([{string}, {T}]) | "%x%%".format([{int}]) | "%.2f".format([{double}]) | "%d".format([{T}])
        "%b %o".format([{int}, {int}]) | "%s".format([{ints}]) | "%s".format([{map}]) | "%s".format([{T}])
        {strings}.max() | "%e %f".format([{double}, {double}]) | {url}.getQuery().q.join()""",
    "bytes": "bytes({string}) | ({bytes} + {bytes})",
    "duration": """duration({string}) | ({duration} + {duration}) | ({timestamp} - {timestamp})
        ({duration} - {duration}) | duration("{$DURATIONS}")""",
    "timestamp": """timestamp({int}) | ({timestamp} + {duration}) | ({timestamp} - {duration})
        ({duration} + {timestamp}) | timestamp({string})""",
    "quantity": """quantity({string}) | {quantity}.add({quantity}) | {quantity}.sub({int}) | {quantity}.add({int})
        {quantity}.sub({quantity}) | ({bool} ? {quantity} : {quantity}) | cel.bind(@ANY, {ANY}, {quantity})
        device.capacity["{$DOMAINS}"].{$CAPACITIES}""",
    "semver": """semver({string}) | semver({string}, {bool}) | ({bool} ? {semver} : {semver})
        semver("{$VERSIONS}", true)""",
    "ints": """[{int}] | [{int}, {int}] | [{int}, {int}, {int}] | ({ints} + {ints}) | {ints}.map(@int, {int})
        {ints}.filter(@int, {bool}) | {strings}.map(@string, {int}) | {ints}.sort() | {ints}.distinct()
        {ints}.reverse() | {ints}.slice({int}, {int}) | lists.range({int}) | lists.range(4)
        {ints}.sortBy(@int, {int}) | [{ints}, {ints}].flatten() | {ints}.transformList(@int, @int, {int})
        ({bool} ? {ints} : {ints}) | cel.bind(@ANY, {ANY}, {ints}) | [{int}, ?{$SOME}] | {ints}.map(@int, {bool}, {int})
        {dyn}.filter(@dyn, {bool}) | {optints}.orValue({ints})""",
    "doubles": "[{double}] | [{double}, {double}] | {doubles}.sort() | ({doubles} + {doubles})",
    "strings": """[{string}] | [{string}, {string}] | ({strings} + {strings}) | {string}.split({string})
        {string}.split({string}, {int}) | {strings}.sort() | {strings}.distinct() | {strings}.map(@string, {string})
        {strings}.filter(@string, {bool}) | {string}.findAll("{$PATTERNS}") | {string}.findAll("{$PATTERNS}", {int})
        {strings}.sortBy(@string, {int}) | {strings}.slice(0, {int})""",
    "map": """{"a": {int}} | {{string}: {int}} | {"a": {int}, "b": {int}} | {?"a": {$SOME}} | ({bool} ? {map} : {map})
        {"k": 3}.transformMap(@string, @int, {int}) | {ints}.transformMapEntry(@int, @int, {"x": {int}})""",
    "optional": f"""optional.of({{int}}) | optional.ofNonZeroValue({{int}}) | {{ints}}[?{{int}}] | {{map}}[?{{string}}]
        {{map}}.?a | {{optional}}.or({{optional}}) | {{optional}}.optMap(@int, {{int}}) | {{ints}}.first()
        {{ints}}.last()
        {{optional}}.optFlatMap(@int, {{optional}}) | {ATTRIBUTE}.?{{$NAMES}} | {ATTRIBUTE}[?"{{$NAMES}}"]
        device.attributes[?"{{$DOMAINS}}"].?{{$NAMES}} | device.?attributes["{{$DOMAINS}}"].{{$NAMES}}
        {{optints}}[{{int}}] | ({{bool}} ? {{optional}} : {{optional}})""",
    "optints": "optional.of({ints}) | {optints}.or({optints})",
    "dyn": f"""{ATTRIBUTE}.{{$NAMES}} | {ATTRIBUTE}.{{$NAMES}} | {ATTRIBUTE}["{{$NAMES}}"] | {ATTRIBUTE}[{{string}}]
        dyn({{T}}) | dyn({{quantity}}) | {ATTRIBUTE}.?{{$NAMES}}.orValue({{dyn}}) | {{dyn}}[{{int}}] | {{dyn}}.x
        ({{bool}} ? {{dyn}} : {{dyn}}) | cel.bind(@ANY, {{ANY}}, {{dyn}}) | dyn({{ints}}) | dyn({{strings}})
        dyn({{map}})
        ({{dyn}} + {{dyn}}) | {{dyn}}.value() | {{dyn}}.map(@dyn, {{dyn}}) | [{{dyn}}]
        {{dyn}}.filter(@dyn, {{bool}})""",
    "ip": "ip({string}) | {cidr}.ip()",
    "cidr": "cidr({string}) | {cidr}.masked()",
    "url": "url({string})",
    "type": "type({T}) | type({dyn}) | type({ints}) | type({map})",
}  # fmt: skip


def _templates(table: dict[str, str]) -> dict[str, list[str]]:
    return {kind: [one.strip() for one in re.split(r" \| |\n", text)] for kind, text in table.items()}


_LEAVES = _templates(LEAVES)
_FORMS = {**_LEAVES, **_templates(FORMS)}
_DRAWN = {"T": SCALARS, "ANY": KINDS, "NUMBER": ("int", "uint", "double"), "OTHER": ("int", "uint", "double")}
_PART = re.compile(r"\{(\$?)(" + "|".join((*KINDS, *CONSTANTS, *_DRAWN)) + r")\}|@(\w+)")
_NOT_DYN = ("type", "optional", "optints", "format")


class Expressions:
    """A stream of them from one seed."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._variables: list[tuple[str, str]] = []
        self._names = 0

    def one(self) -> str:
        self._variables.clear()
        self._names = 0
        kind = "bool" if self._dice.random() < 0.97 else self._dice.choice(KINDS)
        return self._of(kind, self._dice.choice((1, 2, 2, 3, 3, 4)))

    def _of(self, kind: str, depth: int) -> str:
        """An expression of the kind; rarely of another one, which may not compile."""
        if self._dice.random() < 0.012:
            kind = self._dice.choice(KINDS)
        elif depth > 0 and kind not in _NOT_DYN and self._dice.random() < 0.12:
            kind = "dyn"
        known = [name for name, of in self._variables if of == kind]
        if known and self._dice.random() < 0.5:
            return self._dice.choice(known)
        ends = depth <= 0 or self._dice.random() < 0.1
        return self._grown(self._dice.choice((_LEAVES if ends else _FORMS)[kind]), depth - 1)

    def _grown(self, template: str, depth: int) -> str:
        drawn = {name: self._dice.choice(among) for name, among in _DRAWN.items()}
        outside = len(self._variables)

        def grown(part: re.Match[str]) -> str:
            if part[3]:
                self._names += 1
                self._variables.append((f"v{self._names}", drawn.get(part[3], part[3])))
                return f"v{self._names}"
            if part[1]:
                return self._dice.choice(CONSTANTS[part[2]])
            return self._of(drawn.get(part[2], part[2]), depth)

        text = _PART.sub(grown, template)
        del self._variables[outside:]
        return text


def device(seed: int) -> dict[str, Any]:
    """A device as a ResourceSlice has it."""
    dice = random.Random(f"device {seed}")

    def attribute(name: str) -> dict[str, Any]:
        strings = [dice.choice(CONSTANTS["STRINGS"]) for _ in range(3)]
        ints = [dice.choice((0, 1, 2, 3, 10)) for _ in range(3)]
        versions = ["1.0.0", "550.54.15", "550.54.15-rc.1", "2.0.0"]
        values: dict[str, dict[str, Any]] = {
            "name": {"string": strings[0]}, "count": {"int": ints[0]}, "flag": {"bool": dice.random() < 0.5},
            "version": {"version": dice.choice(versions)}, "names": {"strings": strings[: dice.randint(1, 3)]},
            "counts": {"ints": ints[: dice.randint(1, 3)]}, "flags": {"bools": [True, dice.random() < 0.5]},
            "versions": {"versions": dice.sample(versions, 2)},
        }  # fmt: skip
        return values[name if dice.random() < 0.9 else dice.choice(list(values))]

    there = NAMES[:-1]
    attributes = {name: attribute(name) for name in there if dice.random() < 0.8}
    attributes |= {f"other.example.com/{name}": attribute(name) for name in there if dice.random() < 0.2}
    values = ("80Gi", "40Gi", "1", "0", "1500m", "10k")
    capacity = {name: {"value": dice.choice(values)} for name in CAPACITIES[:-1] if dice.random() < 0.8}
    found: dict[str, Any] = {"name": f"d{seed}", "attributes": attributes, "capacity": capacity}
    if dice.random() < 0.5:
        found["allowMultipleAllocations"] = dice.random() < 0.5
    return found
