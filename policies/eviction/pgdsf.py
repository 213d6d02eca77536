"""Prefix-aware GDSF: RAGCache's policy for a tree of documents."""

from __future__ import annotations

from core.interfaces import PolicyEnv
from policies.eviction.gdsf import GDSF
from policies.eviction.recompute_cost import LLAMA3_8B_TOKENS


class PGDSF(GDSF):
    """GDSF whose cost is what computing the block at its depth takes per token, and which evicts leaves only: a parent
    outlives its children. Jin et al., RAGCache, arXiv 2404.12457. O(log n) each.

    RAGCache interpolates a profile of measured prefill times over (cached, new) tokens; here the cost is modelled
    (`RecomputeCost`), so that a run does not depend on the machine. What a block costs with everything before it
    cached is a constant, so RAGCache's average over requests is that constant.
    """

    leaf_first = True

    def __init__(self, env: PolicyEnv, attention_equals_linear_tokens: float = LLAMA3_8B_TOKENS) -> None:
        super().__init__(env, "recompute", attention_equals_linear_tokens)
