"""The data path on one core: planning, whole rows in every mode, reading shards, tokenizing.

Rates without a peer stand beside the rate that is wanted, under the peer's name "goal". Tokens are
positions of packed rows that are no padding. The whole path is order, cut, draw, packing, reading
and building, a window of some 3 million tokens at a time, 16 rows a batch.
"""

import os
import random
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from bench.table import Row, rate_row
from bench.texts import invented_split, lognormal_lengths, special_ids
from bench.timing import Times, take_turns
from data_pipeline import ragged
from data_pipeline.memory import MemorySplit
from data_pipeline.packing.order import window_documents
from data_pipeline.packing.plan import PackingConfig, WindowPlan, plan_window
from data_pipeline.preparing.prepare import PrepareSettings, prepare
from data_pipeline.preparing.train_tokenizer import TokenizerSettings, train_tokenizer
from data_pipeline.storage.shards import Split, open_shards
from data_pipeline.tokenizing.tokenizer import open_tokenizer
from data_pipeline.transforms.blank import BlankConfig, BlankTransform

VOCAB_SIZE = 30592
# name -> median and sigma of the lengths, T, the non-padding wanted, whether the path is timed too
DOCUMENTS = {
    "512": (512.0, 0.1, 1152, None),
    "30": (30.0, 0.3, 1152, 0.99),
    "lognormal_411_1": (411.0, 1.0, 1152, 0.99),
    "lognormal_512_03": (512.0, 0.3, 1152, 0.97),
    "lognormal_512_03_T576": (512.0, 0.3, 576, 0.97),
}
TIMED = ("512", "30", "lognormal_411_1")
PLAN_GOAL, PATH_GOAL = 30e6, 8e6  # tokens/s
ALL_MODES = BlankConfig(token_prob=0.4, sentence_prob=0.3, document_prob=0.3, block_mask_prob=0.1)
BATCH_ROWS = 16


def data_rows(quick: bool) -> list[Row]:
    """All rows of the data path."""
    rounds = 3 if quick else 7
    rows = []
    for name, (median, sigma, row_tokens, wanted) in DOCUMENTS.items():
        split = invented_split(lognormal_lengths(3_000_000, median, sigma), VOCAB_SIZE)
        plan = _planner(split, row_tokens)
        if name in TIMED:
            rows += _timed(name, plan, rounds)
        if wanted is not None:
            ratio = plan().report.nonpadding_ratio
            rows.append(_beside_goal(f"nonpadding_{name}", ratio, wanted, "of positions"))
    with tempfile.TemporaryDirectory() as folder:
        return rows + _reading_and_tokenizing(Path(folder), rounds)


def _planner(split: MemorySplit, row_tokens: int) -> Callable[[], WindowPlan]:
    packing = PackingConfig(source_tokens=512, row_tokens=row_tokens)
    special = special_ids(VOCAB_SIZE)
    transform = BlankTransform(ALL_MODES, special, source_tokens=512, vocab_size=VOCAB_SIZE)
    return lambda: plan_window(split, transform, packing, seed=1, epoch=0, window=0)


def _timed(name: str, plan: Callable[[], WindowPlan], rounds: int) -> list[Row]:
    def path() -> None:
        window = plan()
        for first in range(0, window.num_rows, BATCH_ROWS):
            window.build(np.arange(first, min(first + BATCH_ROWS, window.num_rows)))

    times = take_turns({"plan": plan, "path": path}, rounds=rounds)
    tokens = float(plan().report.tokens)
    return [
        _rate_beside_goal(f"plan_{name}", times["plan"], tokens, PLAN_GOAL),
        _rate_beside_goal(f"data_path_{name}", times["path"], tokens, PATH_GOAL),
    ]


def _reading_and_tokenizing(folder: Path, rounds: int) -> list[Row]:
    texts = invented_texts(6000)
    corpus, model = folder / "corpus.txt", folder / "tokenizer.model"
    corpus.write_text("\n".join(texts) + "\n", encoding="utf-8")
    train_tokenizer(TokenizerSettings(input=[str(corpus)], output=str(model), vocab_size=2000))
    prepare(
        PrepareSettings(input=[str(corpus)], tokenizer=str(model), output=str(folder / "shards"))
    )
    return [
        *_reading(open_shards(folder / "shards").splits["train"], folder, rounds),
        *_tokenizing(texts, model, rounds),
        _tokenizing_on_all_cores(texts * 5, model, rounds),
    ]


def _reading(split: Split, folder: Path, rounds: int) -> list[Row]:
    """Every document once in the order of training, beside slices of a view in the same order.

    And beside one copy of the whole file, which has no order: a bound that explains.
    """
    order_N = window_documents(split.num_documents, 1, seed=1, epoch=0, window=0)
    lengths_N = split.lengths(order_N)
    starts_N = np.zeros_like(order_N)
    file = folder / "shards" / "train" / "00000.tokens"
    view = np.memmap(file, np.uint16, "r").view(np.ndarray)
    assert len(view) == split.num_tokens
    bounds_N1 = ragged.offsets(split.lengths(np.arange(split.num_documents)))
    stretches = list(zip(bounds_N1[order_N].tolist(), bounds_N1[order_N + 1].tolist()))

    def copied() -> NDArray[np.int32]:
        target, place = np.empty(len(view), np.int32), 0
        for begin, end in stretches:
            target[place : place + end - begin] = view[begin:end]
            place += end - begin
        return target

    assert np.array_equal(copied(), split.tokens(order_N, starts_N, lengths_N))
    times = take_turns(
        {
            "ours": lambda: split.tokens(order_N, starts_N, lengths_N),
            "in order": copied,
            "whole": lambda: view.astype(np.int32),
        },
        rounds=20 * rounds,
    )
    tokens = float(split.num_tokens)
    return [
        rate_row(
            bench,
            f"numpy view copied {peer}",
            (times["ours"], times[peer]),
            (tokens, tokens),
            "tokens/s",
            goal,
        )
        for bench, peer, goal in (("read", "in order", 0.5), ("read_beside_copy", "whole", None))
    ]


def _tokenizing(texts: list[str], model: Path, rounds: int) -> list[Row]:
    """Ids of all texts in one call, and with where each token ends, as prepare asks for them."""
    ours, library = open_tokenizer(str(model)), sentencepiece.SentencePieceProcessor(str(model))
    times = take_turns(
        {
            "ours": lambda: ours.encode(texts),
            "offsets": lambda: ours.encode_with_offsets(texts),
            "library": lambda: library.encode(texts),
        },
        rounds=rounds,
    )
    work = float(sum(map(len, texts)))
    return [
        rate_row(
            bench,
            "sentencepiece, one call for all",
            (times[part], times["library"]),
            (work, work),
            "characters/s",
            goal,
        )
        for bench, part, goal in (("tokenize", "ours", None), ("tokenize_offsets", "offsets", 0.95))
    ]


def _tokenizing_on_all_cores(texts: list[str], model: Path, rounds: int) -> Row:
    """Ids and where each token ends, a process for each core as prepare has them, beside the
    library's own threads. CPU time is that of other processes, and not compared."""
    ours, library = open_tokenizer(str(model)), sentencepiece.SentencePieceProcessor(str(model))
    num_cores = len(os.sched_getaffinity(0))
    shares = [texts[core::num_cores] for core in range(num_cores)]
    times = take_turns(
        {
            "ours": lambda: _in_processes([partial(ours.encode_with_offsets, s) for s in shares]),
            "library": lambda: library.encode(texts, num_threads=num_cores),
        },
        rounds=rounds,
    )
    work = float(sum(map(len, texts)))
    return replace(
        rate_row(
            "tokenize_all_cores",
            f"sentencepiece, {num_cores} threads",
            (times["ours"], times["library"]),
            (work, work),
            "characters/s",
            0.95,
        ),
        ratio_of_cpu=None,
    )


def _in_processes(calls: list[Callable[[], object]]) -> None:
    """Each call in a process of its own, all at once."""
    children = []
    for call in calls:
        if not (child := os.fork()):
            code = 1
            try:
                call()
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitpid(child, 0)[1] for child in children]
    assert not any(codes), codes


def invented_texts(count: int) -> list[str]:
    """Texts of some 150 words that follow one another as in a language with 3000 words."""
    rng = random.Random(9)
    syllables = [c + v for c in "bdfgklmnprst" for v in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(3000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]

    def sentence() -> str:
        return " ".join(rng.choices(words, weights, k=rng.randint(5, 20))).capitalize() + "."

    return [" ".join(sentence() for _ in range(12)) for _ in range(count)]


def _rate_beside_goal(bench: str, times: Times, work: float, goal: float) -> Row:
    return Row(
        bench=bench,
        ours=work / times.median_s,
        peer="goal",
        peer_value=goal,
        unit="tokens/s",
        goal=1.0,
        ratio_of_least=work / times.least_s / goal,
        ratio_of_cpu=work / times.median_cpu_s / goal,
    )


def _beside_goal(bench: str, ours: float, goal: float, unit: str) -> Row:
    return Row(bench=bench, ours=ours, peer="goal", peer_value=goal, unit=unit, goal=1.0)
