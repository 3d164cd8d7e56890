"""The README.md of an exported model: what it is, of which text, by which recipe; to be completed.

What is not known is said to be unknown, never guessed.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from data_pipeline.storage.manifest import MANIFEST_FILE, Manifest, read_manifest
from pretrain.handing_over.exported import ExportedConfig
from pretrain.settings.cli import config_to_yaml
from pretrain.settings.config import Config
from pretrain.settings.dotted import shown
from pretrain.settings.objectives_config import ObjectivesConfig

TO_COMPLETE = "*to be completed*"


def model_card(
    exported: ExportedConfig,
    config: Config,
    *,
    num_parameters: int,
    data_fingerprint: str,
    init_from: str | None,
) -> str:
    """The card of a run whose recipe is `config`.

    data_fingerprint: of the training split the checkpoint was trained on; data of another one is
    not described. init_from: whose weights it began with; None: drawn ones.
    """
    model = exported.model
    return "\n".join(
        [
            f"# {exported.run}",
            "",
            f"{_made_by(exported)}: {num_parameters} parameters, {model.num_layers} layers, "
            f"width {model.hidden_size}, "
            f"{model.num_heads} heads, {exported.vocab_size} rows of vocabulary, "
            f"{exported.num_positions} positions; weights stored in {exported.dtype}.",
            "",
            "## Use",
            "",
            *_uses(exported),
            "",
            f"Intended use and limits: {TO_COMPLETE}",
            "",
            "## Training text",
            "",
            *_data_lines(config, data_fingerprint),
            "",
            "## Training",
            "",
            f"{exported.step} of {config.steps} updates, {config.batch.global_rows} rows of "
            f"{config.data.packing.row_tokens} positions each"
            + (f", beginning with the weights of {_name(shown(init_from))}." if init_from else "."),
            "",
            "```yaml",
            public_recipe(config).rstrip(),
            "```",
            "",
            "## Licence of the weights",
            "",
            TO_COMPLETE,
            "",
        ]
    )


def _made_by(exported: ExportedConfig) -> str:
    if exported.objectives == ("glm",):
        return "A GLM pretrained by autoregressive blank infilling (Du et al. 2022)"
    return f"A model pretrained by {', '.join(exported.objectives)}"


def _uses(exported: ExportedConfig) -> list[str]:
    fills = "    python -m pretrain generate FOLDER --text 'The [MASK] of the Union is [MASK].'"
    draws = "    python -m pretrain latent sample FOLDER"
    uses = [fills] if "glm" in exported.objectives else []
    return uses + ([draws] if exported.has_latent else [])


def _data_lines(config: Config, fingerprint: str) -> list[str]:
    lines = []
    for corpus in config.data.sources:
        if config.data.corpora:
            lines += [f"Corpus {corpus.called}, weight {corpus.weight:g}:", ""]
        lines += [*_corpus_lines(_manifest(Path(corpus.shards), fingerprint)), ""]
    return [*lines, f"Fingerprint of the training text: {fingerprint}."]


def public_recipe(config: Config) -> str:
    """What was trained, as YAML: no folders of the machine it ran on, and of objectives that were
    not trained only that, where a recipe has them unless it says otherwise."""
    recipe = yaml.safe_load(config_to_yaml(config))
    objectives, data = recipe["objectives"], recipe["data"]
    left_out = set(ObjectivesConfig().chosen) - set(config.objectives.chosen)
    recipe["objectives"] = {name: {"weight": 0.0} for name in sorted(left_out)} | {
        name: objectives[name] for name in config.objectives.chosen
    }
    for corpus in (data, *data["corpora"]):
        if corpus["shards"] is not None:
            corpus["shards"] = Path(corpus["shards"]).name
    return yaml.safe_dump(_without_folders(recipe), sort_keys=False, allow_unicode=True)


def _without_folders(value: Any) -> Any:
    """`value` with the last name alone of every path that begins at the root or a home."""
    if isinstance(value, dict):
        return {key: _without_folders(held) for key, held in value.items()}
    if isinstance(value, list):
        return [_without_folders(held) for held in value]
    return _name(value) if isinstance(value, str) else value


def _name(path: str) -> str:
    return Path(path).name if re.match("[/~][^ ]", path) else path


def _corpus_lines(manifest: Manifest | None) -> list[str]:
    if manifest is None:
        return [
            "Source and licence: unknown; the shards were not at hand when the model was exported."
        ]
    train = manifest.splits["train"]
    return [
        f"- Source: {manifest.source or 'not stated when the data was prepared'}",
        f"- Licence: {manifest.licence or 'not stated when the data was prepared'}",
        f"- {train.documents} documents, {train.tokens} tokens of {len(manifest.sources)} files",
    ]


def _manifest(shards: Path, fingerprint: str) -> Manifest | None:
    """The manifest of the shards the run was trained on, where they are still there."""
    if not (shards / MANIFEST_FILE).is_file():
        return None
    manifest = read_manifest(shards)
    return manifest if manifest.splits["train"].fingerprint in fingerprint else None
