"""The corpora of a run: one folder of shards, or several that are read together by weight.

    data: {shards: books}
    data: {corpora: [{shards: books, weight: 0.7}, {shards: web, weight: 0.3}]}

All corpora of a run have one tokenizer, that of the first.
"""

import socket
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.packing.blend import BlendedPosition, Mix, Place, whole_weights
from data_pipeline.protocols import Split
from data_pipeline.storage.damage import file_problem
from data_pipeline.storage.shards import Shards, check_one_tokenizer, open_shards
from pretrain.distributed.world import World
from pretrain.settings.data_config import CorpusConfig


@dataclass(frozen=True)
class Corpus:
    """A folder of shards, and how much of the rows it gives in relation to the others."""

    name: str
    shards: Shards
    weight: float

    @property
    def train(self) -> Split:
        return self.shards.splits["train"]


@dataclass(frozen=True)
class Corpora:
    """What a run reads; one corpus or more."""

    corpora: tuple[Corpus, ...]

    @property
    def shards(self) -> Shards:
        """The first corpus's, whose tokenizer and special ids are those of all."""
        return self.corpora[0].shards

    @property
    def is_mixed(self) -> bool:
        return len(self.corpora) > 1

    @property
    def train(self) -> Split | Mix:
        """What training rows are made of."""
        if not self.is_mixed:
            return self.corpora[0].train
        return Mix(
            tuple(corpus.train for corpus in self.corpora),
            tuple(corpus.weight for corpus in self.corpora),
        )

    @property
    def fingerprint(self) -> str:
        """Changes with any byte of any training split, with their order and with the weights."""
        if not self.is_mixed:
            return self.corpora[0].train.fingerprint
        whole = whole_weights([corpus.weight for corpus in self.corpora])
        return " + ".join(f"{w} x {c.train.fingerprint}" for w, c in zip(whole, self.corpora))

    def rows_ratio(self, corpus: Corpus) -> float:
        """The share of all rows that `corpus` gives."""
        return corpus.weight / sum(c.weight for c in self.corpora)

    @property
    def folders(self) -> str:
        """Where they lie, in words."""
        return ", ".join(str(corpus.shards.folder) for corpus in self.corpora)

    def held_out(self) -> list[Corpus]:
        """Those with a validation split that holds something."""
        return [c for c in self.corpora if c.shards.splits["validation"].num_documents]

    def held_out_gap(self) -> str | None:
        """Which corpora the held-out mean leaves out, in words; None where it is of all or none."""
        held_out = self.held_out()
        missing = [c.name for c in self.corpora if c not in held_out]
        if not missing or not held_out:
            return None
        return (
            f"no validation split in {', '.join(missing)}: held-out losses are of "
            f"{', '.join(c.name for c in held_out)} alone"
        )

    def shares(self, place: Place) -> dict[str, float]:
        """Each corpus's share of the text's tokens up to `place`, by name; none of a single one."""
        if not isinstance(place, BlendedPosition) or not any(place.source_tokens):
            return {}
        total = sum(place.source_tokens)
        return {c.name: n / total for c, n in zip(self.corpora, place.source_tokens, strict=True)}


def open_corpora(sources: tuple[CorpusConfig, ...]) -> Corpora:
    """The corpora that a recipe names, their sizes compared with their manifests.

    Raises ValueError naming the folder for damage, an empty training split where there are
    several, or another tokenizer than the first one's.
    """
    opened = [open_shards(Path(source.shards)) for source in sources]
    check_one_tokenizer(opened)
    for shards in opened:
        if not shards.splits["train"].num_documents and len(opened) > 1:
            raise ValueError(
                f"{shards.folder} holds no training documents. Leave it out of data.corpora."
            )
    return Corpora(
        tuple(
            Corpus(source.called, shards, source.weight)
            for source, shards in zip(sources, opened, strict=True)
        )
    )


def check_every_byte(corpora: Corpora, world: World) -> None:
    """Compare every file's checksum, once on each host; a collective.

    The ranks of a host share its files, and all ranks meet after every file, so that none waits for
    longer than a file takes. Raises ValueError, the same on every rank, naming a damaged file.
    """
    files = [(c.shards.folder, file) for c in corpora.corpora for file in c.shards.manifest.files()]
    hosts = world.gather(socket.gethostname())
    peers = [rank for rank, host in enumerate(hosts) if host == hosts[world.rank]]
    share = files[peers.index(world.rank) :: len(peers)]
    for turn in range(max(world.gather(len(share)))):
        problem = file_problem(*share[turn]) if turn < len(share) else None
        world.agree(
            problem
            and f"{problem}. All damage is named by: "
            f"python -m data_pipeline verify {share[turn][0]}"
        )
