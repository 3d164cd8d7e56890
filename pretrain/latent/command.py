"""python -m pretrain latent encode | decode | sample | interpolate | analogy | map RUN ...

Each verb prints a table for a person, or with --json all there is to know.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from pretrain.latent.moves import analogy, between, decoded, encoded, prior_draws, vectors
from pretrain.latent.opened import LatentRun, open_latent
from pretrain.latent.texts import Texts, file_texts, given_texts
from pretrain.latent.writing import WriteSettings, generators_of
from pretrain.models.latent import Posterior
from pretrain.settings.cli import OneLineParser

Result = dict[str, Any]


@dataclass(frozen=True)
class Verb:
    """One thing to do with a latent space."""

    about: str
    add_arguments: Callable[[OneLineParser], None]
    run: Callable[[LatentRun, Any, WriteSettings], tuple[Result, str]]
    writes: bool = True  # whether it takes the settings of writing


def _encode(run: LatentRun, asked: Any, settings: WriteSettings) -> tuple[Result, str]:
    texts = _texts(run, asked)
    posterior = encoded(run, texts, batch_texts=settings.batch_texts)
    z_NZ = _chosen_z(posterior, asked)
    kl_N, rows = posterior.kl().sum(-1), []
    assert texts.written is not None
    for text, mu, logvar, z, kl in zip(texts.written, *posterior, z_NZ, kl_N, strict=True):
        numbers = {"mu": mu.tolist(), "logvar": logvar.tolist(), "z": z.tolist()}
        rows.append({"text": text, "kl_nats": float(kl), **numbers})
    shown = min(6, z_NZ.shape[1])
    lines = [
        f"{row['kl_nats']:8.3f} nats | {_few(row['z'][:shown])}"
        f"{' ...' if shown < z_NZ.shape[1] else ''} | {row['text']}"
        for row in rows
    ]
    return {"texts": rows}, "\n".join(["      KL      | z | text", *lines])


def _decode(run: LatentRun, asked: Any, settings: WriteSettings) -> tuple[Result, str]:
    return _written(run, _read_vectors(Path(asked.vectors)), settings)


def _sample(run: LatentRun, asked: Any, settings: WriteSettings) -> tuple[Result, str]:
    if asked.num < 1:
        raise ValueError(f"--num must be at least 1, got {asked.num}.")
    size = run.objective.config.latent.size
    return _written(run, prior_draws(asked.num, size, settings.seed), settings)


def _interpolate(run: LatentRun, asked: Any, settings: WriteSettings) -> tuple[Result, str]:
    ends = [asked.first, asked.last]
    z_2Z = _chosen_z(encoded(run, given_texts(run, ends, "interpolate")), asked)
    z_SZ = between(z_2Z[0], z_2Z[1], asked.steps)
    shares = torch.linspace(0, 1, asked.steps).tolist()
    labels = [f"{share:.2f}" for share in shares]
    found, table = _written(run, z_SZ, settings, labels)
    for row, share in zip(found["texts"], shares, strict=True):
        row["t"] = share
    return found | {"first": ends[0], "last": ends[1]}, f"{ends[0]}\n{table}\n{ends[1]}"


def _analogy(run: LatentRun, asked: Any, settings: WriteSettings) -> tuple[Result, str]:
    texts = [asked.a, asked.b, asked.c]
    a_Z, b_Z, c_Z = _chosen_z(encoded(run, given_texts(run, texts, "analogy")), asked)
    found, _ = _written(run, analogy(a_Z, b_Z, c_Z, asked.degree)[None], settings)
    (row,) = found["texts"]
    named = dict(zip("abc", texts, strict=True))
    lines = [*(f"  {name} | {text}" for name, text in named.items()), f"  d | {row['text']}"]
    lines.insert(0, "a is to b as c is to d")
    return found | named | {"degree": asked.degree}, "\n".join(lines)


def _map(run: LatentRun, asked: Any, settings: WriteSettings) -> tuple[Result, str]:
    from pretrain.latent.drawing import draw_map

    return draw_map(run, asked, settings)


def _texts(run: LatentRun, asked: Any) -> Texts:
    if (asked.text is None) == (asked.input is None):
        raise ValueError("encode needs texts: give either --text TEXT ... or --input FILE.")
    if asked.text is not None:
        return given_texts(run, asked.text, "--text")
    return file_texts(run, Path(asked.input), "--input")


def _chosen_z(posterior: Posterior, asked: Any) -> Tensor:
    """mu, or with --z sampled a draw of each posterior."""
    if asked.z == "mu":
        return posterior.mu
    size = posterior.mu.shape[1]
    streams = generators_of(asked.seed, range(len(posterior.mu)), "vectors")
    return posterior.sample(torch.stack([torch.randn(size, generator=g) for g in streams]))


def _written(
    run: LatentRun, z_NZ: Tensor, settings: WriteSettings, labels: Sequence[str] | None = None
) -> tuple[Result, str]:
    texts = decoded(run, z_NZ, settings)
    rows = [
        {
            "text": one.text(run.tokenizer),
            "ids": one.ids,
            "nats": one.nats,
            "complete": one.complete,
            "z": z.tolist(),
        }
        for one, z in zip(texts, z_NZ, strict=True)
    ]
    names = labels or [str(number) for number in range(1, len(rows) + 1)]
    width = max(map(len, names), default=0)
    lines = [f"  {name:>{width}} | {row['text']}" for name, row in zip(names, rows, strict=True)]
    return {"texts": rows}, "\n".join(lines)


def _read_vectors(path: Path) -> Tensor:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"--vectors {path} cannot be read as JSON: {error}.") from None
    return vectors(values, f"--vectors {path}")


def _few(values: Sequence[float]) -> str:
    return " ".join(f"{value:+.2f}" for value in values)


def _encode_arguments(parser: OneLineParser) -> None:
    parser.add_argument("--text", nargs="+", type=str, help="texts; quote each")
    parser.add_argument("--input", type=str, help="file with a text a line")


def _decode_arguments(parser: OneLineParser) -> None:
    parser.add_argument(
        "--vectors", type=str, required=True,
        help="JSON file: lists of numbers, or what `latent encode --json` printed",
    )  # fmt: skip


def _sample_arguments(parser: OneLineParser) -> None:
    parser.add_argument("--num", type=int, default=8, help="how many texts")


def _interpolate_arguments(parser: OneLineParser) -> None:
    parser.add_argument("--first", type=str, required=True, help="the text at one end")
    parser.add_argument("--last", type=str, required=True, help="the text at the other")
    parser.add_argument("--steps", type=int, default=8, help="texts in all, both ends among them")


def _analogy_arguments(parser: OneLineParser) -> None:
    for name in "abc":
        parser.add_argument(f"--{name}", type=str, required=True, help=f"text {name}")
    parser.add_argument(
        "--degree", type=float, default=1.0, help="d = c + degree x (b - a) in the latent space"
    )


def _map_arguments(parser: OneLineParser) -> None:
    from pretrain.latent.drawing import add_arguments

    add_arguments(parser)


VERBS: dict[str, Verb] = {
    "encode": Verb("texts to vectors", _encode_arguments, _encode, writes=False),
    "decode": Verb("vectors to texts", _decode_arguments, _decode),
    "sample": Verb("texts from z ~ N(0, I)", _sample_arguments, _sample),
    "interpolate": Verb("texts between two texts", _interpolate_arguments, _interpolate),
    "analogy": Verb("a is to b as c is to d", _analogy_arguments, _analogy),
    "map": Verb("a picture of the space", _map_arguments, _map),
}


def parser_of(name: str) -> OneLineParser:
    """The arguments of `python -m pretrain latent NAME`."""
    verb = VERBS[name]
    made = OneLineParser(prog=f"pretrain latent {name}", description=verb.about.capitalize() + ".")
    made.add_argument("run", type=str, metavar="RUN", help="run folder, or exported model")
    verb.add_arguments(made)
    made.add_argument(
        "--objective", type=str, default=None,
        help="which latent space, where the run has learned several",
    )  # fmt: skip
    made.add_argument("--checkpoint", type=int, default=None, help="step; by default the newest")
    if name in _DRAWING:
        made.add_argument(
            "--z", type=Literal["mu", "sampled"], default="mu",
            help="what stands for a text: the mean of its posterior, or a draw of it",
        )  # fmt: skip
    made.add_argument("--json", action="store_true", help="print all there is to know, as JSON")
    kept = [f.name for f in fields(WriteSettings) if verb.writes or f.name in _WITHOUT_WRITING]
    skipped: Any = {f.name for f in fields(WriteSettings)} - set(kept)
    made.add_class_arguments(WriteSettings, None, fail_untyped=True, skip=skipped)
    return made


_DRAWING = ("encode", "interpolate", "analogy")  # take a draw of a text's posterior if asked to
_WITHOUT_WRITING = ("batch_texts", "seed")


def main(argv: Sequence[str] | None = None) -> None:
    """Do what the command line asks and write the result to standard output."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help"):
        lines = [f"  {name:12} {verb.about}" for name, verb in VERBS.items()]
        sys.stdout.write(
            "usage: python -m pretrain latent VERB RUN ... (VERB --help says more)\n\n"
        )
        sys.stdout.write("\n".join(lines) + "\n")
        sys.exit(0 if args else 2)
    if args[0] not in VERBS:
        raise ValueError(f"latent has no verb '{args[0]}'. Verbs are {', '.join(VERBS)}.")
    parser = parser_of(args[0])
    asked = parser.parse_args(args[1:])
    names = {f.name for f in fields(WriteSettings)}
    settings = WriteSettings(**{n: v for n, v in vars(asked).items() if n in names})
    run = open_latent(Path(asked.run), asked.checkpoint, asked.objective)
    found, table = VERBS[args[0]].run(run, asked, settings)
    found = {"run": str(run.path), "step": run.step, "objective": run.objective.name} | found
    sys.stdout.write(
        f"{json.dumps(found, ensure_ascii=False, indent=1) if asked.json else table}\n"
    )
