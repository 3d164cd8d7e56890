"""`latent map`: texts as points of a plane, coloured by labels, and the way from one to another.

The picture is a PNG or SVG file. An interpolation is drawn as numbered points; PCA shows the
straight line that it is in the latent space, t-SNE lays its points beside their neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from pretrain.latent.moves import between, decoded, encoded
from pretrain.latent.opened import LatentRun
from pretrain.latent.projection import pca, tsne
from pretrain.latent.texts import Texts, given_texts, read_lines, texts_at
from pretrain.latent.writing import WriteSettings
from pretrain.settings.cli import OneLineParser

MOST_COLOURS = 20
FORMATS = (".png", ".svg")


@dataclass(frozen=True)
class Picture:
    """What is drawn."""

    points_N2: Tensor
    labels: Sequence[str] | None  # of each point
    path_S2: Tensor  # of an interpolation; may be empty
    axes: tuple[str, str]
    title: str


def add_arguments(parser: OneLineParser) -> None:
    """The arguments of `latent map`."""
    parser.add_argument(
        "--data", type=str, required=True, help="file with a text a line, or a folder of shards"
    )
    parser.add_argument("--split", type=Literal["validation", "train"], default="validation")
    parser.add_argument("--output", type=str, required=True, help="file to draw: .png or .svg")
    parser.add_argument("--labels", type=str, help="file with a label a line, one for each text")
    parser.add_argument("--method", type=Literal["pca", "tsne"], default="pca")
    parser.add_argument("--perplexity", type=float, default=30.0, help="of t-SNE")
    parser.add_argument("--max_texts", type=int, default=1000, help="the first so many texts")
    parser.add_argument("--first", type=str, help="with --last: draw the way between two texts")
    parser.add_argument("--last", type=str, help="the text at its other end")
    parser.add_argument("--steps", type=int, default=8, help="points of the way")


def draw_map(run: LatentRun, asked: Any, settings: WriteSettings) -> tuple[dict[str, Any], str]:
    """Draw the file that was asked for; what is in it, and a line about it."""
    output = Path(asked.output)
    _check(asked, output)
    texts = texts_at(run, Path(asked.data), asked.split, num_texts=asked.max_texts)
    labels = _labels(asked, texts)
    z_NZ = encoded(run, texts, batch_texts=settings.batch_texts).mu
    if len(z_NZ) < 2:
        raise ValueError(f"--data {asked.data} holds one text, a map needs at least 2.")
    way, written = _way(run, asked, settings, z_NZ.shape[1])
    points, axes = _projected(torch.cat((z_NZ, way)), len(z_NZ), asked, settings.seed)
    picture = Picture(
        points[: len(z_NZ)], labels, points[len(z_NZ) :], axes,
        f"{run.objective.name}, step {run.step}: {len(z_NZ)} texts",
    )  # fmt: skip
    draw(picture, output)
    found = {
        "output": str(output),
        "points": picture.points_N2.tolist(),
        "labels": labels,
        "path": [{"text": t, "point": p} for t, p in zip(written, picture.path_S2.tolist())],
        "axes": axes,
    }
    lines = [f"{output}: {len(z_NZ)} texts, {axes[0]}, {axes[1]}"]
    lines += [f"  {number} | {text}" for number, text in enumerate(written, 1)]
    return found, "\n".join(lines)


def _check(asked: Any, output: Path) -> None:
    if output.suffix.lower() not in FORMATS:
        raise ValueError(f"--output must end in {' or '.join(FORMATS)}, got {output}.")
    if not output.parent.is_dir():
        raise ValueError(f"--output {output}: there is no folder {output.parent}.")
    if (asked.first is None) != (asked.last is None):
        raise ValueError("--first and --last are the two ends of a way: give both or neither.")
    if asked.max_texts < 2:
        raise ValueError(f"--max_texts must be at least 2, got {asked.max_texts}.")
    if not Path(asked.data).exists():
        raise ValueError(
            f"--data {asked.data} does not exist. Give a file with a text a line, or a folder of "
            "prepared shards."
        )


def _labels(asked: Any, texts: Texts) -> list[str] | None:
    if asked.labels is None:
        return None
    if texts.written is None:
        raise ValueError("--labels are for the lines of a file: give --data FILE, not shards.")
    labels, _ = read_lines(Path(asked.labels), "--labels")
    lines, _ = read_lines(Path(asked.data), "--data")
    if len(labels) != len(lines):
        raise ValueError(
            f"--labels {asked.labels} holds {len(labels)} labels for the {len(lines)} texts of "
            f"{asked.data}. Write one a line, in the order of the texts."
        )
    labels = labels[: asked.max_texts]
    if len(set(labels)) > MOST_COLOURS:
        raise ValueError(
            f"--labels {asked.labels} holds {len(set(labels))} different labels, colours are for "
            f"{MOST_COLOURS} at most. Give one of a few labels to each text."
        )
    return labels


def _way(
    run: LatentRun, asked: Any, settings: WriteSettings, size: int
) -> tuple[Tensor, list[str]]:
    """Vectors between two texts and what is written from them; empty where none are asked for."""
    if asked.first is None:
        return torch.zeros(0, size), []
    ends = encoded(run, given_texts(run, [asked.first, asked.last], "map")).mu
    way = between(ends[0], ends[1], asked.steps)
    return way, [one.text(run.tokenizer) for one in decoded(run, way, settings)]


def _projected(
    z_NZ: Tensor, num_texts: int, asked: Any, seed: int
) -> tuple[Tensor, tuple[str, str]]:
    if asked.method == "tsne":
        axes = (f"t-SNE, perplexity {asked.perplexity:g}", "t-SNE 2")
        return tsne(z_NZ, perplexity=asked.perplexity, seed=seed), axes
    plane = pca(z_NZ[:num_texts])  # of the texts; the way is seen along their axes
    names = tuple(f"PC {n} ({share:.1%})" for n, share in enumerate(plane.shares, 1))
    return plane.points(z_NZ), (names[0], names[1])


def draw(picture: Picture, output: Path) -> None:
    """Write the picture to a PNG or SVG file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.5, 6), layout="constrained")
    x, y = picture.points_N2.t().tolist()
    if picture.labels is None:
        axes.scatter(x, y, s=12, alpha=0.6, color="tab:blue")
    else:
        colours = matplotlib.colormaps["tab10" if len(set(picture.labels)) <= 10 else "tab20"]
        for number, label in enumerate(sorted(set(picture.labels))):
            of_label = [i for i, own in enumerate(picture.labels) if own == label]
            at_x, at_y = [x[i] for i in of_label], [y[i] for i in of_label]
            axes.scatter(at_x, at_y, s=12, alpha=0.7, color=colours(number), label=label)
        axes.legend(markerscale=2, fontsize="small")
    if len(picture.path_S2):
        path_x, path_y = picture.path_S2.t().tolist()
        axes.plot(path_x, path_y, "o-", color="black", markersize=4, linewidth=1)
        for number, place in enumerate(zip(path_x, path_y, strict=True), 1):
            axes.annotate(str(number), place, textcoords="offset points", xytext=(4, 4))
    axes.set(xlabel=picture.axes[0], ylabel=picture.axes[1], title=picture.title)
    figure.savefig(output, dpi=150)
    pyplot.close(figure)
