"""Tokens a second that a model writes, ours with its cache beside `generate` of transformers.

Both read a prompt and write as many tokens greedily, none of which may end the text: ours fills a
[gMASK] at the end of a text with `Writer`, as `palimpsest fill` does.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch

from bench.peers import gpt2
from bench.sizes import SIZES, Size
from bench.table import Row, rate_row
from bench.texts import InventedTokenizer
from bench.timing import take_turns
from data_pipeline.tokenizing.tokenizer import Tokenizer
from data_pipeline.transforms.blank import BlankConfig
from pretrain.filling.draft import Draft
from pretrain.filling.fill import Writer
from pretrain.filling.sampling import FillSettings
from pretrain.models.backbone import lay_out_for_decoding

PROMPT_TOKENS, WRITTEN_TOKENS = 128, 64
BATCHES = (1, 16)
ROUNDS = {"S": 5, "B": 3}


def decoding_rows(name: str, quick: bool) -> list[Row]:
    """Rows of size `name` for a batch of 1 and of 16 texts."""
    size, written = SIZES[name], 16 if quick else WRITTEN_TOKENS
    size = replace(size, row_tokens=max(size.row_tokens, PROMPT_TOKENS + WRITTEN_TOKENS + 8))
    rng = np.random.default_rng(5)
    rows = []
    for num_texts in BATCHES:
        prompts = rng.integers(0, size.vocab_size - 100, (num_texts, PROMPT_TOKENS), np.int32)
        contestants = {
            "ours": _ours(size, prompts, written),
            "GPT-2": _generate(size, prompts, written),
        }
        times = take_turns(contestants, rounds=2 if quick else ROUNDS[name])
        work = float(num_texts * written)
        row = rate_row(
            f"decode_{name}_batch_{num_texts}",
            "transformers GPT-2 generate",
            (times["ours"], times["GPT-2"]),
            (work, work),
            "tokens/s",
            1.0,
        )
        rows.append(row)
    return rows


def _ours(size: Size, prompts: np.ndarray, written: int) -> Callable[[], None]:
    settings = FillSettings(max_tokens=written, min_tokens=written)
    tokenizer = cast(Tokenizer, InventedTokenizer(size.vocab_size))
    backbone = size.backbone().eval()
    lay_out_for_decoding(backbone)  # as pretrain/handing_over/trained.py opens it
    writer = Writer(backbone, tokenizer, settings, BlankConfig(), None)

    @torch.no_grad()
    def run() -> None:
        # CLS and the [gMASK] are read too: the prompt is shorter by them and sop.
        texts = [[prompt[3:], np.zeros(0, np.int32)] for prompt in prompts]
        generator = torch.Generator()
        drafts = [Draft(text, ["gmask"], generator, is_suffix=True) for text in texts]
        writer.write(drafts)
        assert all(len(draft.current) == written for draft in drafts)

    return run


def _generate(size: Size, prompts: np.ndarray, written: int) -> Callable[[], None]:
    model: Any = gpt2(size).eval()
    ids_NT = torch.from_numpy(prompts).long()

    def run() -> None:
        out = model.generate(
            ids_NT,
            attention_mask=torch.ones_like(ids_NT),
            max_new_tokens=written,
            min_new_tokens=written,
            do_sample=False,
            pad_token_id=0,
        )
        assert out.shape[1] == ids_NT.shape[1] + written

    return run
