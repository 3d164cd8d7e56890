"""The sum of three embeddings, forward and backward."""

import torch

from kernels.dispatch import embedding_2d


def tables():
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(rows, 3, generator=generator, dtype=torch.float64).requires_grad_()
        for rows in (7, 5, 4)
    ]


IDS, POSITION, BLOCK = (
    torch.tensor([[1, 6, 1]]),
    torch.tensor([[0, 1, 1]]),
    torch.tensor([[0, 1, 2]]),
)


def test_each_token_is_the_sum_of_its_three_rows():
    token, position, block = tables()
    x, _ = embedding_2d(IDS, POSITION, BLOCK, token, position, block)
    assert torch.equal(x[0, 1], token[6] + position[1] + block[1])
    assert x.shape == (1, 3, 3)


def test_without_a_block_table_two_rows_are_summed():
    token, position, _ = tables()
    x, _ = embedding_2d(IDS, POSITION, None, token, position, None)
    assert torch.equal(x[0, 2], token[1] + position[1])


def test_gradients_add_up_where_a_row_is_used_twice():
    token, position, block = tables()
    embedding_2d(IDS, POSITION, BLOCK, token, position, block)[0].sum().backward()
    assert token.grad.sum(1).tolist() == [0, 6, 0, 0, 0, 0, 3]
    assert position.grad.sum(1).tolist() == [3, 6, 0, 0, 0]
    assert block.grad.sum(1).tolist() == [3, 3, 3, 0]


def test_gradients_match_finite_differences():
    assert torch.autograd.gradcheck(lambda *t: embedding_2d(IDS, POSITION, BLOCK, *t)[0], tables())


def test_int32_indices_do_as_well():
    token, position, block = tables()
    x, _ = embedding_2d(IDS.int(), POSITION.int(), BLOCK.int(), token, position, block)
    assert torch.equal(x, embedding_2d(IDS, POSITION, BLOCK, token, position, block)[0])


def test_token_type_and_latent_of_the_document_are_added_and_padding_gets_no_latent():
    token, position, block = tables()
    types = torch.tensor([[10.0, 0, 0], [0, 10, 0]], dtype=torch.float64, requires_grad=True)
    latent = torch.tensor([[[0.0, 0, 100], [0, 0, 200]]], dtype=torch.float64, requires_grad=True)
    x, _ = embedding_2d(
        IDS,
        POSITION,
        BLOCK,
        token,
        position,
        block,
        token_type=torch.tensor([[0, 1, 1]]),
        type_table=types,
        latent=latent,
        document=torch.tensor([[0, 1, -1]]),
    )
    bare, _ = embedding_2d(IDS, POSITION, BLOCK, token, position, block)
    expected = torch.tensor([[[10.0, 0, 100], [0, 10, 200], [0, 10, 0]]], dtype=torch.float64)
    assert torch.allclose(x - bare, expected, atol=1e-12)
    x.sum().backward()
    assert types.grad.tolist() == [[1, 1, 1], [2, 2, 2]]
    assert latent.grad.tolist() == [[[1, 1, 1], [1, 1, 1]]]


def test_layer_norm_then_dropout_follow_the_sum():
    token, position, block = (t.detach() for t in tables())
    weight, bias = torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor([0.5, 0.0, 0.0]).double()
    options = {"norm_weight": weight, "norm_bias": bias, "norm_eps": 1e-5}
    bare, _ = embedding_2d(IDS, POSITION, BLOCK, token, position, block)
    normed, _ = embedding_2d(IDS, POSITION, BLOCK, token, position, block, **options)
    mean, var = bare.mean(-1, keepdim=True), bare.var(-1, correction=0, keepdim=True)
    assert torch.allclose(normed, (bare - mean) / (var + 1e-5).sqrt() * weight + bias, atol=1e-12)
    torch.manual_seed(0)
    dropped, _ = embedding_2d(
        IDS, POSITION, BLOCK, token, position, block, **options, dropout_prob=0.5
    )
    kept = dropped != 0
    assert 0 < kept.sum() < kept.numel()
    assert torch.allclose(dropped[kept], 2 * normed[kept])
