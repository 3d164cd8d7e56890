"""An encoder with a tokenizer of its own: both streams of shards, and both tokenizers of a text."""

import pytest
import torch

from data_pipeline.storage.shards import open_shards
from pretrain.evaluate.bound import TextBounds, text_bounds
from pretrain.latent.moves import decoded, encoded
from pretrain.latent.opened import open_latent
from pretrain.latent.texts import given_texts, shard_texts
from pretrain.latent.writing import WriteSettings


def test_a_text_is_what_it_is_in_shards(run_of, two_streams):
    """Bounds and vectors of the held-out texts of shards and of the same texts given as such."""
    run = open_latent(run_of("optimus_two"))
    held_out = shard_texts(run, two_streams, "validation", num_texts=6)
    rows = held_out.rows(run.transform())
    texts = [run.tokenizer.decode(rows.tokens(number)) for number in range(6)]
    given = given_texts(run, texts, "--text")
    batch = given.rows(run.transform()).batch(torch.arange(6).numpy())
    encoder = run.encoder_tokenizer.encode([texts[2]])[0]
    assert batch.sources[0, 2, 1 : 1 + len(encoder)].tolist() == encoder.tolist()
    assert batch.ids[2, 1 : 1 + len(rows.tokens(2))].tolist() == rows.tokens(2).tolist()
    for a, b in zip(encoded(run, held_out), encoded(run, given), strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    one, three = (
        text_bounds(
            run.model, run.objective, rows, samples=4, batch_texts=size,
            vocab_size=run.tokenizer.vocab_size,
        )
        for size in (1, 3)
    )  # fmt: skip
    for field in TextBounds._fields:
        assert torch.allclose(getattr(one, field), getattr(three, field), rtol=2e-5, atol=2e-5)
    written = decoded(run, one.mu, WriteSettings(max_tokens=9))
    assert all(len(one.ids) <= 9 for one in written)


def test_shards_of_one_stream_or_another_tokenizer_are_refused(run_of, shards):
    run = open_latent(run_of("optimus_two"))
    assert open_shards(shards).encoder is None
    with pytest.raises(ValueError, match="holds the ids of one tokenizer"):
        shard_texts(run, shards, "validation")
    with pytest.raises(ValueError, match="this model reads at most 64"):
        given_texts(run, ["zq" * 31], "--text")
