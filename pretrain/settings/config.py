"""What a training run is told: frozen values with a docstring each, read by `cli.py`.

Nothing here imports torch, so that `--help` answers at once. A value appears once: what follows
from others (accumulation, vocabulary, number of positions) is computed where it is used and stated
at start.
"""

from dataclasses import dataclass, field
from typing import Literal

from pretrain.models.shape import BackboneShape
from pretrain.settings.data_config import DataConfig
from pretrain.settings.numerics_config import MemoryConfig, NumericsConfig
from pretrain.settings.objectives_config import ObjectivesConfig
from pretrain.settings.optimizer_config import OptimizerConfig, ScheduleConfig, SpikesConfig
from pretrain.settings.trains import Trains, UnfreezingConfig
from pretrain.settings.watch_config import ProfileConfig, StragglersConfig

_ADDED_BY = {"lora": "lora_rank", "prefix": "prefix_slots"}  # by trains, in the model


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """Rows of one update. accumulation = global_rows / (micro_rows x ranks)."""

    global_rows: int = 1024
    """Packed rows of one update, over all ranks and micro-batches."""
    micro_rows: int = 16
    """Packed rows that one rank takes through forward and backward at once."""

    def __post_init__(self) -> None:
        for name in ("global_rows", "micro_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"batch.{name} must be at least 1, got {getattr(self, name)}.")

    def accumulation(self, world_size: int) -> int:
        """Micro-batches that each of `world_size` ranks takes per update.

        Raises ValueError, naming the nearest sizes, where the ranks do not divide the global batch.
        """
        unit = self.micro_rows * world_size
        if self.global_rows % unit:
            below = self.global_rows // unit * unit
            nearest = f"{below} or {below + unit}" if below else f"{unit}"
            raise ValueError(
                f"batch.global_rows must be a multiple of micro_rows x ranks = {self.micro_rows} x "
                f"{world_size}, got {self.global_rows}. The nearest sizes are {nearest}."
            )
        return self.global_rows // unit


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Held-out loss and filled blanks while training."""

    every_steps: int = 1000
    """Steps between evaluations on the validation split; 0 never evaluates. The end of a run
    always does."""
    max_rows: int = 512
    """Packed rows of the validation split that an evaluation reads, from its start."""
    texts: tuple[str, ...] = ()
    """Texts with [MASK], [sMASK] or [gMASK] whose fills are written to TensorBoard at every
    evaluation."""
    latent_texts: int = 4
    """Held-out texts that a run with a latent space writes again from their vectors, and as many
    from vectors of the prior, to TensorBoard at every evaluation; 0 shows neither, nor the
    projector."""

    def __post_init__(self) -> None:
        for name in ("every_steps", "latent_texts"):
            if getattr(self, name) < 0:
                raise ValueError(f"evaluation.{name} must be 0 or more, got {getattr(self, name)}.")
        if self.max_rows < 1:
            raise ValueError(f"evaluation.max_rows must be at least 1, got {self.max_rows}.")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When the run is saved and how many checkpoints stay."""

    every_steps: int = 1000
    """Steps between checkpoints; 0 saves only at the end of the run."""
    keep_last: int = 3
    """Complete checkpoints that stay; older ones are removed after a newer one is complete."""
    keep_every: int = 0
    """Checkpoints of steps that are multiples of it stay for good; 0 keeps none for that reason."""
    keep_best: int = 0
    """This many with the lowest held-out loss stay too; each must fall on an evaluation."""
    on_disk_full: Literal["stop", "continue"] = "stop"
    """What a checkpoint that does not fit does: end the run, or let it go on to the next one. The
    last save of a run always ends it."""

    def __post_init__(self) -> None:
        for name in ("every_steps", "keep_every", "keep_best"):
            if getattr(self, name) < 0:
                raise ValueError(
                    f"checkpoints.{name} must be 0 or more, got {getattr(self, name)}."
                )
        if self.keep_last < 1:
            raise ValueError(f"checkpoints.keep_last must be at least 1, got {self.keep_last}.")


@dataclass(frozen=True, kw_only=True)
class Config:
    """A training run."""

    name: str
    """Name of the run; its folder is RUNS/NAME."""
    steps: int
    """Steps of the whole run; the schedule follows it. A step takes the next rows and applies one
    update, or skips it (spikes, data.skip_steps)."""
    data: DataConfig
    """Shards and packing."""
    runs: str = "runs"
    """Folder of all runs. A relative path counts from the caller's folder."""
    seed: int = 1234
    """Seed of the weights, of dropout, of the order of documents and of every blank."""
    stop_at_step: int | None = None
    """Save and stop after this update, with the schedule and the evaluations of the whole run; a
    later start goes on."""
    batch: BatchConfig = field(default_factory=BatchConfig)
    """Rows of an update."""
    model: BackboneShape = field(default_factory=BackboneShape)
    """Shape of the backbone."""
    objectives: ObjectivesConfig = field(default_factory=ObjectivesConfig)
    """What is learned."""
    trains: Trains = "all"
    """What learns: all; parts: what objectives add to the backbone (adapters, heads, an encoder);
    adapters: that and the backbone's LayerNorms (AdaVAE); head_only: what lies between encoder and
    decoder; k_layers: parts and the last unfreezing.layers of the backbone; lora, prefix: parts and
    what model.lora_rank or model.prefix_slots add to attention."""
    unfreezing: UnfreezingConfig = field(default_factory=UnfreezingConfig)
    """When halves of the model begin to learn."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """AdamW."""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """Learning rate over the updates."""
    spikes: SpikesConfig = field(default_factory=SpikesConfig)
    """Updates that are skipped."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 with fp32 master weights on CUDA, fp32 on CPU; stated at start."""
    numerics: NumericsConfig = field(default_factory=NumericsConfig)
    """Arithmetic."""
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    """Recomputation and compilation."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """Held-out loss."""
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Saving."""
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    """A trace of some steps."""
    stragglers: StragglersConfig = field(default_factory=StragglersConfig)
    """Ranks that the others wait for."""
    deepspeed_config: str | None = None
    """DeepSpeed's own JSON file; by default ds_config.json of this repository (ZeRO stage 3)."""
    interface: str | None = None
    """Network interface for NCCL and gloo, as eth0 or ib0; by default they look for one."""
    timeout_s: float = 1800.0
    """Seconds after which a lost rank has ended the others."""
    expected_ranks: int | None = None
    """Ranks that the launcher must have started; another number ends the run at once, as where a
    hostfile is missing. By default any number will do."""

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name or self.name.startswith("."):
            raise ValueError(
                f"name must be a plain folder name without '/' or leading dot, got {self.name!r}."
            )
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}.")
        if self.stop_at_step is not None and not 1 <= self.stop_at_step <= self.steps:
            raise ValueError(
                f"stop_at_step must lie in 1..steps = {self.steps}, got {self.stop_at_step}."
            )
        if self.profile.start_step > self.steps:
            raise ValueError(
                f"profile.start_step must be at most steps = {self.steps}, got "
                f"{self.profile.start_step}."
            )
        evaluated, saved = self.evaluation.every_steps, self.checkpoints.every_steps
        if self.checkpoints.keep_best and (evaluated == 0 or saved % evaluated):
            raise ValueError(
                "checkpoints.keep_best needs the held-out loss of every checkpoint: "
                f"checkpoints.every_steps = {saved} must be a multiple of evaluation.every_steps = "
                f"{evaluated}, which must not be 0."
            )
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must lie in 0..2^63 - 1, got {self.seed}.")
        if self.timeout_s <= 0:
            raise ValueError(f"timeout_s must be above 0, got {self.timeout_s}.")
        if self.expected_ranks is not None and self.expected_ranks < 1:
            raise ValueError(f"expected_ranks must be at least 1, got {self.expected_ranks}.")
        for name in ("glm", "glm_vae"):
            self._check_sentinels(name)
        if self.evaluation.texts and "glm" not in self.objectives.chosen:
            raise ValueError(
                "evaluation.texts are filled by what objectives.glm learns, whose weight is 0. "
                "Leave out the texts, or set objectives.glm.weight above 0."
            )
        self._check_adapters()
        self._check_turns()
        self._check_streams()
        optimus, longest = self.objectives.optimus, self.data.packing.source_tokens
        reach = self.model.max_positions or longest
        if optimus.weight > 0 and reach < longest + optimus.first_position:
            raise ValueError(
                "objectives.optimus.latent.injection: with a memory slot positions begin at 1, so "
                f"model.max_positions must be at least data.packing.source_tokens + 1 = "
                f"{longest + 1}, got {reach}."
            )

    def _check_streams(self) -> None:
        packing, optimus = self.data.packing, self.objectives.optimus
        if optimus.weight == 0 or optimus.tokenizers == "one":
            return
        if packing.cut == "fill" or packing.short_sequence_prob > 0:
            raise ValueError(
                "objectives.optimus.tokenizers: two: a text in two streams is never cut. Set "
                "data.packing.cut: long and data.packing.short_sequence_prob: 0, got "
                f"{packing.cut} and {packing.short_sequence_prob}."
            )

    def _check_adapters(self) -> None:
        adavae, added = self.objectives.adavae, set(self.objectives.chosen) - {"glm", "causal"}
        if self.trains in ("parts", "adapters", "head_only") and not added:
            raise ValueError(
                f"trains: {self.trains} leaves nothing to learn, since no objective adds anything "
                "to the backbone. Choose one with a latent space, or trains: all."
            )
        size = _ADDED_BY.get(self.trains)
        if size and not getattr(self.model, size):
            raise ValueError(
                f"trains: {self.trains} trains what model.{size} adds, which is 0. "
                f"Set model.{size} above 0, or choose another of trains."
            )
        if self.trains == "k_layers" and self.unfreezing.layers > self.model.num_layers:
            raise ValueError(
                f"unfreezing.layers must be at most model.num_layers = {self.model.num_layers}, "
                f"got {self.unfreezing.layers}."
            )
        if adavae.weight == 0:
            return
        if self.model.norm_order != "pre":
            raise ValueError("objectives.adavae needs model.norm_order: pre, got post.")
        if adavae.encoder_layers > self.model.num_layers:
            raise ValueError(
                "objectives.adavae.encoder_layers must be at most model.num_layers = "
                f"{self.model.num_layers}, got {adavae.encoder_layers}."
            )

    def idle_additions(self) -> str | None:
        """What the recipe adds to the backbone and leaves as it begins, in words; None: nothing."""
        idle = [
            f"model.{size}"
            for trains, size in _ADDED_BY.items()
            if getattr(self.model, size) and self.trains not in ("all", trains)
        ]
        if not idle:
            return None
        return (
            f"{' and '.join(idle)}: trains: {self.trains} does not train what they add, so that it "
            "stays as it begins or as --init-from brings it. Set them to 0, or choose another of "
            "trains."
        )

    def _check_turns(self) -> None:
        chosen = {name: getattr(self.objectives, name) for name in self.objectives.chosen}
        elbos = {name: c.elbo for name, c in chosen.items() if hasattr(c, "elbo")}
        turns = [name for name, elbo in elbos.items() if elbo.aggressive.max_encoder_updates]
        if "glm_vae" in turns:
            raise ValueError(
                "objectives.glm_vae.elbo.aggressive: the encoder of GLM-VAE is the backbone, which "
                "writes too, so that they cannot take turns. Leave it out."
            )
        if turns and len(chosen) > 1:
            raise ValueError(
                f"objectives.{turns[0]}.elbo.aggressive moves one half of the model at a time and "
                f"needs to be alone; this run learns {', '.join(chosen)}. Set the weight of the "
                "others to 0, or leave it out."
            )

    @property
    def shared_layers(self) -> int:
        """Layers of the backbone that encode texts: the others decode alone, or all of it does."""
        if self.objectives.glm_vae.weight > 0:
            return self.model.num_layers
        return self.objectives.adavae.encoder_layers if self.objectives.adavae.weight > 0 else 0

    def _check_sentinels(self, name: str) -> None:
        if getattr(self.objectives, name).blanks.span_marks != "sentinels":
            return
        if self.model.max_positions is not None:
            raise ValueError(
                f"objectives.{name}.blanks.span_marks: sentinels puts all blanks at position "
                "source_tokens, the last one of the table: leave out model.max_positions."
            )
        if not self.model.block_positions:
            raise ValueError(
                f"objectives.{name}.blanks.span_marks: sentinels puts all blanks at one position "
                "and tells their tokens apart by block positions: set model.block_positions true."
            )
