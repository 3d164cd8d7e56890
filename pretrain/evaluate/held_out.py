"""Loss on the validation split while training: nats per target, by kind of blank, the same on every
rank.

Every rank takes the same number of batches, so that no rank waits for a collective that another
skips; where rows run out, a batch is padding and adds nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import torch

from data_pipeline.packing.loader import Batch
from pretrain.distributed.engine import Engine
from pretrain.objectives.loss import Objective
from pretrain.training.update import to_device


def mean_nats(
    nats_of: Mapping[str, Mapping[str, float]], weights: Mapping[str, float]
) -> dict[str, float]:
    """Mean of each term over corpora by their weights: what the mix is expected to lose.

    nats_of: corpus -> term -> nats per target. A corpus without a term has no part in its mean.
    """
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for name, terms in nats_of.items():
        for term, nats in terms.items():
            pairs[term].append((weights[name], nats))
    return {term: sum(w * n for w, n in p) / sum(w for w, _ in p) for term, p in pairs.items()}


def minimised(objectives: Sequence[Objective], nats: Mapping[str, float]) -> float | None:
    """What a training on these means would minimise; None where one of its terms is missing."""
    parts = [(o.weight, nats.get(f"{o.name}/{term}")) for o in objectives for term in o.optimised]
    known = [weight * mean for weight, mean in parts if mean is not None]
    return sum(known) if len(known) == len(parts) else None


def held_out_nats(
    engine: Engine, objectives: Sequence[Objective], batches: Mapping[str, Iterable[Batch]]
) -> dict[str, float]:
    """Mean nats per target of each objective's terms over `batches`, as {"objective/term": nats}.

    A term without any target is left out. A collective; dropout is off.
    """
    device = engine.world.device
    totals: dict[str, torch.Tensor] = defaultdict(
        lambda: torch.zeros(2, dtype=torch.float64, device=device)
    )
    engine.module.eval()
    with torch.no_grad():
        for objective in objectives:
            for batch in batches[objective.name]:
                inputs = to_device(objective.inputs(batch), engine.world.device)
                for name, term in engine.forward(objective, inputs).items():
                    totals[f"{objective.name}/{name}"] += torch.stack(term).double()
    engine.module.train()
    names = sorted(totals)
    summed = engine.world.sum(torch.stack([totals[n] for n in names])).tolist()
    return {n: total / count for n, (total, count) in zip(names, summed, strict=True) if count > 0}
