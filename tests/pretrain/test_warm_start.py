"""--init-from: the weights of another run, everything else anew, on any ranks and ZeRO stage."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from data_pipeline.packing.loader import Position, training_batches
from data_pipeline.storage.shards import open_shards
from pretrain.evaluate.likelihood import nats_per_target
from pretrain.filling.generate import load_run
from pretrain.handing_over.export import export
from pretrain.handing_over.exported import load
from pretrain.handing_over.warm_start import check_source, open_source
from pretrain.objectives.glm import GlmObjective
from pretrain.settings.cli import parse_train

DEBUG = str(Path(__file__).parents[2] / "launch" / "recipes" / "debug.yaml")
WORKER = str(Path(__file__).parent / "train_cases.py")

# name -> (ranks, ZeRO stage, what it begins with, in the folder of the runs)
CASES = {
    "one_rank_stage0": (1, 0, "source"),
    "one_rank_stage3": (1, 3, "source/checkpoints/step-00000004"),
    "two_ranks_stage1": (2, 1, "source"),
    "two_ranks_stage3": (2, 3, "handed_over"),
    "with_a_latent_space": (2, 3, "source"),
}
LATENT = ["--objectives.glm_vae.weight=1", "--model.lora_rank=2"]


def arguments(folder: Path, shards: Path, name: str, ranks: int, stage: int, **more) -> list[str]:
    settings = folder / f"stage{stage}.json"
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
    settings.write_text(json.dumps({"zero_optimization": zero}))
    flags = {
        "config": DEBUG,
        "name": name,
        "runs": str(folder),
        "data.shards": str(shards),
        "batch.global_rows": 8,
        "batch.micro_rows": 8 // ranks,
        "model.dropout_prob": 0.0,
        "evaluation.every_steps": 0,
        "checkpoints.every_steps": 0,
        "deepspeed_config": str(settings),
    }
    return [f"--{key}={value}" for key, value in (flags | more).items()]


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, shards: Path, run_ranks: Callable[..., list[int]]
) -> Path:
    """A source of four updates, its export, and a run of two updates for each case."""
    folder = tmp_path_factory.mktemp("warm")
    source = arguments(folder, shards, "source", 1, 0, steps=4)
    source += ["--optimizer.lr=0.01", "--schedule.warmup_ratio=0"]
    for world_size in (1, 2):
        names = [name for name, case in CASES.items() if case[0] == world_size]
        argv = [source] if world_size == 1 else []
        for name in names:
            ranks, stage, begin = CASES[name]
            argv.append(arguments(folder, shards, name, ranks, stage, steps=2))
            argv[-1] += ["--schedule.warmup_ratio=1", f"--init-from={folder / begin}"]
            argv[-1] += LATENT if name == "with_a_latent_space" else []
        cases = folder / f"cases{world_size}.json"
        cases.write_text(json.dumps(argv))
        run_ranks(world_size, [WORKER, str(cases)], folder / f"log{world_size}")
        if world_size == 1:
            export(folder / "source", folder / "handed_over")
    return folder


def scalars(run: Path, tag: str) -> list[float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row[tag] for row in rows if tag in row]


@pytest.mark.ranks
@pytest.mark.parametrize("name", CASES)
def test_the_first_loss_is_that_of_the_source(name: str, runs: Path, shards: Path) -> None:
    """Of the first rows of the data, which are read anew; computed here by the source's model."""
    config, _ = parse_train(arguments(runs, shards, "source", 1, 0, steps=4))
    source, data = load_run(runs / "source"), open_shards(shards)
    packing = config.data.packing
    objective = GlmObjective(config.objectives.glm.blanks)
    transform = objective.transform(
        data.special, source_tokens=packing.source_tokens, vocab_size=data.vocab_size
    )
    batches = training_batches(
        data.splits["train"], transform, packing, seed=config.seed, rank=0, world_size=1,
        micro_rows=8, accumulation=1, start=Position(0, 0, 0), num_workers=0,
    )  # fmt: skip
    nats = nats_per_target(source.backbone, [next(iter(batches))], end_id=data.special.eop)
    first = scalars(runs / name, "loss/glm_total_nats")[0]
    assert first == pytest.approx(nats["total"].mean, rel=1e-5)
    drawn = scalars(runs / "source", "loss/total_nats")[0]
    assert abs(first - drawn) > 0.05


@pytest.mark.ranks
@pytest.mark.parametrize("name", CASES)
def test_step_and_schedule_begin_anew(name: str, runs: Path) -> None:
    # What follows the two updates is the evaluation, of a latent space too.
    assert scalars(runs / name, "step")[:3] == [1, 2, 2]
    assert scalars(runs / name, "optimizer/learning_rate") == [0.0, pytest.approx(5e-4)]


@pytest.mark.ranks
def test_what_the_source_lacks_begins_as_drawn_and_is_said(runs: Path, tmp_path: Path) -> None:
    log = (runs / "with_a_latent_space" / "logs" / "rank-0.log").read_text()
    said = [line for line in log.splitlines() if "begins as it is drawn" in line]
    assert [line.partition("drawn: ")[2] for line in said] == [
        "lora (4 weights)", "parts.glm_vae (5 weights)"
    ]  # fmt: skip
    back = open_source(str(runs / "with_a_latent_space"), None, tmp_path)
    plain = open_source(str(runs / "source"), None, tmp_path).weights.shapes
    check_source(back, plain, None)
    part = {n: s for n, s in back.weights.shapes.items() if n.endswith(".posterior.weight")}
    with pytest.raises(ValueError, match=r"unknown: parts.glm_vae"):
        check_source(back, plain | part, None)
    shapes = {"parts.lstm_vae.head.weight": (2, 2)}  # of a model without a backbone
    without: Any = SimpleNamespace(path="lstm", weights=SimpleNamespace(shapes=shapes))
    with pytest.raises(ValueError, match="no weight that this recipe's model has"):
        check_source(without, plain, None)


@pytest.mark.ranks
def test_an_export_of_two_ranks_at_stage_3_is_the_model(runs: Path) -> None:
    export(runs / "two_ranks_stage3", runs / "exported", step=2)
    one = load(runs / "exported").backbone.state_dict()
    other = load_run(runs / "one_rank_stage0").backbone.state_dict()
    assert one.keys() == other.keys()
    for name, weight in one.items():
        assert torch.allclose(weight, other[name], atol=1e-5), name
    card = (runs / "exported" / "README.md").read_text()
    assert "beginning with the weights of handed_over." in card


@pytest.mark.ranks
def test_what_contradicts_itself_is_refused(runs: Path, tmp_path: Path) -> None:
    checkpoints = runs / "source" / "checkpoints"
    source = str(runs / "source")
    with pytest.raises(ValueError, match=r"begins anew, --resume auto goes on .* holds 1\)"):
        open_source(source, "auto", checkpoints)
    with pytest.raises(ValueError, match=r"begins anew, --resume some/path goes on"):
        open_source(source, "some/path", tmp_path)
    open_source(source, "auto", tmp_path)
    open_source(source, None, tmp_path)


@pytest.mark.ranks
def test_another_model_or_vocabulary_is_refused(runs: Path, tmp_path: Path) -> None:
    source = open_source(str(runs / "handed_over"), None, tmp_path)
    shapes = dict(source.weights.shapes)
    check_source(source, shapes, source.tokenizer_fingerprint)
    check_source(source, shapes, None)
    with pytest.raises(ValueError, match="another tokenizer than the shards"):
        check_source(source, shapes, "0")
    bias = shapes.pop("backbone.final_norm.bias")
    shapes["backbone.final_norm.gain"] = bias
    shapes["backbone.final_norm.weight"] = (7,)
    with pytest.raises(ValueError) as refused:
        check_source(source, shapes, None)
    assert (
        "1 missing: backbone.final_norm.gain; 1 unknown: backbone.final_norm.bias; "
        "1 of other sizes: backbone.final_norm.weight is 32 instead of 7."
    ) in str(refused.value)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no weights"):
        open_source(str(tmp_path), None, tmp_path)
