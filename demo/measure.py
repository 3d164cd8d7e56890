"""What the demo measures on a trained run: only this file, and what it calls, needs torch."""

from pathlib import Path
from typing import Any

from data_pipeline.storage.shards import open_shards
from demo.curves import draw_curves
from demo.fills import held_out_sentences, shown_blanks
from demo.heldout import compare, training_tokens
from demo.ngram import count_unigram
from demo.report import read_steps, summary
from pretrain.filling.generate import load_run
from pretrain.recording.run_folder import RunFolder
from pretrain.settings.cli import config_from_yaml

CURVES = "curves.png"


def measured_report(
    run: Path, shards_folder: Path, corpus: str, num_sentences: int
) -> dict[str, Any]:
    """The report of a run folder and the shards it was trained on; draws RUN/curves.png too."""
    draw_curves(RunFolder(run).metrics, run / CURVES)
    trained = load_run(run)
    backbone, tokenizer, blanks = trained.backbone.to("cpu"), trained.tokenizer, trained.blanks
    shards = open_shards(shards_folder)
    config = config_from_yaml(RunFolder(run).config)
    comparison = compare(backbone, shards, blanks, config.data.packing, seed=config.seed)
    unigram = count_unigram(training_tokens(shards.splits["train"])[0], shards.vocab_size)
    sentences = held_out_sentences(shards.splits["validation"], tokenizer, num_sentences)
    shown = shown_blanks(backbone, tokenizer, blanks, sentences, unigram)
    return summary(comparison, shown, read_steps(RunFolder(run).metrics), corpus)
