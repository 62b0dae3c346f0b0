# SPDX-License-Identifier: Apache-2.0
"""The declared functions: a table of overloads in the notation of upstream's documentation.

Each line is `overload_id name(types) -> type`, or `overload_id type.name(types) -> type` for a member function. Capital
letters are type parameters. The functions of the authorizer are declared although a selector has no authorizer, because
a call on a value of unknown type compiles.
Source: cel-go v0.29.2, common/stdlib/standard.go, cel/library.go, ext/; k8s.io/apiserver/pkg/cel/environment/base.go
and library/ (1.37).
"""

from __future__ import annotations

import re

from msgspec import Struct

from kubecel import formats, types
from kubecel.types import Type

_OPERATORS = """
conditional _?_:_(bool, A, A) -> A
logical_and _&&_(bool, bool) -> bool
logical_or _||_(bool, bool) -> bool
logical_not !_(bool) -> bool
not_strictly_false @not_strictly_false(bool) -> bool
equals _==_(A, A) -> bool
not_equals _!=_(A, A) -> bool
add_bytes _+_(bytes, bytes) -> bytes
add_double _+_(double, double) -> double
add_duration_duration _+_(duration, duration) -> duration
add_duration_timestamp _+_(duration, timestamp) -> timestamp
add_timestamp_duration _+_(timestamp, duration) -> timestamp
add_int64 _+_(int, int) -> int
add_list _+_(list(A), list(A)) -> list(A)
add_string _+_(string, string) -> string
add_uint64 _+_(uint, uint) -> uint
divide_double _/_(double, double) -> double
divide_int64 _/_(int, int) -> int
divide_uint64 _/_(uint, uint) -> uint
modulo_int64 _%_(int, int) -> int
modulo_uint64 _%_(uint, uint) -> uint
multiply_double _*_(double, double) -> double
multiply_int64 _*_(int, int) -> int
multiply_uint64 _*_(uint, uint) -> uint
negate_double -_(double) -> double
negate_int64 -_(int) -> int
subtract_double _-_(double, double) -> double
subtract_duration_duration _-_(duration, duration) -> duration
subtract_int64 _-_(int, int) -> int
subtract_timestamp_duration _-_(timestamp, duration) -> timestamp
subtract_timestamp_timestamp _-_(timestamp, timestamp) -> duration
subtract_uint64 _-_(uint, uint) -> uint
index_list _[_](list(A), int) -> A
index_map _[_](map(A, B), A) -> B
optional_list_index_int _[_](optional(list(V)), int) -> optional(V)
optional_map_index_value _[_](optional(map(K, V)), K) -> optional(V)
list_optindex_optional_int _[?_](list(V), int) -> optional(V)
optional_list_optindex_optional_int _[?_](optional(list(V)), int) -> optional(V)
map_optindex_optional_value _[?_](map(K, V), K) -> optional(V)
optional_map_optindex_optional_value _[?_](optional(map(K, V)), K) -> optional(V)
in_list @in(A, list(A)) -> bool
in_map @in(A, map(A, B)) -> bool
"""
_CONVERSIONS = """
size_bytes size(bytes) -> int
bytes_size bytes.size() -> int
size_list size(list(A)) -> int
list_size list(A).size() -> int
size_map size(map(A, B)) -> int
map_size map(A, B).size() -> int
size_string size(string) -> int
string_size string.size() -> int
type type(A) -> type(A)
bool_to_bool bool(bool) -> bool
string_to_bool bool(string) -> bool
bytes_to_bytes bytes(bytes) -> bytes
string_to_bytes bytes(string) -> bytes
double_to_double double(double) -> double
int64_to_double double(int) -> double
string_to_double double(string) -> double
uint64_to_double double(uint) -> double
duration_to_duration duration(duration) -> duration
string_to_duration duration(string) -> duration
to_dyn dyn(A) -> dyn
int64_to_int64 int(int) -> int
double_to_int64 int(double) -> int
duration_to_int64 int(duration) -> int
string_to_int64 int(string) -> int
timestamp_to_int64 int(timestamp) -> int
uint64_to_int64 int(uint) -> int
string_to_string string(string) -> string
bool_to_string string(bool) -> string
bytes_to_string string(bytes) -> string
double_to_string string(double) -> string
duration_to_string string(duration) -> string
int64_to_string string(int) -> string
timestamp_to_string string(timestamp) -> string
uint64_to_string string(uint) -> string
ip_to_string string(IP) -> string
cidr_to_string string(CIDR) -> string
timestamp_to_timestamp timestamp(timestamp) -> timestamp
int64_to_timestamp timestamp(int) -> timestamp
string_to_timestamp timestamp(string) -> timestamp
uint64_to_uint64 uint(uint) -> uint
double_to_uint64 uint(double) -> uint
int64_to_uint64 uint(int) -> uint
string_to_uint64 uint(string) -> uint
"""
_TEXT = """
contains_string string.contains(string) -> bool
ends_with_string string.endsWith(string) -> bool
starts_with_string string.startsWith(string) -> bool
matches matches(string, string) -> bool
matches_string string.matches(string) -> bool
string_char_at_int string.charAt(int) -> string
string_index_of_string string.indexOf(string) -> int
string_index_of_string_int string.indexOf(string, int) -> int
string_last_index_of_string string.lastIndexOf(string) -> int
string_last_index_of_string_int string.lastIndexOf(string, int) -> int
string_lower_ascii string.lowerAscii() -> string
string_upper_ascii string.upperAscii() -> string
string_replace_string_string string.replace(string, string) -> string
string_replace_string_string_int string.replace(string, string, int) -> string
string_split_string string.split(string) -> list(string)
string_split_string_int string.split(string, int) -> list(string)
string_substring_int string.substring(int) -> string
string_substring_int_int string.substring(int, int) -> string
string_trim string.trim() -> string
list_join list(string).join() -> string
list_join_string list(string).join(string) -> string
string_format string.format(list(dyn)) -> string
strings_quote strings.quote(string) -> string
string_find_string string.find(string) -> string
string_find_all_string string.findAll(string) -> list(string)
string_find_all_string_int string.findAll(string, int) -> list(string)
"""
_LISTS = """
list_a_index_of_int list(A).indexOf(A) -> int
list_a_last_index_of_int list(A).lastIndexOf(A) -> int
list_includes_dyn_dyn dyn.includes(dyn) -> bool
list_slice list(T).slice(int, int) -> list(T)
list_flatten list(list(T)).flatten() -> list(T)
list_flatten_int list(dyn).flatten(int) -> list(dyn)
lists_range lists.range(int) -> list(int)
list_reverse list(T).reverse() -> list(T)
list_distinct list(T).distinct() -> list(T)
list_sets_contains_list sets.contains(list(T), list(T)) -> bool
list_sets_equivalent_list sets.equivalent(list(T), list(T)) -> bool
list_sets_intersects_list sets.intersects(list(T), list(T)) -> bool
@mapInsert_map_key_value cel.@mapInsert(map(K, V), K, V) -> map(K, V)
@mapInsert_map_map cel.@mapInsert(map(K, V), map(K, V)) -> map(K, V)
optional_of optional.of(V) -> optional(V)
optional_ofNonZeroValue optional.ofNonZeroValue(V) -> optional(V)
optional_none optional.none() -> optional(V)
optional_value optional(V).value() -> V
optional_hasValue optional(V).hasValue() -> bool
optional_or_optional optional(V).or(optional(V)) -> optional(V)
optional_orValue_value optional(V).orValue(V) -> V
list_first list(V).first() -> optional(V)
list_last list(V).last() -> optional(V)
optional_unwrap optional.unwrap(list(optional(V))) -> list(V)
optional_unwrapOpt list(optional(V)).unwrapOpt() -> list(V)
"""
_KUBERNETES = """
string_to_quantity quantity(string) -> Quantity
is_quantity_string isQuantity(string) -> bool
quantity_sign sign(Quantity) -> int
quantity_is_greater_than Quantity.isGreaterThan(Quantity) -> bool
quantity_is_less_than Quantity.isLessThan(Quantity) -> bool
quantity_compare_to Quantity.compareTo(Quantity) -> int
quantity_get_float Quantity.asApproximateFloat() -> double
quantity_get_int Quantity.asInteger() -> int
quantity_is_integer Quantity.isInteger() -> bool
quantity_add Quantity.add(Quantity) -> Quantity
quantity_add_int Quantity.add(int) -> Quantity
quantity_sub Quantity.sub(Quantity) -> Quantity
quantity_sub_int Quantity.sub(int) -> Quantity
string_to_semver semver(string) -> Semver
string_bool_to_semver semver(string, bool) -> Semver
is_semver_string isSemver(string) -> bool
is_semver_string_bool isSemver(string, bool) -> bool
semver_is_greater_than Semver.isGreaterThan(Semver) -> bool
semver_is_less_than Semver.isLessThan(Semver) -> bool
semver_compare_to Semver.compareTo(Semver) -> int
semver_major Semver.major() -> int
semver_minor Semver.minor() -> int
semver_patch Semver.patch() -> int
string_to_ip ip(string) -> IP
cidr_ip CIDR.ip() -> IP
ip_family IP.family() -> int
ip_is_canonical ip.isCanonical(string) -> bool
ip_is_unspecified IP.isUnspecified() -> bool
ip_is_loopback IP.isLoopback() -> bool
ip_is_link_local_multicast IP.isLinkLocalMulticast() -> bool
ip_is_link_local_unicast IP.isLinkLocalUnicast() -> bool
ip_is_global_unicast IP.isGlobalUnicast() -> bool
is_ip isIP(string) -> bool
string_to_cidr cidr(string) -> CIDR
cidr_contains_ip_string CIDR.containsIP(string) -> bool
cidr_contains_ip_ip CIDR.containsIP(IP) -> bool
cidr_contains_cidr_string CIDR.containsCIDR(string) -> bool
cidr_contains_cidr CIDR.containsCIDR(CIDR) -> bool
cidr_prefix_length CIDR.prefixLength() -> int
cidr_masked CIDR.masked() -> CIDR
is_cidr isCIDR(string) -> bool
string_to_url url(string) -> URL
url_get_scheme URL.getScheme() -> string
url_get_host URL.getHost() -> string
url_get_hostname URL.getHostname() -> string
url_get_port URL.getPort() -> string
url_get_escaped_path URL.getEscapedPath() -> string
url_get_query URL.getQuery() -> map(string, list(string))
is_url_string isURL(string) -> bool
format-named format.named(string) -> optional(Format)
format-validate Format.validate(string) -> optional(list(string))
authorizer_path Authorizer.path(string) -> PathCheck
authorizer_group Authorizer.group(string) -> GroupCheck
authorizer_serviceaccount Authorizer.serviceAccount(string, string) -> Authorizer
groupcheck_resource GroupCheck.resource(string) -> ResourceCheck
resourcecheck_subresource ResourceCheck.subresource(string) -> ResourceCheck
resourcecheck_namespace ResourceCheck.namespace(string) -> ResourceCheck
resourcecheck_name ResourceCheck.name(string) -> ResourceCheck
pathcheck_check PathCheck.check(string) -> Decision
resourcecheck_check ResourceCheck.check(string) -> Decision
decision_errored Decision.errored() -> bool
decision_error Decision.error() -> string
decision_allowed Decision.allowed() -> bool
decision_reason Decision.reason() -> string
authorizer_fieldselector ResourceCheck.fieldSelector(string) -> ResourceCheck
authorizer_labelselector ResourceCheck.labelSelector(string) -> ResourceCheck
"""
_NAMES: dict[str, Type] = {
    "bool": types.BOOL, "bytes": types.BYTES, "double": types.DOUBLE, "int": types.INT, "string": types.STRING,
    "uint": types.UINT, "dyn": types.DYN, "timestamp": types.TIMESTAMP, "duration": types.DURATION,
    "Quantity": types.QUANTITY, "Semver": types.SEMVER, "URL": types.URL, "Format": types.FORMAT, "IP": types.IP,
    "CIDR": types.CIDR,
    **{name: Type(f"kubernetes.authorization.{name}")
       for name in ("Authorizer", "PathCheck", "GroupCheck", "ResourceCheck", "Decision")},
}  # fmt: skip
_CONSTRUCTED = {"optional": types.OPTIONAL}
ORDERED = ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes")
"""The ordered types: their lists can be sorted."""
_ACCESSORS = ("FullYear", "Month", "DayOfYear", "DayOfMonth", "Date", "DayOfWeek", "Hours", "Minutes", "Seconds",
              "Milliseconds")  # fmt: skip


class Overload(Struct, frozen=True):
    """A declared overload. If `member`, `args` begins with the type of the target."""

    id: str
    function: str
    member: bool
    args: tuple[Type, ...]
    result: Type


def _relations() -> str:
    """The overloads of `<`, `<=`, `>` and `>=`: numbers compare across types, other values within one type.

    The order matters: an unbound type parameter is bound by the first overload.
    """
    words = {"<": "less", "<=": "less_equals", ">": "greater", ">=": "greater_equals"}
    pairs = [
        ("bool", "bool"), ("int", "int"), ("int", "double"), ("int", "uint"), ("uint", "uint"), ("uint", "double"),
        ("uint", "int"), ("double", "double"), ("double", "int"), ("double", "uint"), ("string", "string"),
        ("bytes", "bytes"), ("timestamp", "timestamp"), ("duration", "duration"),
    ]  # fmt: skip
    return "\n".join(
        f"{word}_{one}_{other} _{sign}_({one}, {other}) -> bool" for sign, word in words.items() for one, other in pairs
    )


def _of_each_type() -> str:
    lines = []
    for kind in ORDERED:
        lines += [
            f"list_{kind}_is_sorted_bool list({kind}).isSorted() -> bool",
            f"list_{kind}_max_{kind} list({kind}).max() -> {kind}",
            f"list_{kind}_min_{kind} list({kind}).min() -> {kind}",
            f"list_{kind}_sort list({kind}).sort() -> list({kind})",
            f"list_{kind}_sortByAssociatedKeys list(T).@sortByAssociatedKeys(list({kind})) -> list(T)",
        ]
    lines += [f"list_{kind}_sum_{kind} list({kind}).sum() -> {kind}" for kind in ("int", "uint", "double", "duration")]
    for part in _ACCESSORS:
        lines += [
            f"timestamp_to_{part} timestamp.get{part}() -> int",
            f"timestamp_to_{part}_with_tz timestamp.get{part}(string) -> int",
        ]
        if part in ("Hours", "Minutes", "Seconds", "Milliseconds"):
            lines.append(f"duration_to_{part} duration.get{part}() -> int")
    lines += [f"format.{name} format.{name}() -> Format" for name in formats.FORMATS]
    return "\n".join(lines)


def _type(text: str) -> Type:
    """Parse a type such as `map(string, A)`."""
    name, opened, inside = text.partition("(")
    if opened:
        return Type(_CONSTRUCTED.get(name, name), tuple(map(_type, _split(inside[:-1]))))
    return _NAMES[text] if text in _NAMES else Type(f"{types.PARAMETER}{text}")


def _split(text: str) -> list[str]:
    """Split at the commas outside parentheses."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and not depth:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()] if text.strip() else []


_LINE = re.compile(r"(\S+) (.+)\(([^()]*(?:\([^()]*(?:\([^()]*\))?[^()]*\)[^()]*)*)\) -> (.+)")
_TARGET = re.compile(r"(.+)\.([^.]+)")


def _overload(line: str) -> Overload:
    match = _LINE.fullmatch(line)
    assert match, line
    args = tuple(map(_type, _split(match[3])))
    called = _TARGET.fullmatch(match[2])
    if called and ("(" in called[1] or called[1] in _NAMES):
        return Overload(match[1], called[2], True, (_type(called[1]), *args), _type(match[4]))
    return Overload(match[1], match[2], False, args, _type(match[4]))


def _functions() -> dict[str, tuple[Overload, ...]]:
    found: dict[str, list[Overload]] = {}
    tables = (_OPERATORS, _relations(), _CONVERSIONS, _TEXT, _LISTS, _KUBERNETES, _of_each_type())
    for line in "\n".join(tables).splitlines():
        if line:
            overload = _overload(line)
            found.setdefault(overload.function, []).append(overload)
    return {name: tuple(overloads) for name, overloads in found.items()}


FUNCTIONS = _functions()
DEVICE = Type("kubernetes.DRADevice")
FIELDS: dict[str, Type] = {
    "driver": types.STRING,
    "allowMultipleAllocations": types.BOOL,
    "attributes": types.map_of(types.STRING, types.map_of(types.STRING, types.DYN)),
    "capacity": types.map_of(types.STRING, types.map_of(types.STRING, types.QUANTITY)),
}
"""The fields of `device`, the one variable of a selector."""
TYPE_NAMES: dict[str, Type] = {
    type_.name: type_
    for type_ in (
        types.BOOL, types.BYTES, types.DOUBLE, types.INT, types.STRING, types.UINT, types.NULL, types.TIMESTAMP,
        types.DURATION, types.IP, types.CIDR, types.TYPE, types.list_of(types.DYN), types.map_of(types.DYN, types.DYN),
        types.optional_of(types.DYN),
    )
}  # fmt: skip
"""Identifiers that denote a type."""
