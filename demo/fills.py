"""Blanks in held-out sentences: what the model writes, and what it thinks of the truth.

One word of a sentence is blanked, a word that is a single token, so that its probability and rank
are those of the whole blank.
Sentences and words are chosen by position alone, not by how well they go.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from data_pipeline.storage.shards import Split
from data_pipeline.tokenizing.tokenizer import Tokenizer
from data_pipeline.transforms.blank import BlankConfig
from demo.ngram import Unigram
from pretrain.filling.generate import fill
from pretrain.filling.rows import WrittenText, blank_rows, transform_of, usable_ids
from pretrain.filling.text import parse
from pretrain.filling.unpacked import hidden_states, unpacked
from pretrain.models.backbone import Backbone

SENTENCE_TOKENS = range(14, 41)
NUM_CANDIDATES = 3
_WORD = re.compile(r"(?<=\s)[A-Za-z]{4,}\b")


@dataclass(frozen=True)
class BlankedSentence:
    """A sentence with one word taken out."""

    text: str  # with [MASK] in the word's place
    truth: str
    truth_id: int


@dataclass(frozen=True)
class ShownBlank:
    """A filled sentence, with what the model and the unigram think of the truth."""

    text: str
    filled: str
    truth: str
    truth_prob: float
    truth_rank: int  # 1 is the most probable
    truth_unigram_prob: float
    candidates: list[tuple[str, float]]  # the most probable tokens with their probabilities


def held_out_sentences(split: Split, tokenizer: Tokenizer, count: int) -> list[BlankedSentence]:
    """`count` sentences with a blank, from documents spread evenly over the split."""
    every = max(1, split.num_documents // count)
    found = []
    for document in [*range(0, split.num_documents, every), *range(split.num_documents)]:
        if len(found) == count:
            break
        sentence = next(_blanked(split, tokenizer, document), None)
        if sentence is not None and sentence not in found:
            found.append(sentence)
    return found


def _blanked(split: Split, tokenizer: Tokenizer, document: int) -> Iterator[BlankedSentence]:
    """Sentences of a document, from its middle on, each with a suitable word taken out."""
    ends = split.sentence_ends([document])[0]
    starts = np.concatenate([[0], ends[:-1]])
    middle = len(ends) // 2
    for start, stop in list(zip(starts, ends, strict=True))[middle:]:
        if stop - start not in SENTENCE_TOKENS:
            continue
        text = tokenizer.decode(split.tokens([document], [start], [stop])).strip()
        words = list(_WORD.finditer(text))
        for word in words[len(words) // 2 :]:
            blanked = f"{text[: word.start()]}[MASK]{text[word.end() :]}"
            truth_ids = parse(blanked, tokenizer).encode_truth(0, word.group(), tokenizer)
            if len(truth_ids) == 1:
                yield BlankedSentence(blanked, word.group(), int(truth_ids[0]))
                break


def shown_blanks(
    backbone: Backbone,
    tokenizer: Tokenizer,
    blanks: BlankConfig,
    sentences: list[BlankedSentence],
    unigram: Unigram,
) -> list[ShownBlank]:
    """The sentences, filled greedily, each with the model's probabilities of its first token."""
    filled = fill(backbone, tokenizer, [s.text for s in sentences], blanks=blanks)
    probs_NV = first_token_probs(backbone, tokenizer, blanks, sentences)
    shown = []
    for sentence, result, probs_V in zip(sentences, filled, probs_NV, strict=True):
        best = np.argsort(-probs_V)[:NUM_CANDIDATES]
        truth_prob = float(probs_V[sentence.truth_id])
        shown.append(
            ShownBlank(
                text=sentence.text,
                filled=result.filled,
                truth=sentence.truth,
                truth_prob=truth_prob,
                truth_rank=1 + int((probs_V > truth_prob).sum()),
                truth_unigram_prob=float(np.exp(-unigram.nats_V[sentence.truth_id])),
                candidates=[(tokenizer.decode([i]).strip(), float(probs_V[i])) for i in best],
            )
        )
    return shown


def first_token_probs(
    backbone: Backbone,
    tokenizer: Tokenizer,
    blanks: BlankConfig,
    sentences: list[BlankedSentence],
) -> np.ndarray:
    """Probabilities of the first token of each blank, among tokens that may stand there: (N, V)."""
    written = []
    for sentence in sentences:
        parsed = parse(sentence.text, tokenizer)
        written.append(
            WrittenText(
                segments=parsed.segments,
                marks=parsed.marks,
                contents=[np.array([sentence.truth_id])],
                ends_document=False,
            )
        )
    packed = unpacked(blank_rows(transform_of(backbone, tokenizer, blanks), written))
    at_sop_N = (packed.ids == tokenizer.special.sop).argmax(axis=1)
    with torch.inference_mode():
        hidden_BTD = hidden_states(backbone, packed)
        logits_NV = backbone.logits(hidden_BTD[torch.arange(len(written)), at_sop_N]).float()
        logits_NV[:, ~usable_ids(backbone, tokenizer)] = -torch.inf
        return logits_NV.softmax(dim=-1).double().cpu().numpy()
