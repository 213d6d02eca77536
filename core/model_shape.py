"""What a decoder's dimensions say about its memory and its arithmetic: KV bytes, weight bytes, parameters."""

from dataclasses import asdict, dataclass

from core.errors import InputError
from core.kv_group import KVGroup, split_layers

_NEVER_ZERO = ("num_layers", "hidden", "num_heads", "num_kv_heads", "head_dim", "vocab_size")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The dimensions of one decoder. Every count is an integer, every size is in bytes.

    A layer caches K and V for `num_kv_heads` heads of `head_dim`; with `latent_dim` > 0 (MLA) it caches instead one
    vector of `latent_dim + rope_dim` a token. `num_window_layers` layers keep no more than `window_tokens` tokens
    (a sliding window, or a chunk of local attention); `num_shared_layers` layers read another layer's cache and keep
    none. Raises InputError for dimensions that no model can have.

    Source of the formulas: the attention definitions (MHA, MQA arXiv 1911.02150, GQA 2305.13245, MLA 2405.04434).
    """

    name: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate: int  # width of the dense MLP; 0 where every layer is a mixture of experts
    vocab_size: int
    max_context_tokens: int
    tied_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    num_mlp_matrices: int = 3  # 3 gated (gate, up, down), 2 plain
    num_norm_vectors: int = 2  # vectors of length `hidden` in a layer's norms
    window_tokens: int = 0
    num_window_layers: int = 0
    num_shared_layers: int = 0
    latent_dim: int = 0
    rope_dim: int = 0
    value_dim: int = 0  # MLA: a head's value width; its head_dim is the query's part without position
    query_latent_dim: int = 0  # MLA: 0 where queries are projected directly
    num_experts: int = 0
    num_active_experts: int = 0
    num_shared_experts: int = 0
    num_dense_layers: int = 0  # layers of a mixture-of-experts model that have a dense MLP
    expert_intermediate: int = 0
    extra_parameters: int = 0  # what the formulas leave out (positions, further biases, a vision tower)
    weight_dtype_bytes: int = 2
    checkpoint_bytes: int = 0  # the weights' size where it is not num_parameters x weight_dtype_bytes

    def __post_init__(self) -> None:
        for key, number in asdict(self).items():
            least = 1 if key in _NEVER_ZERO else 0
            if key != "name" and number < least:
                raise InputError(f"model {self.name}: {key}={number}, expected at least {least}")
        if self.num_heads % self.num_kv_heads:
            raise InputError(
                f"model {self.name}: num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}"
            )
        if not 0 <= self.num_window_layers <= self.num_kv_layers <= self.num_layers:
            raise InputError(
                f"model {self.name}: {self.num_window_layers} windowed layers of {self.num_kv_layers} that cache; "
                f"expected 0 <= num_window_layers <= num_layers - num_shared_layers"
            )
        if bool(self.window_tokens) != bool(self.num_window_layers):
            raise InputError(f"model {self.name}: give window_tokens and num_window_layers together, or neither")

    # --- KV cache ---------------------------------------------------------------------------------------------------

    @property
    def num_kv_layers(self) -> int:
        """Layers that keep a cache of their own."""
        return self.num_layers - self.num_shared_layers

    @property
    def num_full_layers(self) -> int:
        """Layers that keep every token."""
        return self.num_kv_layers - self.num_window_layers

    @property
    def kv_layer_windows(self) -> tuple[int | None, ...]:
        """The window of each layer that caches; None where it keeps every token.

        The last of every so many layers is full, as in Gemma 2 and 3, gpt-oss and Llama 4.
        """
        windows: list[int | None] = [self.window_tokens or None] * self.num_kv_layers
        if self.num_full_layers:
            period = self.num_kv_layers // self.num_full_layers
            for full in range(self.num_full_layers):
                windows[(full + 1) * period - 1] = None
        return tuple(windows)

    @property
    def kv_elements_per_layer_token(self) -> int:
        """Numbers that one layer caches for one token: K and V of every KV head, or one latent vector (MLA)."""
        if self.latent_dim:
            return self.latent_dim + self.rope_dim
        return 2 * self.num_kv_heads * self.head_dim

    def kv_bytes_per_token(self, kv_dtype_bytes: int = 2, scale_bytes_per_head: int = 0) -> int:
        """Bytes that one new token writes, over all layers that cache.

        `scale_bytes_per_head`: metadata a token and head of K and of V (a fp32 scale: 4); for MLA, a token and layer.
        """
        num_scales = 1 if self.latent_dim else 2 * self.num_kv_heads
        layer_bytes = self.kv_elements_per_layer_token * kv_dtype_bytes + num_scales * scale_bytes_per_head
        return self.num_kv_layers * layer_bytes

    def kv_bytes_per_token_per_gpu(self, tensor_parallel: int, kv_dtype_bytes: int = 2) -> int:
        """One GPU's share: KV heads are split, or replicated where they are fewer than GPUs; a latent is not split."""
        total_bytes = self.kv_bytes_per_token(kv_dtype_bytes)
        if self.latent_dim:
            return total_bytes
        return total_bytes // self.num_kv_heads * -(-self.num_kv_heads // tensor_parallel)

    def kv_bytes(self, num_tokens: int, kv_dtype_bytes: int = 2) -> int:
        """Bytes of a sequence of `num_tokens`: windowed layers keep at most `window_tokens` of them."""
        kept_tokens = self.num_full_layers * num_tokens + self.num_window_layers * min(num_tokens, self.window_tokens)
        return kept_tokens * self.kv_elements_per_layer_token * kv_dtype_bytes

    def block_bytes(self, block_size_tokens: int, kv_dtype_bytes: int = 2) -> int:
        """Bytes of a block of `block_size_tokens` tokens in all layers that cache."""
        return block_size_tokens * self.kv_bytes_per_token(kv_dtype_bytes)

    def kv_groups(self) -> tuple[KVGroup, ...]:
        """The layers that cache in groups of one window and about equal size, each with its own block table."""
        windows = self.kv_layer_windows
        return tuple(KVGroup(len(layers), windows[layers[0]]) for layers in split_layers(windows))

    # --- parameters -------------------------------------------------------------------------------------------------

    @property
    def embedding_parameters(self) -> int:
        """The token table; as many again for an untied output head."""
        return self.vocab_size * self.hidden

    @property
    def attention_parameters(self) -> int:
        """Weights, biases and q/k norms of one layer's attention."""
        if self.latent_dim:
            return self._latent_attention_parameters()
        query, key = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        weights = 2 * self.hidden * (query + key)
        return weights + self.qkv_bias * (query + 2 * key) + self.qk_norm * 2 * self.head_dim

    def _latent_attention_parameters(self) -> int:
        query = self.num_heads * (self.head_dim + self.rope_dim)
        if self.query_latent_dim:  # down, norm, up
            query_weights = self.query_latent_dim * (self.hidden + 1 + query)
        else:
            query_weights = self.hidden * query
        down = self.hidden * (self.latent_dim + self.rope_dim) + self.latent_dim
        up = self.latent_dim * self.num_heads * (self.head_dim + self.value_dim)
        return query_weights + down + up + self.num_heads * self.value_dim * self.hidden

    @property
    def expert_parameters(self) -> int:
        """Weights of one routed expert; 0 in a dense model."""
        return self.num_mlp_matrices * self.hidden * self.expert_intermediate

    @property
    def num_expert_layers(self) -> int:
        """Layers whose MLP is a mixture of experts."""
        return self.num_layers - self.num_dense_layers if self.num_experts else 0

    def num_parameters(self) -> int:
        """All parameters, every expert included."""
        dense_mlp = self.num_mlp_matrices * self.hidden * self.intermediate
        experts = (self.num_experts + self.num_shared_experts) * self.expert_parameters
        router = self.num_experts * self.hidden
        return (
            self.embedding_parameters * (1 if self.tied_embeddings else 2)
            + self.num_layers * (self.attention_parameters + self.num_norm_vectors * self.hidden)
            + (self.num_layers - self.num_expert_layers) * dense_mlp
            + self.num_expert_layers * (experts + router)
            + self.hidden
            + self.extra_parameters
        )

    def num_active_parameters(self) -> int:
        """Parameters that one token passes: of the routed experts only the active ones."""
        idle_experts = self.num_experts - self.num_active_experts
        return self.num_parameters() - self.num_expert_layers * idle_experts * self.expert_parameters

    def num_active_linear_parameters(self) -> int:
        """Active parameters a token is multiplied with: all but the look-up in an untied token table.

        A forward pass costs 2 FLOP for each and token. The output head is included: it is applied to sampled rows only.
        """
        return self.num_active_parameters() - (0 if self.tied_embeddings else self.embedding_parameters)

    def weight_bytes(self) -> int:
        """Bytes of all weights as served."""
        return self.checkpoint_bytes or self.num_parameters() * self.weight_dtype_bytes

    def weight_bytes_read(self, num_tokens: int) -> int:
        """Weight bytes that a step over `num_tokens` tokens reads: all of a dense model, of experts only those chosen.

        With k of E experts a token, uniformly and independently, E (1 - (1 - k/E)^T) experts are met by T tokens.
        """
        if not self.num_experts:
            return self.weight_bytes()
        missed = (1 - self.num_active_experts / self.num_experts) ** num_tokens
        unread_parameters = self.num_expert_layers * self.num_experts * missed * self.expert_parameters
        return round(self.weight_bytes() * (1 - unread_parameters / self.num_parameters()))

    # --- arithmetic -------------------------------------------------------------------------------------------------

    def linear_flops(self, num_tokens: int) -> int:
        """FLOP of all matrix products with weights, for `num_tokens` tokens, each through the output head."""
        return 2 * self.num_active_linear_parameters() * num_tokens

    def causal_attention_flops(self, num_tokens: int) -> int:
        """FLOP of attention over a whole prompt with a causal mask: 2 L (H d) n^2, less in windowed layers."""
        query_dim = self.head_dim + self.rope_dim
        value_dim = self.value_dim or self.head_dim
        window_tokens = min(num_tokens, self.window_tokens)
        full_pairs = (self.num_layers - self.num_window_layers) * num_tokens**2
        window_pairs = self.num_window_layers * (2 * num_tokens - window_tokens) * window_tokens
        return self.num_heads * (query_dim + value_dim) * (full_pairs + window_pairs)
