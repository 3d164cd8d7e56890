"""What a run reads: one folder of prepared shards, or several by weight, and how rows are made."""

import os
import re
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Literal

from data_pipeline.packing.plan import PackingConfig
from data_pipeline.reading.file_kinds import without_credentials


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """One of several corpora that are read together."""

    shards: str
    """Folder of prepared shards. A relative path counts from the caller's folder."""
    weight: float
    """Rows it gives in relation to the other corpora: 0.7 beside 0.3, or 7 beside 3."""
    name: str | None = None
    """Its name in the log and in TensorBoard; by default that of its folder."""

    def __post_init__(self) -> None:
        if not 0 < self.weight < float("inf"):
            raise ValueError(
                f"data.corpora: the weight of {self.called} must be finite and above 0, got "
                f"{self.weight}."
            )
        if not re.fullmatch(r"[\w.-]+", self.called):
            raise ValueError(
                f"data.corpora: {self.called!r} is no name for a curve. Give {self.shards} a name "
                "of letters, digits and _ . -"
            )

    @property
    def called(self) -> str:
        """Its name, given or its folder's."""
        return self.name or without_credentials(self.shards).rstrip("/").rpartition("/")[2]


def corpora_problem(said: Any) -> str | None:
    """What is wrong with a value of data.corpora as YAML gives it, entry by entry; None: nothing.

    What an entry may hold beyond its form is CorpusConfig's own matter.
    """
    if said is None or said == []:
        return None
    keys = [field.name for field in fields(CorpusConfig)]
    example = "as {shards: books, weight: 0.7}"
    if not isinstance(said, list):
        return f"data.corpora must be a list of entries {example}, got {said}."
    for number, entry in enumerate(said, start=1):
        where = f"data.corpora, entry {number}"
        if not isinstance(entry, dict):
            return f"{where}: must say shards and weight, {example}, got {entry}."
        for key in entry:
            if key not in keys:
                near = get_close_matches(str(key), keys, n=1)
                hint = f"Did you mean '{near[0]}'?" if near else f"It has {', '.join(keys)}."
                return f"{where}: unknown setting '{key}'. {hint}"
        for key in ("shards", "weight"):
            if key not in entry:
                return f"{where}: {key} is missing, {example}."
        try:
            float(entry["weight"])
        except (TypeError, ValueError):
            return f"{where}: weight must be a number, got {entry['weight']}."
    return None


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the prepared shards lie and how their documents become packed rows."""

    shards: str | None = None
    """Folder that `python -m data_pipeline prepare --output` wrote. A relative path counts from the
    caller's folder. Either this or `corpora`."""
    corpora: tuple[CorpusConfig, ...] = ()
    """Several folders that are read together, as [{shards: books, weight: 0.7}, {shards: web,
    weight: 0.3}]: at every step their shares of the rows so far follow the weights."""
    packing: PackingConfig = field(default_factory=PackingConfig)
    """How documents are cut and packed into rows."""
    num_workers: int = 2
    """Processes a rank that build batches ahead; 0 builds them in the training process. Never
    changes the rows."""
    verify: Literal["sizes", "hashes"] = "sizes"
    """What is compared with the manifest at start: sizes, or every byte's checksum too, read once
    on each host (about a second a gigabyte)."""
    skip_steps: tuple[tuple[int, int], ...] = ()
    """First and last step, from 1, of each stretch whose rows are passed over without training on
    them, as [[1200, 1210]]; for text that a loss curve has shown to be bad (Chowdhery et al. 2022,
    5.1)."""
    local_cache: str | None = None
    """Folder on a disk of each host, as an NVMe, to which the shards are copied before the first
    step, each byte compared with its checksum; the next start finds them there. Needed where shards
    lie behind a URL (s3://bucket/shards). Nothing is ever removed from it."""
    allow_other_data: bool = False
    """Whether a resume may continue with other shards, seed, packing or blanks than the
    checkpoint's (the rows then differ from there on), and
    --init-from may take weights trained with another tokenizer."""

    @property
    def sources(self) -> tuple[CorpusConfig, ...]:
        """All corpora, a single one too."""
        if self.shards is None:
            return self.corpora
        return (CorpusConfig(shards=self.shards, weight=1.0, name="all"),)

    def __post_init__(self) -> None:
        if (self.shards is None) == (not self.corpora):
            found = "neither is given"
            if self.corpora:
                found = f"both are given. To read the corpora say shards: null (now {self.shards})"
            raise ValueError(
                f"data.shards names one folder of prepared shards, data.corpora several: {found}."
            )
        folders = [os.path.realpath(corpus.shards) for corpus in self.corpora]
        for corpus, folder in zip(self.corpora, folders, strict=True):
            if folders.count(folder) > 1:
                raise ValueError(
                    f"data.corpora: {corpus.shards} is named twice. Name each folder once, with "
                    "the sum of its weights."
                )
        names = [corpus.called for corpus in self.corpora]
        if len(names) != len(set(names)):
            raise ValueError(
                f"data.corpora: names must differ, got {', '.join(names)}. Give each a `name`."
            )
        remote = [c.shards for c in self.sources if "://" in c.shards]
        if remote and self.local_cache is None:
            raise ValueError(
                f"{without_credentials(remote[0])} lies behind a URL: set data.local_cache to a "
                "folder on each host's own disk, to which the shards are copied."
            )
        if self.num_workers < 0:
            raise ValueError(f"data.num_workers must be 0 or more, got {self.num_workers}.")
        for first, last in self.skip_steps:
            if not 1 <= first <= last:
                raise ValueError(
                    "data.skip_steps must be pairs of a first and a last step, counted from 1, got "
                    f"[{first}, {last}]."
                )
