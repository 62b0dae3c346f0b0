# SPDX-License-Identifier: Apache-2.0
"""The memory of each GPU that trains a decoder.

Sources
- Model states and their sharding: Rajbhandari et al. (2020), ZeRO, sections 3.1 and 5; for FSDP Zhao et al. (2023).
- Offloading: Ren et al. (2021), ZeRO-Offload.
- Activations: Korthikanti et al. (2022), sections 4 and 5, tensor by tensor, so that gated MLPs, grouped queries,
  experts and latent attention are counted exactly. For a GPT with dropout the result equals Korthikanti's formula to
  the byte; a test checks that.
- FlashAttention: Dao et al. (2022). LoRA: Hu et al. (2021). QLoRA: Dettmers et al. (2023).
- Buffers: the defaults of DeepSpeed (its configuration reference) and of PyTorch's FSDP.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from dovetail.advice.architecture import Architecture, Layer, distinct
from dovetail.advice.formats import FORMATS, OPTIMIZERS, PRECISIONS
from dovetail.advice.layout import ModelParts, ParallelLayout, PlanError, Stage, check, nccl_bytes, stages

METHODS = ("full", "lora", "qlora")
CHECKPOINTING = ("none", "selective", "full")
TARGETS = {"attention": ("attention",), "all": ("attention", "mlp", "expert")}
"""The kinds of matrices that get an adapter."""
_REDUCE_BUCKET, _GATHER_BUCKET, _PREFETCH_BUCKET, _MOST_LIVE = 500_000_000, 500_000_000, 50_000_000, 1_000_000_000
"""DeepSpeed's reduce_bucket_size, allgather_bucket_size, stage3_prefetch_bucket_size and stage3_max_live_parameters."""


class Training(Struct, frozen=True, tag_field="workload", tag="training"):
    """`batch` sequences of `context` tokens are the micro-batch of a replica. `zero` is the ZeRO stage; `fsdp` replaces
    it. `flash`: attention scores are not kept. `offload`: the host keeps and updates the optimizer states
    (ZeRO-Offload)."""

    context: int
    batch: int = 1
    method: str = "full"
    precision: str = "mixed"
    optimizer: str = "adamw"
    zero: int = 0
    fsdp: bool = False
    checkpointing: str = "none"
    flash: bool = True
    sequence_parallel: bool = False
    lora_rank: int = 16
    lora_targets: str = "all"
    offload: bool = False

    @property
    def sharded(self) -> bool:
        """Whether more replicas reduce the memory of each."""
        return self.fsdp or self.zero > 0

    @property
    def level(self) -> int:
        """The states that are sharded among replicas: 1 or more optimizer states, 2 or more gradients, 3 weights."""
        return 3 if self.fsdp else self.zero

    def sized(self, context: int, batch: int) -> Training:
        return replace(self, context=context, batch=batch)

    def check(self, model: Architecture, layout: ParallelLayout) -> None:
        """Raises PlanError."""
        check(model, layout)
        if self.fsdp and self.zero:
            raise PlanError(f"FSDP divides what ZeRO-3 divides: take one of --fsdp and --zero {self.zero}")
        if self.offload and not self.zero:
            raise PlanError("DeepSpeed offloads the optimizer of ZeRO: --offload needs --zero 1, 2 or 3")
        if self.offload and self.optimizer == "adamw-8bit":
            raise PlanError("the 8-bit optimizer works on GPUs alone: leave out --offload, or take --optimizer adamw")
        if self.zero > 1 and layout.pp > 1:
            raise PlanError(
                f"ZeRO-{self.zero} divides gradients, which pipeline stages add up over micro-batches: "
                "take --zero 1 with --pp, or no --pp"
            )
        if self.sequence_parallel and layout.tp == 1:
            raise PlanError("sequence parallelism divides among tensor-parallel ranks: it needs --tp 2 or more")
        if self.method == "qlora" and layout.tp * layout.pp > 1:
            raise PlanError(
                "4-bit weights of QLoRA (bitsandbytes) cannot be divided by --tp or --pp: "
                "take --fsdp or --zero, which divide among replicas"
            )
        if self.method == "qlora" and self.precision == "fp32":
            raise PlanError("QLoRA computes in 16 bits: leave out --precision fp32")
        if self.flash and self.checkpointing == "selective":
            raise PlanError(
                "selective checkpointing drops the scores of attention, which FlashAttention never keeps: "
                "leave it out, take full, or --attention eager"
            )
        if model.position_rows and self.context > model.max_context:
            raise PlanError(f"{self.context} tokens: the model has learned positions for {model.max_context}")

    def parts(self, model: Architecture, layout: ParallelLayout, runtime: int) -> ModelParts:
        """The parts of the memory of the fullest GPU."""
        return max((self._stage(stage, layout, runtime) for stage in stages(model, layout.pp)), key=lambda p: p.total)

    def trainable(self, model: Architecture) -> int:
        """The number of trained parameters."""
        if self.method == "full":
            return model.parameters
        return self._all_adapters(model.layers, 1)

    def _stage(self, stage: Stage, layout: ParallelLayout, runtime: int) -> ModelParts:
        own, dp = stage.parameters(layout.tp), layout.dp
        precision, optimizer = PRECISIONS[self.precision], OPTIMIZERS[self.optimizer]
        trained = own if self.method == "full" else self._all_adapters(stage.layers, layout.tp)
        states = optimizer.bytes_of(trained, precision)
        weights, gradients = trained * precision.weights, trained * precision.gradients
        if self.fsdp and precision.master:
            # FSDP shards the master weights; the 16-bit weights are made when they are gathered.
            weights, gradients, states = trained * 4, trained * 4, states - trained * precision.master
        if self.method != "full":
            weights += self._frozen(stage, layout.tp)
        if self.offload:
            # From ZeRO-2 on, gradients leave as they are reduced (Ren et al. 2021, section 4).
            states, gradients = 0, gradients if self.level < 2 else 0
        return ModelParts(
            weights=-(-weights // dp) if self.level > 2 else weights,
            gradients=-(-gradients // dp) if self.level > 1 else gradients,
            optimizer=-(-states // dp) if self.level > 0 else states,
            activations=self._activations(stage, layout),
            collectives=nccl_bytes(layout) + self._buffers(stage, layout, own, trained),
            runtime=runtime,
        )

    def _all_adapters(self, layers: tuple[Layer, ...], tp: int) -> int:
        return sum(number * self._adapters(layer, tp) for layer, number in distinct(layers))

    def _adapters(self, layer: Layer, tp: int) -> int:
        """Parameters of LoRA: two matrices per target; the first is replicated on all tensor-parallel ranks."""
        kinds = TARGETS[self.lora_targets]
        targets = (m for m in layer.matrices if m.kind in kinds)
        return sum(m.copies * self.lora_rank * (m.inputs + -(-m.outputs // min(tp, m.parts))) for m in targets)

    def _frozen(self, stage: Stage, tp: int) -> int:
        """Bytes of the frozen weights of LoRA or QLoRA."""
        if self.method == "lora":
            return stage.parameters(tp) * PRECISIONS[self.precision].activations
        kinds = FORMATS["nf4"].kinds
        quantised = sum(
            sum(m.on_rank(tp) for m in layer.matrices if m.kind in kinds) * number
            for layer, number in distinct(stage.layers)
        )
        return FORMATS["nf4"].bytes_of(quantised) + (stage.parameters(tp) - quantised) * 2

    def _buffers(self, stage: Stage, layout: ParallelLayout, own: int, trained: int) -> int:
        """Bytes of the buffers to gather and reduce; for QLoRA also the largest matrix, dequantised to 16 bits."""
        width = PRECISIONS[self.precision].activations
        largest = max(m.inputs * m.outputs for layer, _ in distinct(stage.layers) for m in layer.matrices)
        unpacked = largest * 2 if self.method == "qlora" else 0
        if layout.dp == 1:
            return unpacked
        reduced = min(_REDUCE_BUCKET, trained) * width
        if self.fsdp:
            # The root's parameters stay gathered, and those of the current and the next layer.
            layer = max(layer.on_rank(layout.tp) for layer, _ in distinct(stage.layers))
            root = stage.rest(layout.tp)
            return unpacked + (root + 2 * layer + min(trained, max(root, layer))) * width
        if self.zero == 3:
            gathered = min(own, _MOST_LIVE) + min(own, _PREFETCH_BUCKET)
            return unpacked + gathered * width + reduced
        return unpacked + reduced + (min(_GATHER_BUCKET, trained) * width if self.zero else 0)

    def _activations(self, stage: Stage, layout: ParallelLayout) -> int:
        """Bytes of activations. In the 1F1B schedule a stage keeps one micro-batch for itself and for each stage after
        it."""
        model, tokens = stage.model, self.context * self.batch
        kept = working = 0
        for layer, number in distinct(stage.layers):
            full = self.layer_bytes(model, layer, layout.tp)
            if self.checkpointing == "full":
                share = layout.tp if self.sequence_parallel else 1
                kept += number * -(-tokens * model.hidden * PRECISIONS[self.precision].activations // share)
                working = max(working, full)
            else:
                kept += number * full
        return kept * (stage.of - stage.index) + working + (self._head_bytes(model, layout) if stage.last else 0)

    def layer_bytes(self, model: Architecture, layer: Layer, tp: int) -> int:
        """Bytes that the forward pass of a layer keeps for the backward pass, on one tensor-parallel rank."""
        width = PRECISIONS[self.precision].activations
        whole, split = _kept(layer, width, dropout=model.dropout)
        a = layer.attention
        if not self.flash and self.checkpointing == "none":
            seen = min(self.context, a.window or self.context)
            split += a.heads * seen * (2 * width + 1 if model.dropout else width)
        elif self.flash:
            split += a.heads * 4
        tokens = self.context * self.batch
        return tokens * (-(-whole // tp) if self.sequence_parallel else whole) + -(-tokens * split // tp)

    def _head_bytes(self, model: Architecture, layout: ParallelLayout) -> int:
        """Bytes of the inputs of the last norm and the head, and of the logits and their gradient in 32 bits."""
        tokens = self.context * self.batch
        inputs = 2 * model.hidden * PRECISIONS[self.precision].activations
        return tokens * inputs + tokens * -(-model.vocab * 8 // layout.tp)


def _kept(layer: Layer, width: int, *, dropout: bool) -> tuple[int, int]:
    """Bytes per token: those that each tensor-parallel rank holds in full (inputs of norms, attention and MLP, masks),
    and those that the ranks divide. Numbers have `width` bytes, masks one."""
    a, mlp, hidden = layer.attention, layer.mlp, layer.hidden
    # With parallel attention and MLP, one norm feeds both.
    whole = (layer.norms + min(layer.norms, 2)) * hidden * width + 2 * hidden * dropout
    whole += 2 * (a.q_rank + a.kv_rank + a.rope_dim) * width
    split = (a.heads * a.qk_dim + a.kv_heads * (a.qk_dim + a.v_dim) + a.heads * a.v_dim) * width
    # Gated: the gate before and after its activation, the other input, their product. Otherwise before and after.
    inside = (4 if mlp.gated else 2) * width
    split += mlp.width * inside + mlp.per_token * mlp.expert_width * inside
    # Each expert of a token keeps its input and its output; the router keeps its scores in 32 bits.
    whole += mlp.per_token * 2 * hidden * width + mlp.experts * 8
    return whole, split
