"""Block keys: which full blocks hold the same KV. Decisions need no tokens, only equality of content."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from mypy_extensions import mypyc_attr

from core.errors import InputError
from core.interfaces import BlockKey

_MAX_BLOCKS_A_SEQUENCE = 1 << 32
_KEY_BYTES = 16
_TOKEN_BYTES = 8


def private_key(owner: int, index: int) -> int:
    """The key of a block whose content nobody else has: negative, so it never meets a shared one."""
    return -1 - (owner * _MAX_BLOCKS_A_SEQUENCE + index)


@mypyc_attr(allow_interpreted_subclasses=True)
class BlockKeys(ABC):
    """The chained keys of one sequence's full blocks. `owner` is unique to the sequence within a run."""

    num_shared: int
    """Leading blocks whose content another sequence may have, too. The others have keys that nobody else has."""

    blocks_a_name: int = 1
    """Consecutive blocks that each of `names` stands for."""

    @abstractmethod
    def key(self, index: int) -> BlockKey:
        """Key of full block `index`: equal keys mean equal tokens in this block and in all before it."""

    def keys(self, first: int, last: int) -> list[BlockKey]:
        """Keys of the full blocks from `first` up to, not including, `last`."""
        return [self.key(index) for index in range(first, last)]

    def names(self) -> Sequence[BlockKey]:
        """What tells the shared blocks apart, in order: a name for every `blocks_a_name` of them, the last perhaps for
        fewer. Equal names that stand for equally many blocks mean equal keys, and the other way round.
        """
        return self.keys(0, self.num_shared)

    @abstractmethod
    def for_sample(self, owner: int) -> BlockKeys:
        """The keys of another sample of the same prompt: equal over the prompt, private after it."""


@mypyc_attr(allow_interpreted_subclasses=True)
class PrivateKeys(BlockKeys):
    """Shares nothing: for traces without prefix information."""

    num_shared = 0

    def __init__(self, owner: int) -> None:
        self._owner = owner

    def key(self, index: int) -> BlockKey:
        return private_key(self._owner, index)

    def keys(self, first: int, last: int) -> list[BlockKey]:
        return list(range(private_key(self._owner, first), private_key(self._owner, last), -1))

    def for_sample(self, owner: int) -> BlockKeys:
        return PrivateKeys(owner)


@mypyc_attr(allow_interpreted_subclasses=True)
class ListedKeys(BlockKeys):
    """Keys of the shared blocks are listed once any is asked for; those of the blocks behind them are private."""

    def __init__(self, owner: int, num_shared: int) -> None:
        self._owner = owner
        self.num_shared = num_shared

    @abstractmethod
    def _shared_keys(self) -> list[BlockKey]:
        """All of them; the same list every time."""

    def key(self, index: int) -> BlockKey:
        if index >= self.num_shared:
            return private_key(self._owner, index)
        return self._shared_keys()[index]

    def keys(self, first: int, last: int) -> list[BlockKey]:
        keys = self._shared_keys()[first:last]
        if last > self.num_shared:
            keys += [private_key(self._owner, index) for index in range(max(first, self.num_shared), last)]
        return keys


@mypyc_attr(allow_interpreted_subclasses=True)
class HashKeys(ListedKeys):
    """From a trace's own chained block hashes, at any pool block that divides the trace's block or is a multiple of it.

    Blocks that are not wholly inside the prompt are private: the hashes cover the input only.
    Raises InputError where the two block sizes do not fit.
    """

    def __init__(
        self,
        owner: int,
        hash_ids: Sequence[int],
        hash_block_tokens: int,
        block_size: int,
        num_prompt_tokens: int,
        salt: int = 0,
    ) -> None:
        super().__init__(owner, num_prompt_tokens // block_size)
        self._hash_ids = hash_ids
        self._hash_block_tokens = hash_block_tokens
        self._block_size = block_size
        self._num_prompt_tokens = num_prompt_tokens
        self._salt = salt
        self._parts = hash_block_tokens // block_size  # pool blocks per trace block
        self._span = block_size // hash_block_tokens  # trace blocks per pool block
        self.blocks_a_name = max(1, self._parts)
        self._shared: list[BlockKey] | None = None  # keys of the blocks inside the prompt, once any is asked for
        if self._parts * block_size != hash_block_tokens and self._span * hash_block_tokens != block_size:
            raise InputError(
                f"pool.block_size_tokens={block_size} neither divides nor is a multiple of the trace's hash block of "
                f"{hash_block_tokens} tokens: prefix sharing would be lost; choose a divisor or a multiple"
            )

    def _shared_keys(self) -> list[BlockKey]:
        if self._shared is None:
            num_parts, parts = self._parts, self._named_ids()
            if num_parts > 1:
                parts = [*chain.from_iterable([range(first * num_parts, (first + 1) * num_parts) for first in parts])]
                del parts[self.num_shared :]
            self._shared = self._salted(parts)
        return self._shared

    def names(self) -> Sequence[BlockKey]:
        return self._salted(self._named_ids()) if self._salt else self._named_ids()

    def _named_ids(self) -> Sequence[int]:
        """The trace's ids of the shared blocks, `blocks_a_name` for each."""
        if self._parts:
            return self._hash_ids[: -(-self.num_shared // self._parts)]
        return self._hash_ids[self._span - 1 :: self._span][: self.num_shared]

    def _salted(self, ids: Sequence[int]) -> list[BlockKey]:
        """A salted key is never the (group, key) of another KV group."""
        return [("salt", self._salt, number) for number in ids] if self._salt else [*ids]

    def for_sample(self, owner: int) -> BlockKeys:
        return HashKeys(
            owner, self._hash_ids, self._hash_block_tokens, self._block_size, self._num_prompt_tokens, self._salt
        )


@mypyc_attr(allow_interpreted_subclasses=True)
class TokenKeys(BlockKeys):
    """From the tokens themselves (or any ids that name them one to one): a chain of 16-byte BLAKE2b digests.

    `tokens` are the prompt and as much of the output as is known; blocks beyond are private.
    """

    def __init__(
        self, owner: int, tokens: Iterable[int], block_size: int, num_prompt_tokens: int, salt: int = 0
    ) -> None:
        self._owner = owner
        self._tokens = array("q", tokens)
        self._block_size = block_size
        self._num_prompt_tokens = num_prompt_tokens
        self._salt = salt
        self.num_shared = len(self._tokens) // block_size
        self._keys: list[bytes] = []

    def key(self, index: int) -> BlockKey:
        if index >= self.num_shared:
            return private_key(self._owner, index)
        while len(self._keys) <= index:
            self._keys.append(self._next_key())
        return self._keys[index]

    def keys(self, first: int, last: int) -> list[BlockKey]:
        end = min(last, self.num_shared)
        while len(self._keys) < end:
            self._keys.append(self._next_key())
        keys: list[BlockKey] = [*self._keys[first:end]]
        return keys + [private_key(self._owner, index) for index in range(max(first, self.num_shared), last)]

    def _next_key(self) -> bytes:
        start = len(self._keys) * self._block_size
        parent = self._keys[-1] if self._keys else _first_parent(self._salt)
        return self.chain(parent, self._tokens[start : start + self._block_size])

    def chain(self, parent: bytes, tokens: array[int]) -> bytes:
        return _chained(parent, tokens.tobytes())

    def for_sample(self, owner: int) -> BlockKeys:
        return TokenKeys(
            owner, self._tokens[: self._num_prompt_tokens], self._block_size, self._num_prompt_tokens, self._salt
        )


def key_chain(tokens: bytes, block_size: int, salt: int = 0) -> bytes:
    """The keys that `TokenKeys` has for the full blocks of these tokens, little-endian int64, one after another."""
    block_bytes, parent = block_size * _TOKEN_BYTES, _first_parent(salt)
    keys = []
    for start in range(0, len(tokens) - block_bytes + 1, block_bytes):
        parent = _chained(parent, tokens[start : start + block_bytes])
        keys.append(parent)
    return b"".join(keys)


@mypyc_attr(allow_interpreted_subclasses=True)
class ChainKeys(ListedKeys):
    """From a `key_chain`, which is made, or found, once any key is asked for: a text too long to run never has one.
    Blocks beyond it are private.
    """

    def __init__(self, owner: int, chain: Callable[[], bytes], num_blocks: int, num_prompt_blocks: int) -> None:
        """`chain`: at least `num_blocks` keys, the first `num_prompt_blocks` of them of the prompt."""
        super().__init__(owner, num_blocks)
        self._chain = chain
        self._num_prompt_blocks = num_prompt_blocks
        self._keys: list[BlockKey] | None = None  # once any is asked for

    def _shared_keys(self) -> list[BlockKey]:
        if self._keys is None:
            chain = self._chain()
            ends = range(_KEY_BYTES, self.num_shared * _KEY_BYTES + 1, _KEY_BYTES)
            self._keys = [chain[end - _KEY_BYTES : end] for end in ends]
        return self._keys

    def for_sample(self, owner: int) -> BlockKeys:
        num_shared = min(self._num_prompt_blocks, self.num_shared)
        return ChainKeys(owner, self._chain, num_shared, self._num_prompt_blocks)


def _first_parent(salt: int) -> bytes:
    return salt.to_bytes(_KEY_BYTES, "little", signed=True)


def _chained(parent: bytes, tokens: bytes) -> bytes:
    return hashlib.blake2b(parent + tokens, digest_size=_KEY_BYTES).digest()
