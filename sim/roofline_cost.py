"""The data-sheet model: each class of operators takes the longer of its arithmetic and its memory traffic."""

from __future__ import annotations

from core.errors import InputError
from core.hardware import Hardware
from core.model_shape import ModelShape
from core.units import PS_PER_S, to_ps
from sim.cost_model import CostModel, StepWork


class RooflineCost(CostModel):
    """max(FLOP / (peak x MFU), bytes / (bandwidth x MBU)) by class: linear, prefill and decode attention; + overhead.

    Formulas: 2 FLOP per active non-embedding parameter and token; 2 x layers x heads x (query + value width) FLOP per
    query-key pair; weights read once a step, KV once per query group. MFU 0.5 and MBU 0.8 are usual on data-centre
    GPUs; `overhead_s` is launch and scheduling (with CUDA graphs well under 1 ms). Coefficients are whole picoseconds,
    so a decode span (whose KV reads grow by the batch each step) is an arithmetic progression. Raises InputError for
    shapes it cannot price.
    """

    def __init__(
        self,
        model: ModelShape,
        hardware: Hardware,
        block_size_tokens: int,
        mfu: float = 0.5,
        mbu: float = 0.8,
        overhead_s: float = 0.0005,
    ) -> None:
        if model.num_window_layers:
            raise InputError(
                f"cost=roofline cannot price {model.name}: a layer with a window of {model.window_tokens} tokens does"
                " not read the whole context; choose cost=linear, or a model without sliding windows"
            )
        flops_per_s = hardware.bf16_flops * mfu
        bytes_per_s = hardware.hbm_bytes_per_s * mbu
        kv_bytes = model.kv_bytes_per_token()
        query_dim, value_dim = model.head_dim + model.rope_dim, model.value_dim or model.head_dim
        pair_flops = 2 * model.num_layers * model.num_heads * (query_dim + value_dim)
        self._overhead_ps = to_ps(overhead_s)
        self._model = model
        self._bytes_per_s = bytes_per_s
        self._read_ps: dict[int, int] = {}  # number of new tokens -> time to read the weights they touch
        self._token_flops_ps = round(2 * model.num_active_linear_parameters() / flops_per_s * PS_PER_S)
        self._pair_ps = round(pair_flops / flops_per_s * PS_PER_S)
        self._kv_token_ps = round(kv_bytes / bytes_per_s * PS_PER_S)
        self._decode_context_ps = max(self._pair_ps, self._kv_token_ps)
        block_bytes = kv_bytes * block_size_tokens
        self._swap_block_ps = round(block_bytes / hardware.host_link_bytes_per_s * PS_PER_S)
        self._copy_block_ps = round(2 * block_bytes / bytes_per_s * PS_PER_S)

    def step_ps(self, work: StepWork) -> int:
        num_new = work.num_prefill_tokens + work.num_decodes
        linear_ps = max(self._weights_ps(num_new), self._token_flops_ps * num_new)
        read_tokens = sum(num_new + num_computed for num_new, num_computed in work.chunks)
        prefill_ps = max(self._pair_ps * work.prefill_pairs, self._kv_token_ps * read_tokens)
        decode_ps = self._decode_context_ps * work.decode_context_tokens
        copies_ps = self._swap_block_ps * work.num_swapped_blocks + self._copy_block_ps * work.num_copied_blocks
        return self._overhead_ps + linear_ps + prefill_ps + decode_ps + copies_ps + self._kv_token_ps * num_new

    @property
    def least_step_ps(self) -> int:
        return self._overhead_ps + self._weights_ps(1)

    def growth_ps(self, work: StepWork) -> int:
        return self._decode_context_ps * work.num_decodes

    def _weights_ps(self, num_new: int) -> int:
        """A mixture of experts reads more of its weights the more tokens choose among them."""
        if num_new not in self._read_ps:
            self._read_ps[num_new] = round(self._model.weight_bytes_read(num_new) / self._bytes_per_s * PS_PER_S)
        return self._read_ps[num_new]
