"""A trained latent space as a run folder or an exported one gives it back, without DeepSpeed.

run = open_latent(Path("runs/optimus"))
run.objective.encode(run.model, run.objective.inputs(batch)).mu
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from data_pipeline.protocols import Transform
from data_pipeline.tokenizing.special import Vocabulary
from data_pipeline.tokenizing.tokenizer import Tokenizer, open_tokenizer
from data_pipeline.transforms.blank import BlankConfig
from pretrain.checkpoints.checkpoint_files import checked_weights, choose, read_manifest
from pretrain.checkpoints.weights import WeightFiles, copy_into, difference, shapes_of
from pretrain.handing_over import exported
from pretrain.handing_over.trained import TOKEN_TABLE
from pretrain.latent.rows import blanks_of, whole_transform
from pretrain.models.backbone import Backbone, lay_out_for_decoding, num_positions
from pretrain.models.shape import padded_vocabulary
from pretrain.objectives.latent import LatentObjective
from pretrain.objectives.loss import ObjectiveModel
from pretrain.objectives.select import objectives_of, parts_of
from pretrain.recording.run_folder import RunFolder
from pretrain.settings.cli import config_from_yaml
from pretrain.settings.config import Config
from pretrain.settings.two_tokenizers import reads_two


@dataclass(frozen=True)
class LatentRun:
    """What a folder gives back of one latent space."""

    path: Path
    step: int
    config: Config
    tokenizer: Tokenizer  # of what is written
    encoder_tokenizer: Tokenizer | None  # of what is read, where that is another one
    objective: LatentObjective
    model: ObjectiveModel
    vocab_size: int  # scores of a token, those that stand for no id counted

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        return next(self.model.parameters()).device

    @property
    def source_tokens(self) -> int:
        """Tokens of the longest text, its beginning and end counted."""
        return self.config.data.packing.source_tokens

    @property
    def encoder_tokens(self) -> int:
        """Tokens of the longest text that an encoder with a tokenizer of its own reads."""
        return self.config.objectives.optimus.encoder_positions(self.source_tokens)

    @property
    def blanks(self) -> BlankConfig | None:
        """How texts are blanked out in training; None where they are always written whole."""
        return blanks_of(self.objective)

    def transform(self) -> Transform:
        """How texts become rows in training."""
        return self.objective.transform(
            self.tokenizer.special,
            source_tokens=self.source_tokens,
            vocab_size=self.tokenizer.vocab_size,
        )

    def whole_transform(self) -> Transform:
        """How texts become rows that are written whole, from nothing but z."""
        return whole_transform(
            self.objective,
            Vocabulary(self.tokenizer.special, self.tokenizer.vocab_size),
            source_tokens=self.source_tokens,
        )


def open_latent(folder: Path, step: int | None = None, name: str | None = None) -> LatentRun:
    """The latent space of a run after `step` updates (None: the newest checkpoint), or of a folder
    that `export` wrote, in fp32.

    name: of the objective, where the run has several with a latent space. It lies on the GPU where
    there is one, and its encoder reads texts as they are, without the noise of training. Raises
    ValueError where the folder or a file of it is missing or damaged, or where the run has no
    latent space.
    """
    found = _exported(folder, step) if exported.is_exported(folder) else _run(folder, step)
    config, tokenizer, encoder = found.config, open_tokenizer(found.tokenizer), None
    if reads_two(config.objectives):
        encoder = open_tokenizer(found.encoder_tokenizer)
    objective = _chosen(config, folder, name, encoder)
    rows = padded_vocabulary(tokenizer.vocab_size)
    if objective.backbone_calls:
        rows = found.weights.shapes.get(TOKEN_TABLE, (rows,))[0]
    model = _model(found.weights, config, objective, vocab_size=rows, source=folder)
    own_encoder = encoder if objective.name == "optimus" else None
    return LatentRun(folder, found.step, config, tokenizer, own_encoder, objective, model, rows)


class _Found(NamedTuple):
    """Where a folder keeps what it gives back."""

    config: Config
    tokenizer: Path
    encoder_tokenizer: Path
    weights: WeightFiles
    step: int


def _run(folder: Path, step: int | None) -> _Found:
    run = RunFolder(folder)
    config, saved = config_from_yaml(run.config), choose(folder, step)
    weights = WeightFiles.open([checked_weights(saved)])
    return _Found(
        config, run.tokenizer, run.encoder_tokenizer, weights, read_manifest(saved).update
    )


def _exported(folder: Path, step: int | None) -> _Found:
    """Raises ValueError where another step is asked for than was exported."""
    described = exported.read_config(folder)
    if step not in (None, described.step):
        raise ValueError(
            f"{folder} was exported after step {described.step}, not {step}. Leave out the step, "
            "or give the run folder."
        )
    return _Found(
        config_from_yaml(folder / exported.RECIPE),
        folder / exported.TOKENIZER,
        folder / exported.ENCODER_TOKENIZER,
        exported.open_weights(folder),
        described.step,
    )


def _chosen(
    config: Config, folder: Path, name: str | None, encoder: Tokenizer | None
) -> LatentObjective:
    vocabulary = None if encoder is None else Vocabulary(encoder.special, encoder.vocab_size)
    clean = replace(
        config.objectives, optimus=replace(config.objectives.optimus, denoise_ratio=0.0)
    )
    objectives = objectives_of(clean, steps=config.steps, encoder=vocabulary)
    latent = {o.name: o for o in objectives if isinstance(o, LatentObjective)}
    if not latent:
        raise ValueError(
            f"{folder} has no latent space: it has learned {', '.join(o.name for o in objectives)}."
            " Give a run of objectives.optimus, adavae, glm_vae or lstm_vae (launch/recipes)."
        )
    if name is None and len(latent) > 1:
        raise ValueError(
            f"{folder} has learned several latent spaces. Choose one: --objective "
            f"{' or '.join(latent)}."
        )
    name = name or next(iter(latent))
    if name not in latent:
        raise ValueError(f"--objective {name}: {folder} has learned {', '.join(latent)}.")
    return latent[name]


def _model(
    weights: WeightFiles,
    config: Config,
    objective: LatentObjective,
    *,
    vocab_size: int,
    source: Path,
) -> ObjectiveModel:
    """Backbone and part of the objective; the parts of others are of no use here.

    vocab_size: rows of the token table.
    """
    own = f"parts.{objective.name}."
    calls = objective.backbone_calls > 0
    held = {
        name: shape
        for name, shape in weights.shapes.items()
        if name.startswith(own) or (calls and name.startswith("backbone."))
    }
    source_tokens = config.data.packing.source_tokens
    with torch.device("meta"):
        backbone = None
        if calls:
            positions = num_positions(config.model, source_tokens)
            backbone = Backbone(config.model, vocab_size=vocab_size, num_positions=positions)
        parts = parts_of(
            [objective], config.model, vocab_size=vocab_size, source_tokens=source_tokens,
            seed=config.seed,
        )  # fmt: skip
        model = ObjectiveModel(backbone, parts)
    if error := difference(shapes_of(model), held):
        raise ValueError(f"the weights of {source} are not those of its config: {error}.")
    model.to_empty(device="cuda" if torch.cuda.is_available() else "cpu")
    if not torch.cuda.is_available():
        lay_out_for_decoding(model)
    copy_into(model, weights)
    return model.eval()
