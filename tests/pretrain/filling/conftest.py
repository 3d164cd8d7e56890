"""A vocabulary of letters as words, and a small model that knows the alphabet."""

import numpy as np
import pytest
import torch

from data_pipeline.rows import Rows
from data_pipeline.tokenizing.special import SPECIAL_TEXT, SPECIALS, SpecialIds
from data_pipeline.transforms.blank import BlankConfig, BlankTransform, plan_from_spans
from pretrain.filling.rows import WrittenText, blank_rows, transform_of
from pretrain.filling.unpacked import hidden_states, unpacked
from pretrain.models.backbone import Backbone
from pretrain.models.shape import BackboneShape

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class WordTokenizer:
    """The calls of data_pipeline.tokenizing.tokenizer.Tokenizer that filling and scoring make.

    Every letter between spaces is a token that carries the space on its left.
    """

    vocab_size = len(LETTERS) + len(SPECIALS)
    special = SpecialIds(**{name: len(LETTERS) + number for number, name in enumerate(SPECIALS)})

    def encode(self, texts):
        return [np.array([LETTERS.index(w) for w in text.split()], np.int32) for text in texts]

    def encode_continuation(self, text):
        return self.encode([text])[0]

    def pieces(self, ids):
        names = [*LETTERS, *(SPECIAL_TEXT[name] for name in SPECIALS)]
        return [names[i] for i in ids]

    def decode(self, ids):
        return " ".join(self.pieces(ids))


@pytest.fixture(scope="session")
def words() -> WordTokenizer:
    return WordTokenizer()


def new_backbone(seed: int = 0) -> Backbone:
    shape = BackboneShape(
        num_layers=2, hidden_size=48, num_heads=4, dropout_prob=0.0, attention_dropout_prob=0.0
    )
    generator = torch.Generator().manual_seed(seed)
    return Backbone(shape, vocab_size=128, num_positions=33, generator=generator)


@pytest.fixture
def untrained() -> Backbone:
    """Random weights, wide enough that the next token is no toss-up."""
    backbone = new_backbone()
    with torch.no_grad():
        for parameter in backbone.parameters():
            if parameter.ndim == 2:
                parameter.mul_(12)
    return backbone.eval()


def alphabet_rows(rng: np.random.Generator, transform: BlankTransform, *, suffix: bool) -> Rows:
    """24 stretches of the alphabet, blanked inside; or its end, from some letter on."""
    if suffix:
        starts = rng.integers(10, 21, size=24)
        plan = plan_from_spans(
            [[(int(rng.integers(3, 5)), 28 - int(start))] for start in starts],
            source_lengths=[28 - int(start) for start in starts],
            ends_document=[True] * 24,
            kind="document",
            suffix=True,
        )
        return transform.build(np.concatenate([np.arange(start, 26) for start in starts]), plan)
    texts = []
    for start, length in zip(rng.integers(0, 14, 24), rng.integers(8, 13, 24)):
        ids = np.arange(start, start + length)
        first, second = (1 + rng.integers(2), 1 + rng.integers(2))
        cut = 2 + first
        segments = (ids[:2], ids[cut : cut + 2], ids[cut + 2 + second :])
        contents = (ids[2:cut], ids[cut + 2 : cut + 2 + second])
        texts.append(WrittenText(segments, ("mask", "mask"), contents, True))
    return blank_rows(transform, texts)


@pytest.fixture(scope="session")
def alphabet(words: WordTokenizer) -> Backbone:
    """A small model that knows which letters of the alphabet are missing, and how it ends."""
    backbone = new_backbone()
    rng = np.random.default_rng(0)
    transform = transform_of(backbone, words, BlankConfig())
    optimizer = torch.optim.AdamW(backbone.parameters(), lr=3e-3, fused=True)
    for step in range(280):
        packed = unpacked(alphabet_rows(rng, transform, suffix=step % 2 == 0))
        has_target = torch.from_numpy(packed.weights > 0)
        logits = backbone.logits(hidden_states(backbone, packed)[has_target])
        targets = torch.from_numpy(packed.targets).long()[has_target]
        loss = torch.nn.functional.cross_entropy(logits, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return backbone.eval()
