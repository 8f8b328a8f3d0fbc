"""Rotary position embedding: how fast each pair of a head turns, and by what the scores are raised. Knows no file.

`head_dim / 2` angles a position; angle `i` of position `p` is `p * frequencies[i]` (Su et al., arXiv 2104.09864). A
model that was stretched beyond the context it was trained on turns some of its pairs more slowly.

`dynamic` scaling has no class here: it changes nothing until a sequence is longer than the context that the model was
trained on, and no sequence of ours is, because that is then the context length. What it does beyond would turn keys
that are already in the pool by another angle than the queries that read them.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Frequencies = NDArray[np.float64]


@dataclass(slots=True, frozen=True)
class LinearScaling:
    """Every position divided by `factor` (Chen et al., arXiv 2306.15595)."""

    factor: float


@dataclass(slots=True, frozen=True)
class Llama3Scaling:
    """Slow pairs are slowed by `factor`, fast ones not at all, those between in part (Llama 3.1)."""

    factor: float
    low: float  # turns within `original` below which a pair is slow
    high: float  # and above which it is fast
    original: int  # the context length of the first training


@dataclass(slots=True, frozen=True)
class YarnScaling:
    """The same idea with a ramp over the pairs' numbers, and louder scores (Peng et al., arXiv 2309.00071)."""

    factor: float
    original: int
    attention: float  # by which q and k, each, are multiplied
    beta_fast: float = 32.0  # turns within `original`
    beta_slow: float = 1.0
    whole_pairs: bool = True  # the ramp begins and ends at a whole pair


Scaling = LinearScaling | Llama3Scaling | YarnScaling


@dataclass(slots=True, frozen=True)
class Rope:
    base: float
    scaling: Scaling | None = None

    def reach(self, positions: int) -> int:
        """The context of a model whose file states `positions`: YaRN's, where the file still states the one that it was
        stretched from.
        """
        scaling = self.scaling
        return (
            max(positions, round(scaling.original * scaling.factor)) if isinstance(scaling, YarnScaling) else positions
        )

    @property
    def attention(self) -> float:
        """What cosines and sines are multiplied by."""
        return self.scaling.attention if isinstance(self.scaling, YarnScaling) else 1.0

    def frequencies(self, head_dim: int) -> Frequencies:
        """Radians per position, [head_dim / 2] float64."""
        plain = self.base ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
        match self.scaling:
            case None:
                return plain
            case LinearScaling(factor):
                return plain / factor
            case Llama3Scaling():
                return _llama3(plain, self.scaling)
            case YarnScaling():
                return _yarn(plain, self.scaling, self.base)


def yarn_attention(factor: float, scale: float = 1.0) -> float:
    """The paper's recommendation; `scale` is its generalization by DeepSeek."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _llama3(plain: Frequencies, scaling: Llama3Scaling) -> Frequencies:
    turns = scaling.original * plain / (2 * math.pi)
    fast = ((turns - scaling.low) / (scaling.high - scaling.low)).clip(0, 1)
    return plain * fast + plain / scaling.factor * (1 - fast)


def _yarn(plain: Frequencies, scaling: YarnScaling, base: float) -> Frequencies:
    def pair_of(turns: float) -> float:
        """The pair, counted in elements of the head's halves, that turns so often within `original`."""
        return len(plain) * math.log(scaling.original / (turns * 2 * math.pi)) / math.log(base)

    low, high = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.whole_pairs:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * len(plain) - 1)
    ramp = (np.arange(len(plain)) - low) / (high - low if high != low else 0.001)
    slow = ramp.clip(0, 1)
    return plain * (1 - slow) + plain / scaling.factor * slow
