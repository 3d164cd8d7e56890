"""What a run's first window becomes, in words: the numbers of its own plan."""

import numpy as np

from data_pipeline.memory import MemorySplit
from data_pipeline.packing.plan import PackingConfig, plan_window
from data_pipeline.padding import first_window_lines
from data_pipeline.tokenizing.special import SPECIALS, SpecialIds
from data_pipeline.transforms.blank import BlankConfig, BlankTransform

SPECIAL = SpecialIds(**{name: number for number, name in enumerate(SPECIALS)})


def test_the_first_window_of_a_run_is_told_in_lines():
    split = MemorySplit.from_documents([np.full(n, 50) for n in range(1, 60)])
    packing = PackingConfig(source_tokens=32, row_tokens=40)
    transform = BlankTransform(BlankConfig(), SPECIAL, source_tokens=32, vocab_size=60)
    report = plan_window(split, transform, packing, seed=7, epoch=0, window=0).report
    lines = first_window_lines(split, transform, packing, seed=7)
    assert lines[0] == (
        f"rows of 40 tokens: {1 - report.nonpadding_ratio:.2%} padding "
        f"({report.num_rows} rows of 59 documents, the first of 1 windows)"
    )
    assert lines[1] == (
        f"cut: {report.documents_long} documents longer than 32 tokens, "
        f"{report.documents_cut_to_fill} to fill rows"
    )
    assert f"spans: {report.counts['spans']}" in lines
    assert f"targets: {report.counts['targets_token']} token" in lines
