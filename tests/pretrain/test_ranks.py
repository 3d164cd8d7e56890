"""The same losses and gradient norms for every number of ranks, ZeRO stage and way to accumulate,
and updates that are skipped.

Every world size is one process group that runs all its cases; documents are packed and row by row
very unequally full of targets (short and long documents, blanks of 15 % to 100 %).
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pretrain.settings.optimizer_config import ScheduleConfig
from pretrain.settings.schedule import learning_rate

pytestmark = pytest.mark.ranks

DEBUG = str(Path(__file__).parents[2] / "launch" / "recipes" / "debug.yaml")
WORKER = str(Path(__file__).parent / "train_cases.py")
STEPS = 6

# Nothing is kept whole on every rank: at stage 3 each parameter is gathered for its use.
ZERO = {"stage3_param_persistence_threshold": 0}
ON_CPU_OPTIMIZER = {"offload_optimizer": {"device": "cpu"}}
ON_CPU = {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}


@dataclass(frozen=True)
class Case:
    """A way to train the same run; every update has 8 rows."""

    ranks: int
    stage: int
    micro_rows: int
    zero: dict[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    faults: dict[str, str] = field(default_factory=dict)  # step -> what goes wrong, train_cases.py


CASES = {
    "reference": Case(1, 0, 8),
    "one_rank_stage1_accumulating": Case(1, 1, 4),
    "one_rank_stage2_accumulating": Case(1, 2, 4),
    "one_rank_stage3_accumulating": Case(1, 3, 2),
    "two_ranks_stage0": Case(2, 0, 4),
    "two_ranks_stage1_accumulating": Case(2, 1, 2),
    "two_ranks_stage2": Case(2, 2, 4),
    "two_ranks_stage3": Case(2, 3, 4),
    "two_ranks_stage3_accumulating": Case(2, 3, 1),
    "two_ranks_stage3_offloaded": Case(2, 3, 4, ON_CPU),
    "two_ranks_stage3_hierarchical": Case(2, 3, 2, {"zero_hpz_partition_size": 2}),
    "two_ranks_stage3_recomputing": Case(
        2, 3, 4, flags=("--memory.activation_checkpointing=every_1",)
    ),
}
# GLM and a latent space learned together in every step; beta has two cycles of three updates.
VAE = (
    "--objectives.glm_vae.weight=0.5",
    "--objectives.glm_vae.latent={size: 6, injection: both, slots: 2}",
    "--objectives.glm_vae.elbo.beta={cycles: 2, zero_ratio: 0.3, increase_ratio: 0.3}",
    "--objectives.glm_vae.elbo.free_bits={mode: hinge, nats: 0.01}",
)
# Six dimensions of which seven should be active: every evaluation raises the alarm.
ALARM = (
    "--evaluation.every_steps=2",
    "--objectives.glm_vae.elbo.alarm={active_units: 7, evaluations: 1, action: raise_free_bits, "
    "raise_nats: 0.5}",
)
OPTIMUS = (
    "--objectives.glm.weight=0",
    "--objectives.optimus.weight=1",
    "--model.block_positions=false",
    "--model.max_positions=65",
    "--objectives.optimus.encoder={num_layers: 1, hidden_size: 16, num_heads: 2, norm_order: post, "
    "gelu: erf, token_types: 2, embedding_norm: true, block_positions: false, dropout_prob: 0}",
    "--objectives.optimus.latent={size: 6, pooling: cls, injection: both}",
    "--objectives.optimus.elbo.beta={cycles: 2, zero_ratio: 0.3, increase_ratio: 0.3}",
    "--objectives.optimus.elbo.free_bits={mode: mask, nats: 0.01}",
    "--objectives.optimus.denoise_ratio=0.2",
)
ADAVAE = (
    "--objectives.glm.weight=0",
    "--objectives.adavae={weight: 1, encoder_layers: 1, adapter_size: 8, latent_size: 6}",
    "--model.block_positions=false",
    "--trains=adapters",
    "--unfreezing={encoder_from: 1, decoder_from: 5}",  # the latter behind the resume
)
LSTM = (
    "--objectives.glm.weight=0",
    "--objectives.lstm_vae={weight: 1, embedding_size: 12, hidden_size: 20, latent_size: 6, "
    "dropout_prob: 0}",
    "--objectives.lstm_vae.elbo.beta={schedule: linear, increase_ratio: 0.9}",
)
LATENT_LSTM = {
    "lstm_reference": Case(1, 0, 8, flags=LSTM),
    "lstm_two_ranks_stage1": Case(2, 1, 2, flags=LSTM),
    "lstm_two_ranks_stage2": Case(2, 2, 4, flags=LSTM),
    "lstm_two_ranks_stage3_accumulating": Case(2, 3, 1, flags=LSTM),
    "lstm_broken": Case(2, 3, 4, flags=(*LSTM, "--stop_at_step=4")),
    "lstm_broken, resumed": Case(2, 3, 4, flags=(*LSTM, "--resume=auto")),
}
# The encoder takes two updates, or one where the loss rises, then the decoder one.
TAKING_TURNS = (*LSTM, "--objectives.lstm_vae.elbo.aggressive={max_encoder_updates: 2, window: 1}")
TURNS = {
    "turns_reference": Case(1, 0, 8, flags=TAKING_TURNS),
    "turns_two_ranks_stage3": Case(2, 3, 2, flags=TAKING_TURNS),
    "turns_broken": Case(2, 2, 4, flags=(*TAKING_TURNS, "--stop_at_step=4")),
    "turns_broken, resumed": Case(2, 3, 4, flags=(*TAKING_TURNS, "--resume=auto")),
}
LATENT_ADAVAE = {
    "adavae_reference": Case(1, 0, 8, flags=ADAVAE),
    "adavae_two_ranks_stage1": Case(2, 1, 2, flags=ADAVAE),
    "adavae_two_ranks_stage2": Case(2, 2, 4, flags=ADAVAE),
    "adavae_two_ranks_stage3_accumulating": Case(2, 3, 1, flags=ADAVAE),
    "adavae_broken": Case(2, 3, 4, flags=(*ADAVAE, "--stop_at_step=4")),
    "adavae_broken, resumed": Case(2, 3, 4, flags=(*ADAVAE, "--resume=auto")),
}
LATENT_OPTIMUS = {
    "optimus_reference": Case(1, 0, 8, flags=OPTIMUS),
    "optimus_two_ranks_stage1": Case(2, 1, 2, flags=OPTIMUS),
    "optimus_two_ranks_stage2": Case(2, 2, 4, flags=OPTIMUS),
    "optimus_two_ranks_stage3_accumulating": Case(2, 3, 1, flags=OPTIMUS),
    "optimus_broken": Case(2, 3, 4, flags=(*OPTIMUS, "--stop_at_step=4")),
    "optimus_broken, resumed": Case(2, 3, 4, flags=(*OPTIMUS, "--resume=auto")),
}
LATENT = {
    "vae_reference": Case(1, 0, 8, flags=VAE),
    "vae_one_rank_stage3_accumulating": Case(1, 3, 2, flags=VAE),
    "vae_two_ranks_stage1": Case(2, 1, 2, flags=VAE),
    "vae_two_ranks_stage2": Case(2, 2, 4, flags=VAE),
    "vae_two_ranks_stage3": Case(2, 3, 4, flags=VAE),
    "vae_two_ranks_stage3_accumulating": Case(2, 3, 1, flags=VAE),
    "vae_two_ranks_stage3_recomputing": Case(
        2, 3, 4, flags=(*VAE, "--memory.activation_checkpointing=every_1")
    ),
    "vae_broken": Case(2, 3, 4, flags=(*VAE, "--stop_at_step=4")),
    "vae_broken, resumed": Case(2, 3, 4, flags=(*VAE, "--resume=auto")),
    "vae_bf16": Case(2, 3, 4, flags=(*VAE, "--precision=bf16")),
    "vae_alarm": Case(2, 3, 4, flags=(*VAE, *ALARM, "--stop_at_step=4")),
    "vae_alarm, resumed": Case(2, 3, 4, flags=(*VAE, *ALARM, "--resume=auto")),
    # Asked to stop in a step after which an evaluation is due.
    "vae_asked": Case(2, 3, 4, flags=(*VAE, *ALARM), faults={"4": "stop"}),
    "vae_asked, resumed": Case(2, 3, 4, flags=(*VAE, *ALARM, "--resume=auto")),
}
DROPOUT = ("--model.dropout_prob=0.2", "--model.attention_dropout_prob=0.2")
EXTRA = {
    "dropout": Case(1, 0, 8, flags=DROPOUT),
    "dropout_recomputing": Case(
        1, 0, 8, flags=(*DROPOUT, "--memory.activation_checkpointing=every_2")
    ),
    "bf16": Case(2, 3, 4, flags=("--precision=bf16",)),
    "bf16_accumulating": Case(2, 3, 1, flags=("--precision=bf16",)),
}

# One rank brings a loss of nan, a gradient of inf and a spike; the same steps passed over by name.
WRONG = {"2": "nan", "4": "gradient", "7": "spike"}
SKIP_STEPS = 8
JUDGED = (
    f"--steps={SKIP_STEPS}",
    "--spikes.history=4",  # the losses of steps 1, 3, 4 and 5 or later: none without a resume's
    *("--model.dropout_prob=0.1", "--model.attention_dropout_prob=0.1"),
)
NAMED = (*JUDGED, "--data.skip_steps=[[2,2],[4,4],[7,7]]")
PERSISTENT = {"stage3_param_persistence_threshold": 100_000}  # small parameters stay gathered
KINDS_OF_STATE = {
    "stage0": (Case(2, 0, 2), "fp32"),
    "stage2": (Case(2, 2, 2), "fp32"),
    "stage3": (Case(2, 3, 2, PERSISTENT), "fp32"),
    "stage1_bf16": (Case(2, 1, 2), "bf16"),
    "stage3_bf16": (Case(2, 3, 4), "bf16"),
}
MORE_KINDS_OF_STATE = {
    "one_rank_stage0": (Case(1, 0, 4), "fp32"),
    "one_rank_stage3": (Case(1, 3, 8), "fp32"),
    "stage3_all_sharded": (Case(2, 3, 2), "fp32"),
    "stage1": (Case(2, 1, 2), "fp32"),
    "stage3_offloaded": (Case(2, 3, 2, ON_CPU), "fp32"),
    "stage2_bf16": (Case(2, 2, 2), "bf16"),
    "stage2_offloaded": (Case(2, 2, 2, ON_CPU_OPTIMIZER), "fp32"),
    "stage2_bf16_offloaded": (Case(2, 2, 2, ON_CPU_OPTIMIZER), "bf16"),
    "stage3_bf16_accumulating": (Case(2, 3, 2), "bf16"),
}


def _skips(kinds: dict[str, tuple[Case, str]]) -> dict[str, Case]:
    """Each kind twice: with what goes wrong, and with the same steps named."""
    return {
        f"{how}_{name}": replace(case, flags=(*flags, f"--precision={precision}"), faults=faults)
        for name, (case, precision) in kinds.items()
        for how, flags, faults in (("judged", JUDGED, WRONG), ("named", NAMED, {}))
    }


SKIPS = _skips(KINDS_OF_STATE)
# Stopped after step 5 and resumed: the spike of step 7 is one only beside the losses before.
BROKEN = {
    "broken": replace(SKIPS["judged_stage3"], flags=(*JUDGED, "--stop_at_step=5")),
    "broken, resumed": replace(SKIPS["judged_stage3"], flags=(*JUDGED, "--resume=auto")),
}

SLOW = {
    "four_ranks_stage0": Case(4, 0, 2),
    "four_ranks_stage3_accumulating": Case(4, 3, 1),
    "compiled_stage0": Case(1, 0, 8, flags=("--memory.compile=layers",)),
}


def _arguments(name: str, case: Case, folder: Path, shards: Path) -> dict[str, Any]:
    settings = folder / f"{name}.json"
    settings.write_text(
        json.dumps({"zero_optimization": {"stage": case.stage, **ZERO, **case.zero}})
    )
    flags = {
        "config": DEBUG,
        "name": name.partition(",")[0],
        "runs": str(folder),
        "data.shards": str(shards),
        "steps": STEPS,
        "batch.global_rows": 8,
        "batch.micro_rows": case.micro_rows,
        "model.dropout_prob": 0.0,
        "optimizer.gradient_clipping": 0.5,
        "schedule.warmup_ratio": 0.0,
        "evaluation.every_steps": 0,
        "evaluation.latent_texts": 0,  # latent/test_latent_live.py shows them
        "checkpoints.every_steps": 0,
        "deepspeed_config": str(settings),
    }
    arguments = [*(f"--{key}={value}" for key, value in flags.items()), *case.flags]
    return {"arguments": arguments, "faults": case.faults}


@pytest.fixture(scope="module")
def curves(
    ranks_folder: Path, shards: Path, run_ranks: Callable[..., list[int]]
) -> dict[str, list[dict[str, float]]]:
    """Every scalar of every step, by case."""
    latent = LATENT | LATENT_OPTIMUS | LATENT_ADAVAE | LATENT_LSTM | TURNS
    cases = CASES | latent | EXTRA | SKIPS | BROKEN
    return _trained(cases, ranks_folder, shards, run_ranks)


@pytest.fixture(scope="module")
def ranks_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `curves` trains."""
    return tmp_path_factory.mktemp("ranks")


def _trained(
    chosen: dict[str, Case], folder: Path, shards: Path, run_ranks: Callable[..., list[int]]
) -> dict[str, list[dict[str, float]]]:
    for world_size in {case.ranks for case in chosen.values()}:
        names = [name for name, case in chosen.items() if case.ranks == world_size]
        cases = folder / f"cases{world_size}.json"
        cases.write_text(json.dumps([_arguments(n, chosen[n], folder, shards) for n in names]))
        log = folder / f"log{world_size}"
        run_ranks(world_size, [WORKER, str(cases)], log, timeout_s=1200)  # a minute on free cores
    return {
        name: [json.loads(r) for r in (folder / name / "metrics.jsonl").read_text().splitlines()]
        for name in chosen
        if "," not in name
    }


def _scalar(rows: list[dict[str, float]], tag: str) -> list[float]:
    return [row[tag] for row in rows if tag in row]


@pytest.mark.parametrize("name", [n for n in CASES if n != "reference"])
@pytest.mark.parametrize(
    "tag", ["loss/total_nats", "loss/glm_document_nats", "optimizer/gradient_norm"]
)
def test_ranks_and_stages_agree(
    name: str, tag: str, curves: dict[str, list[dict[str, float]]]
) -> None:
    reference = _scalar(curves["reference"], tag)
    assert len(reference) == STEPS
    assert _scalar(curves[name], tag) == pytest.approx(reference, rel=1e-5)


@pytest.mark.parametrize("name", [n for n in CASES if n != "reference"])
def test_held_out_loss_agrees(name: str, curves: dict[str, list[dict[str, float]]]) -> None:
    reference = _scalar(curves["reference"], "validation/glm_total_nats")
    assert len(reference) == 1
    assert _scalar(curves[name], "validation/glm_total_nats") == pytest.approx(reference, rel=1e-5)


OTHERS = ("reference", "bf16", "alarm", "asked")
SAME = [n for n in LATENT if n.removeprefix("vae_") not in OTHERS]
SAME = [n for n in SAME if "," not in n]


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize(
    "tag",
    [
        "loss/total_nats",
        "loss/glm_total_nats",
        "loss/glm_vae_reconstruction_nats",
        "loss/glm_vae_kl_nats",
        "loss/glm_vae_kl_loss_nats",
        "latent/glm_vae_beta",
        "optimizer/gradient_norm",
        "validation/glm_vae_kl_nats",
        "validation/glm_vae_mutual_information_nats",
    ],
)
def test_ranks_and_stages_agree_on_a_latent_space(
    name: str, tag: str, curves: dict[str, list[dict[str, float]]]
) -> None:
    """vae_broken is stopped inside a cycle of beta and resumed."""
    reference = _scalar(curves["vae_reference"], tag)
    found = _scalar(curves[name], tag)
    if tag.startswith("validation/"):
        found = found[-1:]
    assert len(reference) == (1 if tag.startswith("validation/") else STEPS)
    assert found == pytest.approx(reference, rel=1e-5, abs=1e-7)


ALONE = LATENT_OPTIMUS | LATENT_ADAVAE | LATENT_LSTM
TWO = [n for n in ALONE if "reference" not in n and "," not in n]


@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize(
    "tag",
    [
        "loss/total_nats",
        "loss/{}_reconstruction_nats",
        "loss/{}_kl_nats",
        "optimizer/gradient_norm",
        "validation/{}_kl_nats",
    ],
)
def test_ranks_and_stages_agree_on_the_other_latent_spaces(
    name: str, tag: str, curves: dict[str, list[dict[str, float]]]
) -> None:
    """Two backbones, one of which little learns and in stages, and none; the broken ones are
    resumed inside beta's cycle, AdaVAE's before its decoder has begun to learn."""
    objective = name.partition("_")[0]
    tag = tag.format("lstm_vae" if objective == "lstm" else objective)
    reference = _scalar(curves[f"{objective}_reference"], tag)
    found = _scalar(curves[name], tag)[-len(reference) :]
    assert len(reference) == (1 if tag.startswith("validation/") else STEPS)
    # KL begins at 2e-4 nats, a difference of numbers near 1 in fp32.
    assert found == pytest.approx(reference, rel=1e-5, abs=2e-7)


@pytest.mark.parametrize("name", ["turns_two_ranks_stage3", "turns_broken"])
def test_encoder_and_decoder_take_turns_through_a_resume(
    name: str, curves: dict[str, list[dict[str, float]]]
) -> None:
    turns = "latent/lstm_vae_encoder_updates_per_decoder_update"
    for tag in ("loss/total_nats", "optimizer/gradient_norm", turns):
        reference = _scalar(curves["turns_reference"], tag)
        assert _scalar(curves[name], tag) == pytest.approx(reference, rel=1e-5), tag
    assert set(_scalar(curves["turns_reference"], turns)) == {0.0, 2.0}


def test_the_collapse_alarm_raises_free_bits_through_a_resume(
    curves: dict[str, list[dict[str, float]]],
) -> None:
    """KL is below the threshold in all six dimensions, so that the hinge gives 6 x nats."""
    free = _scalar(curves["vae_alarm"], "loss/glm_vae_kl_free_nats")
    assert free[2:] == pytest.approx([6 * 0.51] * 2 + [6 * 1.01] * 2, rel=1e-6)
    assert free[0] < 0.2


def test_an_evaluation_that_a_stop_came_before_is_made_up_for(
    curves: dict[str, list[dict[str, float]]],
) -> None:
    """As if it had not been asked to stop."""
    for tag in ("loss/total_nats", "loss/glm_vae_kl_free_nats", "validation/total_nats"):
        reference = _scalar(curves["vae_alarm"], tag)
        assert _scalar(curves["vae_asked"], tag) == pytest.approx(reference, rel=1e-6), tag
    evaluated = [r["step"] for r in curves["vae_asked"] if "validation/total_nats" in r]
    assert evaluated == [2, 4, 6]


def test_beta_runs_through_its_cycles(curves: dict[str, list[dict[str, float]]]) -> None:
    betas = _scalar(curves["vae_reference"], "latent/glm_vae_beta")
    assert betas == pytest.approx([0.0, 0.0, 1.0] * 2)


def test_a_latent_space_beside_glm_leaves_the_rows_of_glm_alone(
    curves: dict[str, list[dict[str, float]]],
) -> None:
    alone, together = (
        _scalar(curves[name], "loss/glm_total_nats")[0] for name in ("reference", "vae_reference")
    )
    assert together == pytest.approx(alone, rel=1e-6)


def test_a_latent_space_in_bf16_follows_fp32(curves: dict[str, list[dict[str, float]]]) -> None:
    for tag, rel in (("loss/total_nats", 5e-3), ("loss/glm_vae_kl_nats", 0.1)):
        reference = _scalar(curves["vae_reference"], tag)
        assert _scalar(curves["vae_bf16"], tag) == pytest.approx(reference, rel=rel)


def test_the_data_is_uneven_enough_to_tell(curves: dict[str, list[dict[str, float]]]) -> None:
    targets = _scalar(curves["reference"], "data/targets_per_step")
    assert max(targets) > 1.3 * min(targets)


def test_the_loss_falls(curves: dict[str, list[dict[str, float]]]) -> None:
    losses = _scalar(curves["reference"], "loss/total_nats")
    assert losses[-1] < losses[0] - 0.05


def test_recomputed_activations_give_the_same_curve_with_dropout(
    curves: dict[str, list[dict[str, float]]],
) -> None:
    for tag in ("loss/total_nats", "optimizer/gradient_norm"):
        kept = _scalar(curves["dropout"], tag)
        assert _scalar(curves["dropout_recomputing"], tag) == pytest.approx(kept, rel=1e-6)
        assert kept != pytest.approx(_scalar(curves["reference"], tag), rel=1e-4)


@pytest.mark.parametrize("name", ["bf16", "bf16_accumulating"])
def test_bf16_with_master_weights_follows_fp32(
    name: str, curves: dict[str, list[dict[str, float]]]
) -> None:
    # bf16 keeps 8 bits: 2^-9 of each activation. Without fp32 master weights the updates of lr 1e-3
    # would be lost (weights of 0.02 change by 1e-3 of themselves or less) and the loss would stay.
    reference = _scalar(curves["reference"], "loss/total_nats")
    losses = _scalar(curves[name], "loss/total_nats")
    assert losses == pytest.approx(reference, rel=3e-3)
    assert losses != reference
    fall, reference_fall = losses[0] - losses[-1], reference[0] - reference[-1]
    assert fall == pytest.approx(reference_fall, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_more_ranks_than_cores_and_compiled_layers_agree_too(
    name: str,
    curves: dict[str, list[dict[str, float]]],
    tmp_path: Path,
    shards: Path,
    run_ranks: Callable[..., list[int]],
) -> None:
    if name.startswith("compiled") and shutil.which("g++") is None:
        pytest.skip("torch.compile on a CPU needs g++, which is not installed")
    trained = _trained({name: SLOW[name]}, tmp_path, shards, run_ranks)[name]
    for tag in ("loss/total_nats", "optimizer/gradient_norm"):
        assert _scalar(trained, tag) == pytest.approx(_scalar(curves["reference"], tag), rel=1e-5)


def _rows_after_skips(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    """What no clock and no count of reasons goes into, of the steps whose update was applied."""
    tags = ("loss/total_nats", "optimizer/gradient_norm", "optimizer/learning_rate")
    wanted = ("step", "updates/applied", "validation/glm_total_nats", *tags)
    return [
        {tag: row[tag] for tag in wanted if tag in row}
        for row in rows
        if str(row["step"]) not in WRONG or "updates/applied" not in row
    ]


@pytest.mark.parametrize("name", KINDS_OF_STATE)
def test_a_skipped_update_leaves_no_trace(
    name: str, curves: dict[str, list[dict[str, float]]], ranks_folder: Path
) -> None:
    _same_but_for_the_reason(name, curves, ranks_folder)


@pytest.mark.slow
def test_a_skipped_update_leaves_no_trace_in_more_kinds_of_state(
    tmp_path: Path, shards: Path, run_ranks: Callable[..., list[int]]
) -> None:
    """A minute on two free cores."""
    trained = _trained(_skips(MORE_KINDS_OF_STATE), tmp_path, shards, run_ranks)
    for name in MORE_KINDS_OF_STATE:
        _same_but_for_the_reason(name, trained, tmp_path)


def _same_but_for_the_reason(
    name: str, curves: dict[str, list[dict[str, float]]], folder: Path
) -> None:
    judged, named = curves[f"judged_{name}"], curves[f"named_{name}"]
    assert judged[-1]["step"] == named[-1]["step"] == SKIP_STEPS
    assert judged[-2]["updates/applied"] == SKIP_STEPS - len(WRONG)
    assert len(_rows_after_skips(judged)) == SKIP_STEPS - len(WRONG) + 1
    assert _rows_after_skips(judged) == _rows_after_skips(named)
    first, second = (_checkpoint(folder / f"{how}_{name}") for how in ("judged", "named"))
    assert first.keys() == second.keys() and len(first) > 3
    assert [n for n in first if not torch.equal(first[n], second[n])] == []


def _checkpoint(run: Path) -> dict[str, torch.Tensor]:
    """Every tensor of weights and moments after the last step."""
    tensors = {}
    for path in sorted((run / "checkpoints" / "step-00000008").glob("*.safetensors")):
        tensors |= {f"{path.name}/{name}": t for name, t in load_file(path).items()}
    return tensors


@pytest.mark.parametrize("name", [*(f"judged_{n}" for n in KINDS_OF_STATE), "broken"])
def test_every_skip_is_counted_under_its_reason(
    name: str, curves: dict[str, list[dict[str, float]]]
) -> None:
    last = [row for row in curves[name] if "updates/applied" in row][-1]
    counted = {tag: n for tag, n in last.items() if tag.startswith(("updates/", "data/skipped"))}
    assert counted == {
        "updates/applied": 5,
        "updates/skipped_named": 0,
        "updates/skipped_non_finite_loss": 1,
        "updates/skipped_loss_spike": 1,
        "updates/skipped_gradient": 1,
        "updates/clipped_gradients": 5,
        "data/skipped_rows": 24,
    }


def test_the_log_says_why_an_update_was_skipped(
    curves: dict[str, list[dict[str, float]]], ranks_folder: Path
) -> None:
    assert curves
    log = (ranks_folder / "judged_stage3" / "logs" / "rank-0.log").read_text()
    lines = [line.partition("WARNING ")[2] for line in log.splitlines() if "WARNING step" in line]
    assert [line.partition(" | loss")[0] for line in lines[:2]] == [
        "step 2/8 | update skipped: the loss is not a finite number",
        "step 4/8 | update skipped: the gradient's norm is not a finite number",
    ]
    assert lines[2].startswith("step 7/8 | update skipped: the loss is a spike, above ")


def test_the_schedule_counts_applied_updates(curves: dict[str, list[dict[str, float]]]) -> None:
    rates = _scalar(curves["judged_stage3"], "optimizer/learning_rate")
    unbroken = [
        learning_rate(n, peak=1e-3, steps=SKIP_STEPS, schedule=ScheduleConfig(warmup_ratio=0.0))
        for n in range(5)
    ]
    place = [0, 1, 1, 2, 2, 3, 4, 4]  # steps 2, 4 and 7 did not move it
    assert rates == [unbroken[n] for n in place]


def test_a_resume_knows_the_losses_before(curves: dict[str, list[dict[str, float]]]) -> None:
    assert _rows_after_skips(curves["broken"]) == _rows_after_skips(curves["judged_stage3"])
