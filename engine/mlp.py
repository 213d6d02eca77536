"""The MLP of a layer: one gated, or a mixture of gated experts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear

from engine.attention import DecoderKernels
from engine.decoder_shape import DecoderShape, ExpertShape
from engine.decoder_weights import ExpertWeights, GatedWeights
from engine.kernel_sets import is_for_cpus
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
    """A token's best experts, each weighted by the router, and the shared ones."""

    def __init__(
        self, shape: DecoderShape, experts: ExpertShape, weights: ExpertWeights, kernels: DecoderKernels
    ) -> None:
        self._shape = experts
        self._router = weights.router
        experts_of = LoopedExperts if is_for_cpus(kernels) else GroupedExperts
        self._experts = experts_of(shape, weights, kernels)
        self._shared = None if weights.shared is None else GatedMLP(shape, weights.shared, kernels)

    def __call__(self, x: Tensor) -> Tensor:
        """[num_tokens, hidden] -> [num_tokens, hidden]"""
        share, chosen = linear(x, self._router).float().softmax(dim=-1).topk(self._shape.num_active, dim=-1)
        if self._shape.renormalised:
            share = share / share.sum(dim=-1, keepdim=True)
        mixed = self._experts(x, chosen, (share * self._shape.scale).to(x.dtype))
        return mixed if self._shared is None else mixed.add_(self._shared(x))


class GroupedExperts:
    """All experts at once: the pairs of a token and an expert, sorted by expert, are the rows of two products.

    There are always as many pairs, whoever chose whom, so nothing has to be asked of the device: a step does not wait,
    and can be recorded.
    """

    def __init__(self, shape: DecoderShape, weights: ExpertWeights, kernels: DecoderKernels) -> None:
        self._gate = _gate(shape.activation, kernels)
        self._product = kernels.expert_product
        self._gate_up, self._down = weights.gate_up, weights.down
        self._bounds = torch.arange(len(weights.gate_up) + 1, device=weights.gate_up.device)

    def __call__(self, x: Tensor, chosen: Tensor, share: Tensor) -> Tensor:
        """chosen: int64 [num_tokens, num_active]; share: likewise, of x's dtype. Returns the weighted sums, as x."""
        by_expert, pairs = chosen.flatten().sort(stable=True)
        starts = torch.searchsorted(by_expert, self._bounds)
        gated = self._gate(self._product(x, self._gate_up, pairs // chosen.shape[1], starts))
        fed = self._product(gated, self._down, torch.arange(len(pairs), device=x.device), starts)
        by_token = torch.empty_like(fed).index_copy_(0, pairs, fed).unflatten(0, chosen.shape)
        return torch.einsum("tkh,tk->th", by_token, share)


class LoopedExperts:
    """One after another, those that any token chose. For a CPU: there is nothing to wait for, the weights of the others
    are not read, and each lies in the layout that it is read best in.
    """

    def __init__(self, shape: DecoderShape, weights: ExpertWeights, kernels: DecoderKernels) -> None:
        self._experts = [GatedMLP(shape, expert, kernels) for expert in weights.experts]

    def __call__(self, x: Tensor, chosen: Tensor, share: Tensor) -> Tensor:
        """As `GroupedExperts`."""
        mixed = torch.zeros_like(x)
        for number in chosen.unique().tolist():
            rows, ranks = (chosen == number).nonzero(as_tuple=True)
            mixed.index_add_(0, rows, self._experts[number](x[rows]) * share[rows, ranks, None])
        return mixed
