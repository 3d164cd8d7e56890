"""Texts from latent vectors: cached as uncached, in any batch, and what lies between texts."""

import numpy as np
import pytest
import torch

from data_pipeline.memory import MemorySplit
from pretrain.latent.moves import analogy, between, decoded, encoded, prior_draws, vectors
from pretrain.latent.opened import open_latent
from pretrain.latent.rows import TextRows
from pretrain.latent.texts import given_texts
from pretrain.latent.writing import (
    AnewReader,
    CachedReader,
    Vocabulary,
    WriteSettings,
    blank_sheet,
    generators_of,
    write,
)

TEXTS = ["the river sees the morning.", "two stones.", "a teacher follows every ship."]
WRITERS = ["optimus", "adavae", "glm_vae", "glm_vae_prefix", "lstm_vae"]


@pytest.fixture(params=WRITERS)
def run(request, run_of):
    return open_latent(run_of(request.param))


@pytest.mark.parametrize("strategy", ["greedy", "sample"])
def test_a_cache_changes_no_token(run, strategy):
    settings = WriteSettings(strategy=strategy, max_tokens=14)
    sheet = blank_sheet(run.whole_transform(), max_tokens=14)
    vocabulary = Vocabulary.of(run.tokenizer, run.vocab_size)
    z_NZ = 2.0 * prior_draws(5, 6, seed=1)

    def scores(columns):
        return run.objective.decoder(run.model, columns["z"][:, None]).next_scores(columns)

    decoder = run.objective.decoder(run.model, z_NZ[:, None])
    cached, anew = (
        write(sheet, reader, vocabulary, settings, generators_of(0, range(5)))
        for reader in (CachedReader(decoder), AnewReader(scores, z_NZ))
    )
    assert [one.ids for one in cached] == [one.ids for one in anew]
    assert [one.nats for one in cached] == pytest.approx([one.nats for one in anew], rel=1e-4)
    assert len({tuple(one.ids) for one in cached}) > 1  # z matters


def test_rows_that_end_leave_the_others_alone(run):
    """eos made likely enough: texts end at different places."""
    eos = run.tokenizer.special.eos
    sheet = blank_sheet(run.whole_transform(), max_tokens=12)
    vocabulary = Vocabulary.of(run.tokenizer, run.vocab_size)
    z_NZ = 2.0 * prior_draws(8, 6, seed=3)
    settings = WriteSettings(strategy="sample", max_tokens=12)

    class Ending(CachedReader):
        def __call__(self, sheet, first, stop, rows):
            scores = super().__call__(sheet, first, stop, rows)
            usable = scores.masked_fill(~vocabulary.usable_V, float("-inf"))
            scores[:, eos] = usable.logsumexp(1) - 1.0  # ends with probability 0.27
            return scores

    def texts(size):
        found = []
        for first in range(0, 8, size):
            some = range(first, first + size)
            reader = Ending(run.objective.decoder(run.model, z_NZ[first : first + size, None]))
            found += write(sheet, reader, vocabulary, settings, generators_of(0, some))
        return found

    together, alone = texts(8), texts(1)
    assert [one.ids for one in together] == [one.ids for one in alone]
    assert len({len(one.ids) for one in together}) > 2
    assert all(eos not in one.ids and one.ids for one in together)


@pytest.mark.parametrize("strategy", ["greedy", "sample"])
def test_no_batch_size_changes_a_text(run, strategy):
    z_NZ = 2.0 * prior_draws(5, 6, seed=2)
    alone, two, all_five = (
        decoded(run, z_NZ, WriteSettings(strategy=strategy, max_tokens=10, batch_texts=size))
        for size in (1, 2, 5)
    )
    ids = [one.ids for one in alone]
    assert ids == [one.ids for one in two] == [one.ids for one in all_five]


@torch.no_grad()
def test_what_is_written_is_as_probable_as_the_objective_says(run):
    """The nats of a text read again, as training reads it, are those it was written with."""
    settings = WriteSettings(strategy="sample", max_tokens=20)
    mu = encoded(run, given_texts(run, TEXTS, "--text")).mu
    (written, *_) = decoded(run, mu, settings)
    ids = np.array(written.ids)
    split = MemorySplit.from_documents([ids])
    rows = TextRows(split, run.whole_transform(), seed=0, source_tokens=64)
    inputs = run.objective.inputs(rows.batch(np.array([0])))
    nats_N = run.objective.decoder(run.model, mu[:1, None]).target_nats(inputs)
    read = nats_N if written.complete else nats_N[: len(ids)]
    assert float(read.sum()) == pytest.approx(written.nats, rel=1e-4)


def test_the_ends_of_an_interpolation_are_the_reconstructions(run):
    settings = WriteSettings(max_tokens=16)
    mu = encoded(run, given_texts(run, TEXTS, "--text")).mu
    line = between(mu[0], mu[2], 5)
    assert torch.equal(line[0], mu[0])
    assert torch.equal(line[-1], mu[2])
    assert torch.allclose(line[2], (mu[0] + mu[2]) / 2)
    first, *_, last = decoded(run, line, settings)
    assert first.ids == decoded(run, mu[:1], settings)[0].ids
    assert last.ids == decoded(run, mu[2:], settings)[0].ids
    with pytest.raises(ValueError, match="--steps must be at least 2"):
        between(mu[0], mu[1], 1)


def test_identities_of_analogies():
    a, b, c = torch.randn(3, 32, generator=torch.Generator().manual_seed(1))
    assert torch.equal(analogy(a, a, c), c)  # nothing changes
    assert torch.equal(analogy(a, b, a), b)  # what is to a as b is to a
    assert torch.equal(analogy(a, b, c, degree=0.0), c)
    assert torch.allclose(analogy(a, b, c) + analogy(b, a, c), 2 * c, atol=1e-6)


def test_encoding_is_the_same_in_any_batch(run):
    texts = given_texts(run, TEXTS, "--text")
    whole, single = (encoded(run, texts, batch_texts=size) for size in (3, 1))
    for a, b in zip(whole, single, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_draws_of_the_prior_do_not_depend_on_their_number():
    few, many = prior_draws(2, 6, seed=5), prior_draws(400, 6, seed=5)
    assert torch.equal(few, many[:2])
    assert many.mean().abs() < 0.1
    assert many.var() == pytest.approx(1.0, abs=0.1)


def test_words_are_not_drawn_with_the_numbers_of_their_vector():
    """Any seed that a recipe may have; both streams are repeatable."""
    for seed in (0, 5, 2**63 - 1):
        vectors_N6 = prior_draws(3, 6, seed)
        assert torch.equal(vectors_N6, prior_draws(3, 6, seed))
        of_words = torch.stack([torch.randn(6, generator=g) for g in generators_of(seed, range(3))])
        assert not torch.isclose(vectors_N6, of_words).any()


def test_shorter_texts_than_asked_for_are_said(run, caplog):
    with caplog.at_level("INFO"):
        (one,) = decoded(run, torch.zeros(1, 6), WriteSettings(max_tokens=100))
    assert len(one.ids) <= run.source_tokens - 2 == 62
    assert "up to 62 tokens instead of --max_tokens 100" in caplog.text
    caplog.clear()
    decoded(run, torch.zeros(1, 6), WriteSettings(max_tokens=5))
    assert "instead of" not in caplog.text


def test_vectors_are_read_back():
    rows = [[1.0, 2.0], [3.0, 4.0]]
    assert vectors(rows, "F").tolist() == rows
    assert vectors({"texts": [{"z": rows[0], "text": "x"}]}, "F").tolist() == rows[:1]
    for wrong in ([[1.0], [1.0, 2.0]], [], "text", {"a": 1}, [["x"]], [[float("nan")]], 3, None):
        with pytest.raises(ValueError, match="F holds no vectors"):
            vectors(wrong, "F")


def test_vectors_of_another_size_are_refused(run):
    with pytest.raises(ValueError, match=r"must have 6 numbers each, .* got 2 x 5"):
        decoded(run, torch.zeros(2, 5), WriteSettings())
