# SPDX-License-Identifier: Apache-2.0
"""The time of a step of an engine, by a roofline: what bounds it is the tensor rate, the memory, the links or the host.

Rules
- A step computes one token of each running sequence, and prompt tokens up to the engine's budget (chunked prefill:
  Agrawal et al. 2024, Sarathi-Serve). In a steady state, a step has as many prompt tokens as keep the number of running
  sequences: input / output for each sequence.
- A matrix takes the longer of its multiplication and of the reading of its weights, each at a fraction of the GPU's
  rate; both are near each other at the bend, so that the times are added as in a norm. Of the experts, a step
  reads those that some token goes to.
- Tensor parallelism exchanges activations twice in each layer (Shoeybi et al. 2019), expert parallelism twice in
  each layer with experts; a pipeline has as many batches under way as stages.

The fractions are in `engines`. They are fitted to published measurements; benchmarks/serve_plan.py has fit and check.
"""

from __future__ import annotations

from msgspec import Struct

from dovetail.advice.serve.rates import GpuRates
from dovetail.advice.serve.work import LayerWork, ModelWork

_NORM = 2.0
_EXCHANGED_BYTES = 2
"""Bytes of a number of the activations that are exchanged."""


class InstanceLayout(Struct, frozen=True, order=True):
    """The division of one instance of an engine: tensor-parallel ranks, pipeline stages, groups of ranks that each
    have sequences of their own (data-parallel attention), and the ranks among which experts are divided; with `ep` 1
    each expert is divided by columns."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.dp

    def __str__(self) -> str:
        parts = (("TP", self.tp), ("PP", self.pp), ("DP", self.dp), ("EP", self.ep))
        return " ".join(f"{name}{number}" for name, number in parts if number > 1) or "1 GPU"


class Efficiency(Struct, frozen=True):
    """What an engine reaches of the rates: fractions of the tensor rate in 16 bits, with FP8 and with FP4; the further
    fractions where weights are unpacked, for experts, and of groups of ranks that wait for the slowest; fractions of
    the memory bandwidth for weights and for the KV cache, and of the link. Times in microseconds that come on top: of
    each exchange between GPUs, each layer, each step, and each sequence in a step."""

    compute_16: float
    compute_8: float
    compute_4: float
    unpacked: float
    experts: float
    balance: float
    weights: float
    cache: float
    link: float
    exchange_us: float
    layer_us: float
    step_us: float
    sequence_us: float

    def compute(self, rates: GpuRates) -> float:
        """The fraction of the 16-bit rate, times the multiple of the format."""
        fraction = {1: self.compute_16, 2: self.compute_8}.get(rates.multiple, self.compute_4)
        return rates.multiple * fraction * (self.unpacked if rates.unpacked else 1.0)


class StepBatch(Struct, frozen=True):
    """What one step of an instance computes: a token each of `sequences` with a mean `context`, and `prompt` tokens
    of prompts, each of which sees `seen` tokens in the mean."""

    sequences: float
    context: float
    prompt: float = 0.0
    seen: float = 0.0


class StepModel(Struct, frozen=True):
    """A model in a layout on GPUs of one kind with one engine."""

    work: ModelWork
    layout: InstanceLayout
    rates: GpuRates
    efficiency: Efficiency

    def seconds(self, batch: StepBatch) -> float:
        """The time from one token of a sequence to the next."""
        return self.stage_s(batch) * self.layout.pp

    def stage_s(self, batch: StepBatch) -> float:
        """The time of one stage of the pipeline for its part of the batch."""
        layout, e = self.layout, self.efficiency
        parts = layout.dp * layout.pp
        sequences, prompt = batch.sequences / parts, batch.prompt / parts
        total = sum(layer.count * self._layer(layer, batch, sequences, prompt) for layer in self.work.layers)
        head_ops = 2 * self.work.head * sequences / layout.tp
        head = self._matrix(head_ops, 2 * self.work.head / layout.tp, e.compute_16)
        if self.work.adapters:
            # Of the adapters, those are read that some sequence uses.
            read = 2 * self.work.adapter * min(self.work.adapters, max(1.0, sequences))
            head += self._matrix(2 * self.work.adapter * (sequences + prompt), read, e.compute_16)
        waits = e.balance if layout.dp > 1 else 1.0
        return (total + head) / layout.pp / waits + (e.step_us + e.sequence_us * batch.sequences / layout.dp) / 1e6

    def _layer(self, layer: LayerWork, batch: StepBatch, sequences: float, prompt: float) -> float:
        tp, ranks = self.layout.tp, self.layout.tp * self.layout.dp
        tokens = sequences + prompt
        e, reached = self.efficiency, self.efficiency.compute(self.rates)
        spent = self._matrix(2 * layer.dense * tokens / tp, layer.dense_bytes / tp, reached)
        if layer.experts:
            together = tokens * self.layout.dp
            share = layer.per_token / layer.experts
            read = layer.expert_bytes * (1 - (1 - share) ** together)
            spent += self._matrix(2 * layer.expert * share * together / ranks, read / ranks, reached * e.experts)
        dense_rate = self.rates.tensor * e.compute_16
        cached = sequences * layer.seen(batch.context)
        read_s = cached * layer.cached_bytes / min(tp, layer.cache_parts) / (self.rates.memory * e.cache)
        spent += max(read_s, cached * layer.decode_ops / tp / dense_rate)
        spent += prompt * layer.seen(batch.seen) * layer.prefill_ops / tp / dense_rate
        return spent + self._exchange_s(layer, tokens) + e.layer_us / 1e6

    def _matrix(self, operations: float, read: float, reached: float) -> float:
        """The time of a product; `reached` is the fraction of the 16-bit rate."""
        compute_s = operations / (self.rates.tensor * reached)
        read_s = read / (self.rates.memory * self.efficiency.weights)
        return float((compute_s**_NORM + read_s**_NORM) ** (1 / _NORM))

    def _exchange_s(self, layer: LayerWork, tokens: float) -> float:
        tp, dp, e = self.layout.tp, self.layout.dp, self.efficiency
        activations = tokens * self.work.hidden * _EXCHANGED_BYTES
        sent = exchanges = 0.0
        if tp > 1:
            sent, exchanges = 2 * activations * 2 * (tp - 1) / tp, 2
        if dp > 1 and layer.experts:
            sent += 2 * activations * min(layer.per_token, dp) * (dp - 1) / dp
            exchanges += 2
        return sent / (self.rates.link * e.link) + exchanges * e.exchange_us / 1e6


class Lengths(Struct, frozen=True):
    """Mean numbers of tokens of a request: of the prompt, of those in it that are computed and not found in the cache
    of prefixes, and of the output."""

    input: float
    computed: float
    output: float

    @property
    def context(self) -> float:
        """Tokens that a running sequence has in the mean."""
        return self.input + self.output / 2


def steady(lengths: Lengths, sequences: float, budget: int) -> StepBatch:
    """The batch of a step in a steady state with so many running sequences, at most as many as the budget of tokens of
    a step feeds."""
    prompt = lengths.computed / lengths.output
    fed = min(sequences, budget / (1 + prompt))
    seen = lengths.input - lengths.computed / 2
    return StepBatch(fed, lengths.context, fed * prompt, seen)


def tokens_per_s(model: StepModel, lengths: Lengths, sequences: float, budget: int) -> float:
    """Output tokens per second of an instance with so many sequences at a time."""
    batch = steady(lengths, sequences, budget * model.layout.dp)
    return batch.sequences / model.seconds(batch)


def prefill_s(model: StepModel, lengths: Lengths, running: float, budget: int) -> float:
    """The time from the start of a prompt until its first token, while `running` sequences are decoded."""
    chunk = max(1.0, budget - running / model.layout.dp)
    steps = max(1.0, lengths.computed / chunk)
    prompt = min(lengths.computed, chunk)
    seen = lengths.input - lengths.computed / 2
    # The prompt is computed by one group of ranks, whatever the others do.
    batch = StepBatch(running, lengths.context, prompt * model.layout.dp * model.layout.pp, seen)
    return (steps - 1 + model.layout.pp) * model.stage_s(batch)
