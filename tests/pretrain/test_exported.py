"""export and load: the same weights in any number of files, complete or not there, and checked."""

import json
import subprocess
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from data_pipeline.packing.sequence import Position
from data_pipeline.storage.shards import open_shards
from pretrain.checkpoints import resume
from pretrain.checkpoints.checkpoint_files import (
    FORMAT,
    MANIFEST,
    WEIGHTS,
    Manifest,
    folder_name,
    measure,
)
from pretrain.checkpoints.weights import WeightFiles
from pretrain.filling import generate
from pretrain.handing_over import exported
from pretrain.handing_over.export import ExportSettings, export, planned_shards
from pretrain.handing_over.model_card import model_card
from pretrain.models.backbone import Backbone, num_positions
from pretrain.recording.run_folder import RunFolder
from pretrain.settings.cli import config_from_yaml, parse_train
from pretrain.settings.data_config import CorpusConfig

ROOT = Path(__file__).parents[2]
DEBUG = str(ROOT / "launch" / "recipes" / "debug.yaml")


def write_checkpoint(run: Path, step: int, weights: dict[str, torch.Tensor], state: Any) -> None:
    """What checkpoint.py leaves behind, without DeepSpeed's own files."""
    folder = run / "checkpoints" / folder_name(step)
    folder.mkdir(parents=True)
    safetensors.torch.save_file(weights, folder / WEIGHTS)
    files = {WEIGHTS: measure(folder / WEIGHTS)}
    manifest = Manifest(FORMAT, step, 1, state, {}, files)
    (folder / MANIFEST).write_text(manifest.text())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, shards: Path) -> Path:
    """A run folder with steps 10 and 20."""
    folder = RunFolder(tmp_path_factory.mktemp("run") / "novel")
    flags = ["--data.shards", str(shards), "--name", "novel"]
    config, _ = parse_train(["--config", DEBUG, *flags])
    folder.path.mkdir()
    folder.describe(config, {})
    data = open_shards(shards)
    data.tokenizer().save(folder.tokenizer)
    fingerprint = data.splits["train"].fingerprint
    state = resume.state(
        resume.identity(config, data_fingerprint=fingerprint, vocab_size=384),
        {"glm": Position(0, 0, 0)},
    )
    for step in (10, 20):
        backbone = Backbone(
            config.model,
            vocab_size=384,
            num_positions=num_positions(config.model, config.data.packing.source_tokens),
            generator=torch.Generator().manual_seed(step),
        )
        weights = {f"backbone.{n}": p.detach() for n, p in backbone.named_parameters()}
        write_checkpoint(folder.path, step, weights, state)
    return folder.path


def weights_of(trained: generate.TrainedRun) -> dict[str, torch.Tensor]:
    return trained.backbone.state_dict()


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, weight in one.items():
        assert torch.equal(weight, other[name]), name


@pytest.mark.parametrize("max_shard_bytes", [1, 20_000, 10**9])
def test_the_weights_come_back_from_any_number_of_files(
    run: Path, tmp_path: Path, max_shard_bytes: int
) -> None:
    export(run, tmp_path / "out", ExportSettings(max_shard_bytes=max_shard_bytes))
    trained = exported.load(tmp_path / "out")
    expected = generate.load_run(run)
    assert_equal(weights_of(trained), weights_of(expected))
    assert trained.blanks == expected.blanks
    assert trained.tokenizer.fingerprint == expected.tokenizer.fingerprint
    files = sorted(p.name for p in (tmp_path / "out").glob("*.safetensors"))
    index = json.loads((tmp_path / "out" / exported.INDEX).read_text())
    assert sorted(set(index["weight_map"].values())) == files
    # 3 tables, 12 weights in each of 2 layers, 2 of the last norm; the largest has 49,152 bytes.
    assert len(files) == {1: 29, 20_000: 8, 10**9: 1}[max_shard_bytes]


def test_generate_reads_both_kinds_of_folder(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export(run, tmp_path / "out", step=10)
    said = []
    for folder, step in ((run, ["--checkpoint", "10"]), (tmp_path / "out", [])):
        generate.main([str(folder), "--text", "the river [MASK] the city.", *step])
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != ""
    with pytest.raises(ValueError, match="is an exported model, it holds one step"):
        generate.main([str(tmp_path / "out"), "--text", "a [MASK]", "--checkpoint", "10"])


def test_bf16_halves_the_files_and_loads_as_fp32(run: Path, tmp_path: Path) -> None:
    for dtype in ("fp32", "bf16"):
        export(run, tmp_path / dtype, ExportSettings(dtype=dtype))
    sizes = {
        dtype: json.loads((tmp_path / dtype / exported.INDEX).read_text())["metadata"]["total_size"]
        for dtype in ("fp32", "bf16")
    }
    assert sizes["fp32"] == 2 * sizes["bf16"]
    half = weights_of(exported.load(tmp_path / "bf16"))
    for name, weight in weights_of(exported.load(tmp_path / "fp32")).items():
        assert half[name].dtype == torch.float32
        assert torch.equal(half[name], weight.bfloat16().float())


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (100, [["a", "b"], ["c"], ["d"]]),
        (40, [["a"], ["b"], ["c"], ["d"]]),
        (10**4, [["a", "b", "c", "d"]]),
    ],
)
def test_shards_are_filled_in_order(limit: int, expected: list[list[str]]) -> None:
    """Bytes: a 40, b 48, c 400, d 4."""
    shapes = {"a": (10,), "b": (3, 4), "c": (100,), "d": (1,)}
    planned = planned_shards(shapes, 4, limit)
    assert [names for _, names in planned] == expected
    assert planned[-1][0] == f"model-{len(planned):05}-of-{len(planned):05}.safetensors"


def test_an_existing_output_is_never_written_into(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="exists already"):
        export(run, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_export_that_fails_leaves_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(safetensors.torch, "save_file", full)
        with pytest.raises(OSError, match="no space"):
            export(run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "left").touch()
    export(run, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert not (tmp_path / "out" / "left").exists()


def test_the_card_says_what_is_known(run: Path, shards: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    train = open_shards(shards).splits["train"]
    assert f"{train.num_documents} documents, {train.num_tokens} tokens of 1 files" in card
    assert "Licence: not stated when the data was prepared" in card
    assert "20 of 20 updates, 8 rows of 144 positions each." in card
    assert "hidden_size: 32" in card
    assert "  glm:\n" in card and "optimus" not in card and "adavae" not in card
    assert f"  shards: {shards.name}\n" in card and str(shards) not in card
    assert "\n\n\n" not in card


def test_the_card_of_several_corpora_has_no_double_blank_line(run: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "out")
    exported_config = exported.read_config(tmp_path / "out")
    config = config_from_yaml(run / "config.yaml")
    several = tuple(CorpusConfig(shards=f"/disk/{n}", weight=1) for n in ("books", "web"))
    card = model_card(
        exported_config,
        replace(config, data=replace(config.data, shards=None, corpora=several)),
        num_parameters=1,
        data_fingerprint="x",
        init_from="/disk/runs/other",
    )
    assert "\n\nCorpus web, weight 1:\n\n" in card and "\n\n\n" not in card
    assert "  - shards: books\n" in card and "/disk" not in card
    assert "beginning with the weights of other." in card


def _flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def _rename_in_config(path: Path) -> None:
    path.write_text(path.read_text().replace("model-00001-of", "../model-00001-of"))


@pytest.mark.parametrize(
    ("file", "spoil", "said"),
    [
        ("model-00001-of-00001.safetensors", _flip, "is missing or not what was exported"),
        ("model-00001-of-00001.safetensors", Path.unlink, "is missing or not what was exported"),
        (exported.CONFIG, _rename_in_config, "lists files that `export` does not write"),
        (
            exported.CONFIG,
            lambda p: p.write_text(p.read_text().replace('"num_layers": 2', '"num_layers": 3')),
            r"not those of its config: 12 missing: backbone.layers.2.attention_norm.weight, ",
        ),
        (
            exported.CONFIG,
            lambda p: p.write_text(p.read_text().replace('"format": 1', '"format": 2')),
            "has format 2, this version reads 1",
        ),
        (
            exported.CONFIG,
            lambda p: p.write_text(p.read_text().replace('"num_layers"', '"num_floors"')),
            "is no config of an exported model: .*num_floors",
        ),
        (exported.INDEX, lambda p: p.write_text("{}"), "names other weights than the files hold"),
        (exported.INDEX, lambda p: p.write_text("{"), "cannot be read"),
    ],
)
def test_damage_is_named(
    run: Path, tmp_path: Path, file: str, spoil: Callable[[Path], Any], said: str
) -> None:
    export(run, tmp_path / "out")
    spoil(tmp_path / "out" / file)
    with pytest.raises(ValueError, match=said):
        exported.load(tmp_path / "out")


def test_one_weight_at_a_time_is_read(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the next weight is read, the one before is gone: the model is held once."""
    export(run, tmp_path / "out")
    before: list[weakref.ref[torch.Tensor]] = []
    read = WeightFiles.tensor

    def tensor(self: WeightFiles, name: str) -> torch.Tensor:
        assert all(reference() is None for reference in before)
        found = read(self, name)
        before.append(weakref.ref(found))
        return found

    monkeypatch.setattr(WeightFiles, "tensor", tensor)
    exported.load(tmp_path / "out")
    assert len(before) == 29


def test_loading_needs_no_deepspeed(run: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "out")
    program = (
        "import sys, pathlib; from pretrain.handing_over.exported import load; "
        f"load(pathlib.Path({str(tmp_path / 'out')!r})); "
        "sys.exit('deepspeed' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["RUN"], "required: --output"),
        (["RUN", "--output", "out", "--dtype", "fp8"], "invalid choice: 'fp8'"),
        (["RUN", "--output", "out", "--max-shard-bytes", "0"], "max_shard_bytes must be at least"),
        (["RUN", "--output", "out", "--checkpoint", "15"], "does not hold step-00000015"),
        (["nowhere", "--output", "out"], "nowhere"),
    ],
)
def test_a_mistake_of_the_command_is_one_message(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], said: str
) -> None:
    from pretrain.handing_over.export import main

    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=said):
        main([str(run) if argument == "RUN" else argument for argument in argv])
    assert list(tmp_path.iterdir()) == []
