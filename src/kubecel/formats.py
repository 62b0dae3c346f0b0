# SPDX-License-Identifier: Apache-2.0
"""The named formats of Kubernetes strings, for `format.dns1123Label().validate(text)`.

Source: k8s.io/apiserver/pkg/cel/library/format.go (1.37), k8s.io/apimachinery/pkg/util/validation,
k8s.io/kube-openapi/pkg/validation/strfmt.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable

from msgspec import Struct

from kubecel import network, times, types
from kubecel.values import NO_OVERLOAD, NONE, Err, Optional, Value, register

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_NAME = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"


class Format(Struct, frozen=True):
    """`problems` returns the errors of a text, none if it is valid. `regex_size` is the pattern size in upstream's cost
    model."""

    name: str
    problems: Callable[[str], list[Value]]
    regex_size: int

    def equals(self, other: Value) -> bool | Err:
        return self.name == other.name if type(other) is Format else NO_OVERLOAD


register(Format, types.FORMAT)


def _pattern(pattern: str, longest: int, what: str) -> Callable[[str], list[Value]]:
    compiled = re.compile(pattern)

    def problems(text: str) -> list[Value]:
        found: list[Value] = []
        if len(text.encode()) > longest:
            found.append(f"must be no more than {longest} characters")
        if not compiled.fullmatch(text):
            found.append(f"a {what} must match '{pattern}'")
        return found

    return problems


def _prefix(problems: Callable[[str], list[Value]]) -> Callable[[str], list[Value]]:
    """The variant for name prefixes, which may end in a dash."""
    return lambda text: problems(f"{text[:-1]}a" if len(text) > 1 and text[-1] == "-" else text)


_LABEL_PROBLEMS = _pattern(_LABEL, 63, "lowercase RFC 1123 label")
_SUBDOMAIN_PROBLEMS = _pattern(_SUBDOMAIN, 253, "lowercase RFC 1123 subdomain")
_1035_PROBLEMS = _pattern("[a-z]([-a-z0-9]*[a-z0-9])?", 63, "DNS-1035 label")
_NAME_PROBLEMS = _pattern(_NAME, 63, "name part")


def _qualified_name(text: str) -> list[Value]:
    parts = text.split("/")
    if len(parts) > 2:
        return ["a qualified name must have at most one '/'"]
    found: list[Value] = [] if len(parts) == 1 else _SUBDOMAIN_PROBLEMS(parts[0])
    return found + _NAME_PROBLEMS(parts[-1])


def _uri(text: str) -> list[Value]:
    url = network.url_of(text)
    return [url.text] if isinstance(url, Err) else []


def _matching(holds: Callable[[str], bool], problem: str) -> Callable[[str], list[Value]]:
    return lambda text: [] if holds(text) else [problem]


def _is_base64(text: str) -> bool:
    try:
        b64decode(text, validate=True)
    except ValueError:
        return False
    return bool(text)


_DATE = re.compile(r"(?a)(\d{4})-(\d\d)-(\d\d)")
_DATETIME = re.compile(r"(?ai)(\d{4}-\d\d-\d\d)t(\d\d):(\d\d):(\d\d)(?:.\d+)?(?:z|[+-]\d\d:\d\d)")


def _is_date(text: str) -> bool:
    match = _DATE.fullmatch(text)
    return match is not None and times.is_date(*(int(part) for part in match.groups()))


def _is_datetime(text: str) -> bool:
    match = _DATETIME.fullmatch(text)
    return match is not None and _is_date(match[1]) and int(match[2]) < 24 and max(int(match[3]), int(match[4])) < 60


_UUID = re.compile(r"(?ai)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
FORMATS: dict[str, Format] = {
    "dns1123Label": Format("DNS1123Label", _LABEL_PROBLEMS, 30),
    "dns1123Subdomain": Format("DNS1123Subdomain", _SUBDOMAIN_PROBLEMS, 60),
    "dns1035Label": Format("DNS1035Label", _1035_PROBLEMS, 30),
    "qualifiedName": Format("QualifiedName", _qualified_name, 60),
    "dns1123LabelPrefix": Format("DNS1123LabelPrefix", _prefix(_LABEL_PROBLEMS), 30),
    "dns1123SubdomainPrefix": Format("DNS1123SubdomainPrefix", _prefix(_SUBDOMAIN_PROBLEMS), 60),
    "dns1035LabelPrefix": Format("DNS1035LabelPrefix", _prefix(_1035_PROBLEMS), 30),
    "labelValue": Format("LabelValue", _pattern(f"({_NAME})?", 63, "label value"), 40),
    "uri": Format("URI", _uri, 1103),
    "uuid": Format("uuid", _matching(lambda text: bool(_UUID.fullmatch(text)), "does not match the UUID format"), 70),
    "byte": Format("byte", _matching(_is_base64, "invalid base64"), 84),
    "date": Format("date", _matching(_is_date, "invalid date"), 71),
    "datetime": Format("datetime", _matching(_is_datetime, "invalid datetime"), 71),
}


def _named(name: str) -> Optional:
    return Optional(FORMATS[name]) if name in FORMATS else NONE


def _validate(format_: Format, text: str) -> Optional:
    problems = format_.problems(text)
    return Optional(problems) if problems else NONE


OVERLOADS: dict[str, Callable[..., Value]] = {"format-named": _named, "format-validate": _validate}
OVERLOADS.update((f"format.{name}", lambda format_=format_: format_) for name, format_ in FORMATS.items())
