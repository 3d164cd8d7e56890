"""What the bounds of many texts say of a latent space, as plain numbers and as a table.

Every mean is one sum over one count, so that nothing depends on how texts were batched. With N
texts of T targets (all their tokens and their ends; the beginning is none), W words and B bytes:

    nats_per_sentence_iw    sum / N        perplexity_per_token   exp(sum / T)
    nats_per_token_iw       sum / T        perplexity_per_word    exp(sum / (W + N))
                                           perplexity_per_byte    exp(sum / (B + N))

where sum is that of the importance-weighted bounds. The end of a text counts as a token, and so as
a word and as a byte (as a line break would): it is predicted, and paid for in every sum. Words are
what stands between white space.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import Tensor

from data_pipeline.rows import KINDS
from pretrain.evaluate.bound import TextBounds
from pretrain.objectives.health import LOG_2PI, active_units, mixture_log_density

Denominator = Literal["targets", "reference"]


@dataclass(frozen=True)
class TextSizes:
    """Words and UTF-8 bytes of N texts, their ends not counted."""

    words: int
    bytes: int

    @classmethod
    def of(cls, texts: Sequence[str]) -> "TextSizes":
        """Counted by white space and in UTF-8."""
        return cls(sum(len(t.split()) for t in texts), sum(len(t.encode()) for t in texts))


class Information(NamedTuple):
    """How the KL of the posteriors is made up, in nats; see objectives/health.py."""

    mutual_information_nats: float
    mi_ceiling_nats: float  # log N
    marginal_kl_nats: float  # of the mixture of all posteriors to the prior
    active_units: int


def information(mu_NZ: Tensor, logvar_NZ: Tensor, z_NSZ: Tensor) -> Information | None:
    """MI and marginal KL of N texts with S draws of each posterior; None for fewer than two texts.

    Both are estimated by themselves: they add up to the KL within Monte-Carlo error. With S = 1 the
    first is mutual_information_nats of health.py; more draws make it less noisy.
    """
    if len(mu_NZ) < 2:
        return None
    mu, logvar, z = (t.double() for t in (mu_NZ, logvar_NZ, z_NSZ))
    log_mixture = mixture_log_density(z.flatten(0, 1), mu, logvar).mean()
    negative_entropy = -0.5 * (LOG_2PI + 1.0 + logvar).sum(-1).mean()
    log_prior = -0.5 * (LOG_2PI + z.square()).sum(-1).mean()
    return Information(
        mutual_information_nats=float(negative_entropy - log_mixture),
        mi_ceiling_nats=math.log(len(mu)),
        marginal_kl_nats=float(log_mixture - log_prior),
        active_units=active_units(mu),
    )


def report(
    texts: TextBounds, sizes: TextSizes | None, denominator: Denominator = "targets"
) -> dict[str, Any]:
    """The numbers of all texts together, and by kind of blank where there are several.

    sizes: words and bytes, where the targets are whole texts. denominator: reference counts the
    beginning of each text as a token too, though it is never predicted, as the published code of
    Optimus and AdaVAE does.
    """
    found = _of_texts(texts, denominator) | _of_sizes(texts, sizes)
    kinds = [number for number in texts.kind.unique().tolist() if number]
    if len(kinds) > 1:
        found["by_kind"] = {
            KINDS[number]: _of_texts(texts.take(texts.kind == number), denominator)
            for number in kinds
        }
    return found


def _of_texts(texts: TextBounds, denominator: Denominator) -> dict[str, Any]:
    num_texts, num_targets = len(texts.kind), float(texts.num_targets.sum())
    num_tokens = num_targets + (num_texts if denominator == "reference" else 0)
    iw, elbo = (float(t.sum()) for t in (texts.iw_nats, texts.elbo_nats))
    extra = texts.shuffled_nats - texts.own_nats
    known = information(texts.mu, texts.logvar, texts.z)
    without = {}
    if texts.without_nats is not None:
        more = texts.without_nats - texts.own_nats
        without["without_z_extra_nats"] = float(more.mean())
    return {
        "num_texts": num_texts,
        "num_tokens": num_tokens,
        "nats_per_sentence_iw": iw / num_texts,
        "nats_per_sentence_elbo": elbo / num_texts,
        "reconstruction_nats": float(texts.reconstruction_nats.mean()),
        "kl_nats": float(texts.kl_nats.mean()),
        "nats_per_token_iw": iw / num_tokens,
        "nats_per_token_elbo": elbo / num_tokens,
        "perplexity_per_token": _perplexity(iw, num_tokens),
        "perplexity_per_token_elbo": _perplexity(elbo, num_tokens),
        "shuffled_z_extra_nats": float(extra.mean()) if num_texts > 1 else None,
        **without,
        **(known._asdict() if known else dict.fromkeys(Information._fields)),
        "latent_size": texts.mu.shape[1],
    }


def _of_sizes(texts: TextBounds, sizes: TextSizes | None) -> dict[str, Any]:
    if sizes is None:
        return {}
    num_texts, iw = len(texts.kind), float(texts.iw_nats.sum())
    return {
        "num_words": sizes.words + num_texts,
        "num_bytes": sizes.bytes + num_texts,
        "perplexity_per_word": _perplexity(iw, sizes.words + num_texts),
        "perplexity_per_byte": _perplexity(iw, sizes.bytes + num_texts),
    }


def _perplexity(nats: float, count: float) -> float | None:
    """None where it is too large for a number, as that of an untrained model of long texts is."""
    try:
        return math.exp(nats / count) if count else None
    except OverflowError:
        return None


_ROWS = (
    ("-log p(x), importance-weighted bound", "nats_per_sentence_iw", "nats a sentence"),
    ("-ELBO", "nats_per_sentence_elbo", "nats a sentence"),
    ("  reconstruction", "reconstruction_nats", "nats a sentence"),
    ("  KL", "kl_nats", "nats a sentence"),
    ("    mutual information", "mutual_information_nats", "nats, at most log N = {ceiling}"),
    ("    marginal KL", "marginal_kl_nats", "nats"),
    ("reconstruction with another text's z", "shuffled_z_extra_nats", "nats a sentence more"),
    ("reconstruction without any z", "without_z_extra_nats", "nats a sentence more"),
    ("active units", "active_units", "of {latent_size} dimensions"),
    ("perplexity a token", "perplexity_per_token", "{num_tokens} tokens"),
    ("  by the ELBO", "perplexity_per_token_elbo", ""),
    ("perplexity a word", "perplexity_per_word", "{num_words} words and ends"),
    ("perplexity a byte", "perplexity_per_byte", "{num_bytes} bytes and ends"),
)


def as_table(found: Mapping[str, Any], title: str) -> str:
    """A report as lines that a person reads; kinds of blanks stand side by side below it."""
    ceiling = found["mi_ceiling_nats"]
    values = {
        **{name: _number(v) for name, v in found.items() if not isinstance(v, Mapping)},
        "ceiling": "?" if ceiling is None else f"{ceiling:.2f}",
    }
    lines = [title]
    for label, name, unit in _ROWS:
        if name in found:
            lines.append(f"  {label:38} {values[name]:>12}  {unit.format(**values)}".rstrip())
    if kinds := found.get("by_kind"):
        lines += ["", f"  {'by kind':38} " + " ".join(f"{kind:>12}" for kind in kinds)]
        for label, name, _ in _ROWS:
            cells = [_number(of_kind[name]) for of_kind in kinds.values() if name in of_kind]
            if cells:
                lines.append(f"  {label:38} " + " ".join(f"{cell:>12}" for cell in cells))
        counts = " ".join(f"{of_kind['num_texts']:>12,}" for of_kind in kinds.values())
        lines.append(f"  {'texts':38} {counts}")
    return "\n".join(lines)


def _number(value: Any) -> str:
    if value is None:
        return "?"
    if isinstance(value, float) and not value.is_integer():
        return f"{value:,.4f}" if abs(value) < 1e6 else f"{value:.3e}"
    return f"{int(value):,}" if isinstance(value, int | float) else str(value)
