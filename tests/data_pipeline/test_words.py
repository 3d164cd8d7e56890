"""Words told from pieces are those between spaces, with every kind of tokenizer."""

from pathlib import Path

import pytest

from data_pipeline.tokenizing.tokenizer import open_tokenizer
from data_pipeline.tokenizing.words import word_table


@pytest.mark.parametrize("kind", ["model_file", "byte_bpe_folder", "wordpiece_folder"])
def test_the_words_of_a_text_are_counted(
    kind: str, corpus_file: Path, request: pytest.FixtureRequest
) -> None:
    tokenizer = open_tokenizer(request.getfixturevalue(kind))
    counted = word_table(tokenizer)
    texts = corpus_file.read_text(encoding="utf-8").splitlines()[:40]
    for text, ids in zip(texts, tokenizer.encode(texts), strict=True):
        words = len(text.split())
        if kind == "wordpiece_folder":  # punctuation is cut off, and is a word here
            words += sum(not c.isalnum() and not c.isspace() for c in text)
        # GPT-2 puts no mark on the first piece; whoever counts a text adds it.
        first = int(not counted[ids[0]])
        assert counted[ids].sum() + first == words, text
    assert counted[tokenizer.special.eos] and not counted[tokenizer.special.cls]
