"""The MLP of a layer: one gated, or a mixture of gated experts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear

from engine.attention import DecoderKernels
from engine.decoder_shape import DecoderShape, ExpertShape
from engine.decoder_weights import ExpertWeights, GatedWeights
from engine.projection import projection

Gate = Callable[[Tensor], Tensor]
"""[num_tokens, 2 width], gate first -> [num_tokens, width]."""


def _geglu(gate_up: Tensor) -> Tensor:
    """gelu(gate) * up, by the approximation with tanh."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gelu(gate, approximate="tanh").mul_(up)


def _gate(activation: str, kernels: DecoderKernels) -> Gate:
    gates: dict[str, Gate] = {"silu": kernels.swiglu, "gelu_tanh": _geglu}
    return gates[activation]


class GatedMLP:
    """down(activation(gate x) * up x): [num_tokens, hidden] -> [num_tokens, hidden]."""

    def __init__(self, shape: DecoderShape, weights: GatedWeights, kernels: DecoderKernels) -> None:
        self._gate = _gate(shape.activation, kernels)
        self._gate_up = projection(weights.gate_up)
        self._down = projection(weights.down)

    def __call__(self, x: Tensor) -> Tensor:
        return self._down(self._gate(self._gate_up(x)))


class Mixture:
    """A token's best experts, each weighted by the router; a loop over the experts that any token chose."""

    def __init__(
        self, shape: DecoderShape, experts: ExpertShape, weights: ExpertWeights, kernels: DecoderKernels
    ) -> None:
        self._shape = experts
        self._router = weights.router
        self._experts = [GatedMLP(shape, expert, kernels) for expert in weights.experts]
        self._shared = None if weights.shared is None else GatedMLP(shape, weights.shared, kernels)

    def __call__(self, x: Tensor) -> Tensor:
        """[num_tokens, hidden] -> [num_tokens, hidden]"""
        share, chosen = linear(x, self._router).float().softmax(dim=-1).topk(self._shape.num_active, dim=-1)
        if self._shape.renormalised:
            share = share / share.sum(dim=-1, keepdim=True)
        share = (share * self._shape.scale).to(x.dtype)
        mixed = torch.zeros_like(x) if self._shared is None else self._shared(x)
        for number in chosen.unique().tolist():
            rows, ranks = (chosen == number).nonzero(as_tuple=True)
            mixed.index_add_(0, rows, self._experts[number](x[rows]) * share[rows, ranks, None])
        return mixed
