"""PCA against its definition, t-SNE by what lies near what."""

import pytest
import torch

from pretrain.latent.projection import pca, tsne


def clusters(number: int = 12) -> torch.Tensor:
    """Three groups far apart in 7 dimensions."""
    random = torch.Generator().manual_seed(4)
    centres = 8.0 * torch.randn(3, 7, generator=random)
    return (centres[:, None] + torch.randn(3, number, 7, generator=random)).flatten(0, 1)


def test_pca_shows_the_directions_of_largest_variance():
    z = clusters() * torch.tensor([1.0, 1, 1, 1, 1, 1, 3])
    plane = pca(z)
    values, vectors = torch.linalg.eigh(torch.cov(z.double().t()))
    for number, axis in enumerate(plane.axes_2Z):
        expected = vectors[:, -1 - number]
        assert abs(float(axis @ expected)) == pytest.approx(1.0, abs=1e-9)
        assert plane.shares[number] == pytest.approx(float(values[-1 - number] / values.sum()))
    points = plane.points(z)
    assert points.mean(0).tolist() == pytest.approx([0.0, 0.0], abs=1e-9)
    assert points.var(0).tolist() == pytest.approx(values[[-1, -2]].tolist())
    assert torch.allclose(pca(-z).axes_2Z, plane.axes_2Z)  # signs are settled


def test_pca_of_fewer_than_two_dimensions_or_vectors():
    assert pca(torch.randn(5, 1)).points(torch.randn(3, 1))[:, 1].tolist() == [0.0] * 3
    assert pca(torch.ones(4, 3)).shares == (0.0, 0.0)


@pytest.mark.parametrize("seed", range(6))
def test_tsne_keeps_neighbours_together(seed):
    """With steps five times as long two of these seeds throw points far away."""
    z = clusters()
    points = tsne(z, perplexity=5, seed=seed)
    gaps = torch.cdist(points, points)
    gaps.fill_diagonal_(float("inf"))
    group = torch.arange(36) // 12
    assert (group[gaps.argmin(1)] == group).all()
    own = gaps[group[:, None] == group][torch.isfinite(gaps[group[:, None] == group])]
    assert gaps[group[:, None] != group].mean() > 7 * own.mean()
    assert torch.equal(points, tsne(z, perplexity=5, seed=seed))


def test_tsne_needs_three_times_as_many_vectors():
    with pytest.raises(ValueError, match="perplexity must lie in 1"):
        tsne(clusters(), perplexity=12, seed=0)
