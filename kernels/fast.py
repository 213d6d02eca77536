"""The Triton kernels as one set, under the names and with the signatures of `kernels/reference.py`.

Imported where they run: on a GPU, or under TRITON_INTERPRET=1. It needs Triton; the reference does not.
"""

from kernels.block_copy import copy_blocks, move_tokens
from kernels.cascade_attention import cascade_decode_attention
from kernels.decode_attention import decode_attention
from kernels.expert_product import expert_product
from kernels.kv_write import write_kv, write_latents
from kernels.mla_attention import mla_decode_attention, mla_prefill_attention
from kernels.prefill_attention import prefill_attention
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope_kv_write import rope_kv_write
from kernels.swap import gather_blocks, scatter_blocks
from kernels.swiglu import swiglu

__all__ = [
    "add_rms_norm",
    "cascade_decode_attention",
    "copy_blocks",
    "decode_attention",
    "expert_product",
    "gather_blocks",
    "mla_decode_attention",
    "mla_prefill_attention",
    "move_tokens",
    "prefill_attention",
    "rms_norm",
    "rope_kv_write",
    "scatter_blocks",
    "swiglu",
    "write_kv",
    "write_latents",
]
