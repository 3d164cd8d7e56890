"""What a checkpoint and the run that goes on from it must agree on, so that exact means exact.

A place in the data is (epoch, window, row): it names the same text only while shards, seed, packing
and blanks are the same. `model` is what the weights would not fit; it cannot be overridden.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from data_pipeline.packing.blend import Place, place_of, place_state
from data_pipeline.transforms.blank import BlankConfig
from pretrain.checkpoints.checkpoint_files import Manifest
from pretrain.models.shape import BackboneShape
from pretrain.settings.cli import flat
from pretrain.settings.config import Config
from pretrain.settings.trains import UnfreezingConfig


def identity(config: Config, *, data_fingerprint: str, vocab_size: int) -> dict[str, Any]:
    """What decides the rows of a run, and the shape of its model, as plain JSON values."""
    chosen = {name: asdict(getattr(config.objectives, name)) for name in config.objectives.chosen}
    latents = {f"objectives.{n}.latent": c["latent"] for n, c in chosen.items() if "latent" in c}
    adavae = chosen.get("adavae", {})
    adapted = {k: adavae[k] for k in adavae if k not in ("weight", "elbo", "backbone_from")}
    latents |= {"objectives.adavae": adapted} if adapted else {}
    lstm = chosen.get("lstm_vae", {})
    sizes = {k: v for k, v in lstm.items() if k.endswith("_size")}
    latents |= {"objectives.lstm_vae": sizes} if sizes else {}
    if "optimus" in chosen:
        latents["objectives.optimus.tokenizers"] = chosen["optimus"]["tokenizers"]
    encoders = {
        f"objectives.{n}.encoder": c["encoder"] for n, c in chosen.items() if "encoder" in c
    }
    blanks = {f"objectives.{n}.blanks": c["blanks"] for n, c in chosen.items() if "blanks" in c}
    packing = flat({"data": {"packing": asdict(config.data.packing)}})
    return {
        "data": {
            "fingerprint": data_fingerprint,
            "seed": config.seed,
            **packing,
            **flat(blanks),
        },
        "model": {
            **{k: v for k, v in vars(config.model).items() if not k.endswith("_prob")},
            "vocab_size": vocab_size,
            "source_tokens": config.data.packing.source_tokens,
            "trains": config.trains,
            **{f"unfreezing.{k}": v for k, v in vars(config.unfreezing).items()},
            **flat(latents),
            **{k: v for k, v in flat(encoders).items() if not k.endswith("_prob")},
        },
    }


def state(
    identity_of_run: Mapping[str, Any],
    positions: Mapping[str, Place],
    held_out_nats: float | None = None,
    *,
    owes_evaluation: bool = False,
) -> dict[str, Any]:
    """What a checkpoint keeps besides weights and optimizer, as plain JSON values.

    held_out_nats: the loss on the validation split at this step, None where it was not measured.
    owes_evaluation: an evaluation was due after this step, and the run was asked to stop before it.
    """
    return {
        "held_out_nats": held_out_nats,
        "owes_evaluation": owes_evaluation,
        "positions": {name: place_state(place) for name, place in positions.items()},
        **identity_of_run,
    }


def positions(manifest: Manifest) -> dict[str, Place]:
    """Where each objective's rows go on. Raises ValueError where the manifest does not say."""
    try:
        places = manifest.state["positions"]
        return {name: place_of(place) for name, place in places.items()}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"the checkpoint of step {manifest.update} does not say where its data goes on "
            f"({type(error).__name__}: {error}). Resume from another one: --resume PATH."
        ) from error


def refusal(
    found: Path, manifest: Manifest, wanted: Mapping[str, Any], config: Config
) -> str | None:
    """Why the run must not go on from `found`, as one line; None where it may."""
    # A checkpoint that was written before a setting of the shape existed has its default.
    defaults = {**vars(BackboneShape()), "trains": "all", "objectives.optimus.tokenizers": "one"}
    defaults |= {f"unfreezing.{k}": v for k, v in vars(UnfreezingConfig()).items()}
    model = _differences(manifest.state.get("model"), wanted["model"], defaults)
    if model:
        return f"{found} holds another model: {model}. Use the recipe of that run."
    blanks = flat(
        {f"objectives.{n}.blanks": asdict(BlankConfig()) for n in vars(config.objectives)}
    )
    data = _differences(manifest.state.get("data"), wanted["data"], blanks)
    if data and not config.data.allow_other_data:
        return (
            f"{found} was trained on other rows: {data}. Use the same shards and settings, or set "
            "--data.allow_other_data true: the rows then differ from here on, and some text is "
            "seen twice or not at all in this epoch."
        )
    for name in ("stop_at_step", "steps"):
        last = getattr(config, name)
        if last is not None and manifest.update >= last:
            return (
                f"{found} already stands at step {manifest.update} of {name} = {last}: there is "
                f"nothing left to do. Raise --{name} to go on."
            )
    return None


def _differences(
    saved: Any, wanted: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> str:
    """`key saved -> wanted` of every value that differs; empty where none does.

    defaults: of wanted values that `saved` does not know.
    """
    if not isinstance(saved, Mapping):
        return "the checkpoint does not say which"
    saved = {k: v for k, v in (defaults or {}).items() if k in wanted} | dict(saved)
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in wanted.items()}
    keys = sorted(saved.keys() | plain.keys())
    return ", ".join(
        f"{k} {saved.get(k)} -> {plain.get(k)}" for k in keys if saved.get(k) != plain.get(k)
    )
