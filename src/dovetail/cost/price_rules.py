# SPDX-License-Identifier: Apache-2.0
"""Which price a GPU has at a time, and what of it counts on the GPU.

Rules
- Files of prices are asked in their order, then the list prices that come with Dovetail, then prices that name neither
  a node, an instance type nor a GPU model. The first that fits counts.
- Within a file a price that names the node comes first, then one that names the instance type, then the GPU model;
  among equals one that names zone, region, and whether it is spot. Of prices that differ only in the time from which
  they are valid, the latest that is valid counts.
- The price of a node is divided over its GPUs in whole millionths: what is left over goes to those with the lowest
  index. So the prices of the GPUs add up to that of the node.
- All of a node's price counts on its GPUs. With `GpuPart` only the part of its GPUs does, in the ratio of prices of
  CPUs, memory and GPUs, as OpenCost divides nodes; the part is rounded down.
- A GPU for which nothing fits has no price, and never one of 0.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from dovetail.advice import gpus
from dovetail.cost.rounding import nearest
from dovetail.history.records import GpuSpan

ONE = 10**6
"""Millionths."""
_SUFFIX = re.compile(r"-(SHARED|MIG-[0-9a-z.+]+)$", re.IGNORECASE)
_GIB_MIB = 1024


class CurrencyError(Exception):
    """Prices of one answer are in currencies that cannot be added."""


class PriceRule(Struct, frozen=True):
    """The price of an hour in millionths of `currency`: of a node, or with `per_gpu` of each of its GPUs. Fields of a
    GPU that are "" or None here fit all. `anywhere`: it also fits GPUs whose region is not known. `plus_gpus`: the
    price per GPU of its file is added. `cpu_milli` and `memory_mib` are those of the node, 0 if not known."""

    micro: int
    currency: str
    date: str
    source: str
    per_gpu: bool = False
    node: str = ""
    instance_type: str = ""
    model: str = ""
    region: str = ""
    zone: str = ""
    spot: bool | None = None
    from_ms: int = 0
    anywhere: bool = False
    plus_gpus: bool = False
    cpu_milli: int = 0
    memory_mib: int = 0

    @property
    def names_gpus(self) -> bool:
        return bool(self.node or self.instance_type or self.model)

    @property
    def rank(self) -> tuple[bool, ...]:
        named = (self.node, self.instance_type, self.model, self.zone, self.region)
        return (*(not name for name in named), self.spot is None)

    def fits(self, span: GpuSpan, at_ms: int) -> bool:
        return (
            self.from_ms <= at_ms
            and self.node in ("", span.node)
            and self.instance_type in ("", span.instance_type)
            and self.zone in ("", span.zone)
            and (self.region in ("", span.region) or (self.anywhere and not span.region))
            and self.spot in (None, span.spot)
            and (not self.model or self.model == model_of(span.model))
        )


class GpuPart(Struct, frozen=True):
    """Prices in millionths per hour of a CPU, a GiB of memory and a GPU: only their ratio counts."""

    cpu: int
    memory: int
    gpu: int

    def of(self, rule: PriceRule, count: int) -> int | None:
        """What the GPUs of a node are of its price; None if its CPUs and memory are not known."""
        if not (rule.cpu_milli and rule.memory_mib):
            return None
        gpu = self.gpu * count * 1000 * _GIB_MIB
        other = self.cpu * rule.cpu_milli * _GIB_MIB + self.memory * rule.memory_mib * 1000
        return rule.micro * gpu // (gpu + other) if gpu + other else 0


class Priced(Struct, frozen=True):
    """The price of a GPU for an hour, in millionths of the currency of the answer."""

    micro: int
    rule: PriceRule


class Unpriced(Struct, frozen=True):
    """Why a GPU has no price, and what to do about it."""

    why: str
    fix: str


class PriceBook:
    """The prices of an answer: `files` in their order, then `listed`. Prices in other currencies are converted with
    `rates`, in millionths of `currency` for one of theirs; `currency` "" is that of the prices, which must be one."""

    def __init__(
        self,
        files: Sequence[Sequence[PriceRule]],
        listed: Sequence[PriceRule] = (),
        gpu_part: GpuPart | None = None,
        currency: str = "",
        rates: Mapping[str, int] | None = None,
    ) -> None:
        tiers = [[rule for rule in file if rule.names_gpus] for file in (*files, listed)]
        tiers += [[rule for rule in file if not rule.names_gpus] for file in files]
        self._tiers = [sorted(tier, key=lambda rule: (rule.rank, -rule.from_ms)) for tier in tiers if tier]
        self._per_gpu = {id(rule): file for file in files for rule in file if rule.plus_gpus}
        self._gpu_part = gpu_part
        self.currency, self._rates = currency, rates or {}
        self._listed_types = {rule.instance_type: rule for rule in listed}
        every = [rule for tier in self._tiers for rule in tier]
        self.names_nodes = any(rule.node for rule in every)
        """Whether a price depends on the name of a node."""
        self._changes = sorted({rule.from_ms for rule in every if rule.from_ms})
        self._found: dict[tuple[object, ...], Priced | Unpriced] = {}

    def changes(self) -> Sequence[int]:
        """The times at which prices begin to be valid."""
        return self._changes

    def rate_of(self, currency: str) -> int:
        """What one of this currency is in that of the answer, in millionths."""
        return ONE if currency == self.currency else self._rates[currency]

    def price(self, span: GpuSpan, at_ms: int) -> Priced | Unpriced:
        """The price of this GPU. Raises CurrencyError."""
        kind = span.model, span.instance_type, span.region, span.zone, span.spot, span.gpus, span.index
        # A GPU of which no kind is known is named by its node where it has no price.
        node = span.node if self.names_nodes or not (span.model or span.instance_type) else ""
        key = *kind, node, bisect_right(self._changes, at_ms)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._price(span, at_ms)
        return found

    def _price(self, span: GpuSpan, at_ms: int) -> Priced | Unpriced:
        """Raises CurrencyError."""
        rule = next((rule for tier in self._tiers for rule in tier if rule.fits(span, at_ms)), None)
        if rule is None:
            return self._missing(span, at_ms)
        if rule.per_gpu:
            return Priced(self._converted(rule, rule.micro), rule)
        count = max(1, span.gpus)
        node = rule.micro
        if rule.plus_gpus:
            each = (one for one in self._per_gpu[id(rule)] if one.per_gpu and one.fits(span, at_ms))
            node += count * next((one.micro for one in each), 0)
        if self._gpu_part is not None:
            part = self._gpu_part.of(rule, count)
            if part is None:
                what = rule.instance_type or rule.node or rule.model
                fix = "name vcpus and memory_gib in the price file, or count the whole node with --gpu-part whole"
                return Unpriced(f"the CPUs and the memory of a node of {what or 'this price'} are not known", fix)
            node = part
        whole, rest = divmod(self._converted(rule, node), count)
        return Priced(whole + (span.index < rest), rule)

    def _converted(self, rule: PriceRule, micro: int) -> int:
        """Raises CurrencyError."""
        self.currency = self.currency or rule.currency
        if rule.currency == self.currency:
            return micro
        if rule.currency not in self._rates:
            one = rule.currency
            raise CurrencyError(
                f"prices are in {self.currency} and in {one} ({rule.source}), and cannot be added: name the rate, "
                f"as in --currency {self.currency} --rate {one}=1.08 if that is what 1 {one} is"
            )
        return nearest(micro * self._rates[rule.currency], ONE)

    def _missing(self, span: GpuSpan, at_ms: int) -> Unpriced:
        later = [r for tier in self._tiers for r in tier if not r.fits(span, at_ms) and r.fits(span, r.from_ms)]
        if later:
            return Unpriced(
                f"its first price ({later[-1].source}) is valid only later",
                "add a row that is valid from an earlier day",
            )
        kind = span.instance_type or span.model
        known = self._listed_types.get(span.instance_type)
        # Not the name of this node: many nodes have one sentence.
        fix = f"add a row for {kind} to a file of --prices" if kind else "name each node in a file of --prices"
        if known is not None and known.region != span.region and span.region:
            return Unpriced(f"the list price of {kind} is that of {known.region}, not of {span.region}", fix)
        if known is not None and span.spot:
            return Unpriced(f"no spot price of {kind} is known", fix)
        return Unpriced("no price fits its node, instance type or model", fix)


@lru_cache(1024)
def model_of(name: str) -> str:
    """The model by which prices are found: Dovetail's name, or the name itself, in small letters."""
    plain = _SUFFIX.sub("", name)
    known = gpus.named(plain) if plain else None
    return (known.model if known is not None else "-".join(plain.split())).casefold()


def rule_of(rules: Iterable[PriceRule], rule: PriceRule) -> PriceRule | None:
    """The rule among these that fits the same GPUs from the same time on."""
    return next((one for one in rules if _key(one) == _key(rule)), None)


def _key(rule: PriceRule) -> tuple[object, ...]:
    return (*rule.rank, rule.node, rule.instance_type, rule.model, rule.zone, rule.region, rule.spot, rule.from_ms)
