"""The folder of a run: what lies where, who may write, and what a later start finds.

runs/NAME/config.yaml          the recipe as it was resolved
         ds_config.json        DeepSpeed's settings as they were completed
         tokenizer/            a copy, so that the folder alone can fill blanks
         init_from.txt         whose weights it began with, where --init-from named some
         metrics.jsonl         a line a step
         tensorboard/          the same as curves
         checkpoints/          step-00000120/ ... and `latest`
         logs/rank-0.log       what each rank said; a full file becomes rank-0.log.1, .2, ...
         status.json           what the run is doing, for `python -m pretrain status`
         sweep.json            which task of which sweep it is, where it is one
         .lock                 held by the training that writes here
"""

import json
import logging
import os
import socket
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from data_pipeline.storage import locking
from pretrain.settings.cli import config_from_yaml, config_to_yaml, flat
from pretrain.settings.config import Config
from pretrain.settings.dotted import shown
from pretrain.settings.sweep_file import Task
from pretrain.settings.told import without_secrets

logger = logging.getLogger(__name__)


@dataclass
class RunFolder:
    """Paths of one run, and the lock of the training that writes into it."""

    path: Path
    _lock: TextIO | None = field(default=None, repr=False)

    @property
    def checkpoints(self) -> Path:
        """Folder of all checkpoints."""
        return self.path / "checkpoints"

    @property
    def tokenizer(self) -> Path:
        """Folder that data_pipeline.tokenizing.tokenizer.open_tokenizer reads."""
        return self.path / "tokenizer"

    @property
    def encoder_tokenizer(self) -> Path:
        """The same of an encoder that has its own."""
        return self.path / "encoder_tokenizer"

    @property
    def metrics(self) -> Path:
        """One JSON object a line, one line a step."""
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        """Event files."""
        return self.path / "tensorboard"

    @property
    def logs(self) -> Path:
        """A log file for each rank, cut off and numbered when it is full."""
        return self.path / "logs"

    @property
    def config(self) -> Path:
        """The resolved recipe."""
        return self.path / "config.yaml"

    def lock(self) -> None:
        """Claim the folder for this process until it ends (kill -9 included: the kernel lets go).

        Raises ValueError where another training holds it; where there are no locks the log says so.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        handle = open(self.path / ".lock", "a+", encoding="utf-8")  # noqa: SIM115 (open = locked)
        try:
            is_ours = locking.lock(handle.fileno(), self.path)
        except locking.NoLocksError as error:
            logger.warning("%s Until then a second training in it is not noticed.", error)
            is_ours = True
        if not is_ours:
            handle.seek(0)
            holder = handle.read().strip() or "another process"
            handle.close()
            raise ValueError(
                f"{self.path} is being written by {holder}. Wait for it, stop it, or choose "
                "another --name."
            )
        handle.truncate(0)
        handle.write(f"process {os.getpid()} on {socket.gethostname()}")
        handle.flush()
        self._lock = handle

    def unlock(self) -> None:
        """Let go of the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def describe(self, config: Config, deepspeed_settings: dict[str, Any]) -> None:
        """Write config.yaml and ds_config.json, without secrets."""
        _replace(self.config, config_to_yaml(config))
        settings = json.dumps(without_secrets(deepspeed_settings), indent=2) + "\n"
        _replace(self.path / "ds_config.json", settings)

    @property
    def origin(self) -> Path:
        """Names the weights that the run began with, where it began with others'."""
        return self.path / "init_from.txt"

    def note_origin(self, init_from: str | None) -> None:
        """Keep what --init-from said, for the model card; None: the weights were drawn."""
        if init_from is None:
            self.origin.unlink(missing_ok=True)
        else:
            self.origin.write_text(f"{shown(init_from)}\n", encoding="utf-8")

    def note_task(self, task: Task) -> None:
        """Keep which task of a sweep the run is."""
        said = {"sweep": task.sweep, "task": task.number, "array": task.array}
        _replace(self._task, json.dumps(said | {"values": shown(task.values)}, indent=1) + "\n")

    def swept(self) -> list[str]:
        """The settings that the run's sweep varies; none where it belongs to none."""
        if not self._task.is_file():
            return []
        return list(json.loads(self._task.read_text(encoding="utf-8"))["values"])

    @property
    def _task(self) -> Path:
        return self.path / "sweep.json"

    def changes(self, config: Config) -> list[str]:
        """Settings of `config` that differ from the ones this folder was last written with, as
        `key: old -> new`."""
        if not self.config.is_file():
            return []
        try:
            old, new = (flat(asdict(c)) for c in (config_from_yaml(self.config), config))
        except ValueError as problem:
            return [f"all that {problem}"]
        old, new = shown(old), shown(new)  # with another secret it is the same place
        return [
            f"{key}: {old.get(key)} -> {new.get(key)}"
            for key in sorted(old | new)
            if old.get(key) != new.get(key)
        ]


def _replace(path: Path, text: str) -> None:
    """Write a file so that a kill leaves the old one or the new one, whole."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
