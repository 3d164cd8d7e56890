"""Two ranks under ZeRO-3 show texts and the projector in TensorBoard; training goes on the same."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

WORKER = str(Path(__file__).parents[1] / "train_cases.py")
SHOWN = ["optimus", "adavae", "glm_vae", "lstm_vae"]

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory,
    shards: Path,
    run_ranks: Callable[..., list[int]],
    model_flags: dict[str, list[str]],
    debug_recipe: str,
) -> Path:
    """Folder of four runs that show their latent space at steps 2 and 4, and one that does not."""
    folder = tmp_path_factory.mktemp("live")
    settings = folder / "stage3.json"
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0}
    settings.write_text(json.dumps({"zero_optimization": zero}))
    common = [
        f"--config={debug_recipe}", f"--runs={folder}", f"--data.shards={shards}", "--steps=4",
        "--batch.global_rows=8", "--batch.micro_rows=4", "--evaluation.every_steps=2",
        "--evaluation.max_rows=8", "--checkpoints.every_steps=0", f"--deepspeed_config={settings}",
    ]  # fmt: skip
    cases = [
        [*common, f"--name={name}", *model_flags[name], "--evaluation.latent_texts=2"]
        for name in SHOWN
    ]
    hidden = [*common, "--name=hidden", *model_flags["glm_vae"], "--evaluation.latent_texts=0"]
    (folder / "cases.json").write_text(json.dumps([*cases, hidden]))
    run_ranks(2, [WORKER, str(folder / "cases.json")], folder / "log", timeout_s=600)
    return folder


def text_of(run: Path, tag: str) -> dict[int, str]:
    """Markdown by step."""
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"tensors": 0})
    events.Reload()
    return {
        event.step: event.tensor_proto.string_val[0].decode()
        for event in events.Tensors(f"{tag}/text_summary")
    }


@pytest.mark.parametrize("name", SHOWN)
def test_texts_are_written_again_and_drawn_from_the_prior(trained: Path, name: str) -> None:
    again = text_of(trained / name, f"samples/{name}_reconstructions")
    assert list(again) == [2, 4]
    assert all(len(text.splitlines()) == 2 and "→ **" in text for text in again.values())
    prior = text_of(trained / name, f"samples/{name}_prior")
    assert [len(text.splitlines()) for text in prior.values()] == [2, 2]


@pytest.mark.parametrize("name", SHOWN)
def test_held_out_texts_lie_in_the_projector(trained: Path, name: str) -> None:
    (vectors,) = (trained / name / "tensorboard").glob("00004/*/tensors.tsv")
    rows = vectors.read_text().splitlines()
    labels = (vectors.parent / "metadata.tsv").read_text().splitlines()
    assert len(rows) == len(labels) > 20
    assert {len(row.split("\t")) for row in rows} == {6}


def test_showing_them_changes_no_step(trained: Path) -> None:
    def losses(name: str) -> list[float]:
        lines = (trained / name / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        return [row["loss/total_nats"] for row in rows if "loss/total_nats" in row]

    assert len(losses("glm_vae")) == 4
    assert losses("glm_vae") == losses("hidden")
