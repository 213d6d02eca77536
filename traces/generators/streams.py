"""A random stream for every part of a recipe, so that changing one part leaves what the others draw as it was."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Streams:
    """Streams of one seed, told apart by the name of the part that draws from them."""

    seed: int

    def of(self, part: str) -> np.random.Generator:
        """The stream of one part, from its beginning. Same seed and name, same draws (of one version of numpy)."""
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, *part.encode()])))
