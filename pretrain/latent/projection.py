"""Vectors of many dimensions as points of a plane: PCA, or t-SNE for what lies near what.

    points_N2 = pca(z_NZ).points(z_NZ)
    points_N2 = tsne(z_NZ, perplexity=30, seed=0)

t-SNE (van der Maaten and Hinton 2008) is the exact one, with all N^2 pairs; distances between far
points mean nothing in it.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

STEPS, EXAGGERATED_STEPS, EXAGGERATION = 500, 125, 12.0
_SEARCH_STEPS = 50


class Plane(NamedTuple):
    """The two directions in which vectors vary most."""

    mean_Z: Tensor
    axes_2Z: Tensor
    shares: tuple[float, float]  # of all variance, that each axis shows

    def points(self, z_NZ: Tensor) -> Tensor:
        """Where vectors lie on it: (N, 2)."""
        return (z_NZ.double() - self.mean_Z) @ self.axes_2Z.t()


def pca(z_NZ: Tensor) -> Plane:
    """The plane of N vectors; of an axis' two signs the one that makes its largest weight positive.

    Axes that there is nothing for (one dimension, two vectors) are 0.
    """
    mean_Z = z_NZ.double().mean(0)
    _, spread, directions = torch.linalg.svd(z_NZ.double() - mean_Z, full_matrices=False)
    axes = torch.zeros(2, z_NZ.shape[1], dtype=torch.float64)
    axes[: min(2, len(directions))] = directions[:2]
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    axes = axes * torch.where(largest < 0, -1.0, 1.0)
    total = float(spread.square().sum()) or 1.0
    shares = [float(s) ** 2 / total for s in spread[:2]] + [0.0, 0.0]
    return Plane(mean_Z, axes, (shares[0], shares[1]))


def tsne(z_NZ: Tensor, *, perplexity: float, seed: int) -> Tensor:
    """Points (N, 2) whose near neighbours are those of the vectors.

    perplexity: about how many neighbours count. It begins with PCA, so that the seed moves little.
    Raises ValueError where there are not three times as many vectors.
    """
    if not 1 <= perplexity <= (len(z_NZ) - 1) / 3:
        raise ValueError(
            f"--perplexity must lie in 1 .. (texts - 1) / 3 = {(len(z_NZ) - 1) / 3:g}, got "
            f"{perplexity:g}. Lower it, or give more texts."
        )
    z = z_NZ.double()
    together = _affinities((z[:, None] - z).square().sum(-1), perplexity)
    noise = torch.randn(len(z), 2, generator=torch.Generator().manual_seed(seed)).double()
    start = pca(z).points(z)
    points = 1e-4 * (start / start.std().clamp(min=1e-12) + 0.01 * noise)
    return _descend(points, together)


def _descend(points: Tensor, together: Tensor) -> Tensor:
    """Gradient descent with momentum and a gain for each coordinate, as published."""
    moved, gains = torch.zeros_like(points), torch.ones_like(points)
    # The usual floor of 50 overshoots where there are few points and throws some far away.
    rate = max(len(points) / EXAGGERATION / 4, 10.0)
    for step in range(STEPS):
        is_early = step < EXAGGERATED_STEPS
        gradient = _gradient(points, together * (EXAGGERATION if is_early else 1.0))
        turns = (gradient > 0) == (moved > 0)
        gains = torch.where(turns, gains * 0.8, gains + 0.2).clamp(min=0.01)
        moved = (0.5 if is_early else 0.8) * moved - rate * gains * gradient
        points = points + moved
        points = points - points.mean(0)
    return points


def _gradient(points: Tensor, together: Tensor) -> Tensor:
    """4 sum_j (p_ij - q_ij) (y_i - y_j) / (1 + |y_i - y_j|^2)."""
    near = 1.0 / (1.0 + torch.cdist(points, points).square())
    near.fill_diagonal_(0.0)
    pull = (together - near / near.sum()) * near
    return 4.0 * (pull.sum(1, keepdim=True) * points - pull @ points)


def _affinities(squares_NN: Tensor, perplexity: float) -> Tensor:
    """p_ij of the vectors: for each a normal as wide as gives `perplexity`, made symmetric."""
    number = len(squares_NN)
    scaled = squares_NN / squares_NN.mean().clamp(min=1e-300)
    itself = torch.eye(number, dtype=torch.bool)
    low, high = torch.zeros(number, 1).double(), torch.full((number, 1), math.inf).double()
    precision = torch.ones(number, 1).double()
    for _ in range(_SEARCH_STEPS):
        logits = (-scaled * precision).masked_fill(itself, -math.inf)
        probs = logits.softmax(1)
        entropy = -(probs * probs.clamp(min=1e-300).log()).sum(1, keepdim=True)
        is_wide = entropy > math.log(perplexity)
        low = torch.where(is_wide, precision, low)
        high = torch.where(is_wide, high, precision)
        precision = torch.where(high.isinf(), precision * 2, (low + high) / 2)
    return (probs + probs.t()) / (2 * number)
