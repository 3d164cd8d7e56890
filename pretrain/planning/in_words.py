"""A plan told to a person, in lines of text."""

from pretrain.planning.gpus import GIB
from pretrain.planning.values import Plan


def in_words(plan: Plan) -> str:
    """The plan as a page for a terminal."""
    return "\n".join(
        [
            f"{plan.name}: {number(plan.num_parameters)} parameters{_learning(plan)}, a vocabulary "
            f"of {plan.vocab_size:,} rows ({plan.vocabulary_origin})",
            f"on {plan.num_gpus} x {plan.gpu.name}, {plan.precision}, ZeRO stage {plan.zero_stage}",
            "",
            *_step_lines(plan),
            "",
            *_memory_lines(plan),
            "",
            *_cost_lines(plan),
        ]
    )


def _learning(plan: Plan) -> str:
    if plan.num_trained == plan.num_parameters:
        return ""
    return f", of which {number(plan.num_trained)} learn"


def number(value: float) -> str:
    """3.2 M, 1.05 B, 524 thousand: three digits and a word."""
    for size, word in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return (
                f"{value / size:.3g} {word}"
                if value / size < 999.5
                else f"{value / size:.0f} {word}"
            )
    return f"{value:.0f}"


def size(num_bytes: float) -> str:
    """Bytes in GiB, MiB below one."""
    if num_bytes >= 1000 * GIB:
        return f"{num_bytes / (1024 * GIB):.2f} TiB"
    if num_bytes >= GIB:
        return f"{num_bytes / GIB:.1f} GiB"
    return f"{num_bytes / 1024**2:.1f} MiB"


def _step_lines(plan: Plan) -> list[str]:
    padding = 1 - plan.tokens_per_step / plan.positions_per_step
    lines = [
        f"an update     {plan.global_rows} rows of {plan.row_tokens} = {plan.micro_rows} rows a "
        f"micro-batch x {plan.num_gpus} GPUs x {plan.accumulation} accumulated",
        f"              {number(plan.source_tokens_per_step)} source tokens become "
        f"{number(plan.tokens_per_step)} row tokens, {padding:.1%} padding, "
        f"{number(plan.targets_per_step)} targets",
        f"              {_of_each(plan)}{plan.rows_origin}",
        f"the run       {plan.steps:,} updates, {number(plan.steps * plan.source_tokens_per_step)} "
        f"source tokens",
    ]
    if list(plan.epochs) == ["all"]:  # data.shards, which has no name of its own
        lines[-1] += f", {next(iter(plan.epochs.values())):.3g} passes over the corpus"
    elif plan.epochs:
        passes = ", ".join(f"{name} {times:.3g}" for name, times in plan.epochs.items())
        lines.append(f"              passes over {passes}")
    return lines


def _of_each(plan: Plan) -> str:
    if len(plan.objectives) == 1:
        return ""
    return f"rows for each of {', '.join(plan.objectives)}, tokens of all together; "


def _memory_lines(plan: Plan) -> list[str]:
    memory = plan.memory
    parts = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "activations": memory.activations,
        "buffers": memory.buffers,
        "reserved": memory.reserved,
    }
    lines = [f"memory of a GPU, at its peak in the {memory.peak_at}"]
    for name, value in parts.items():
        lines.append(f"  {name:12}{size(value):>12}")
        if name == "weights" and memory.frozen_weights:
            lines[-1] += f"  of which {size(memory.frozen_weights)} frozen"
        if name == "activations" and memory.passes:
            each = ", ".join(f"{one} {size(value)}" for one, value in memory.passes.items())
            lines[-1] += f"  {each}"
    lines.append(f"  {'in all':12}{size(memory.total):>12}  of {size(plan.gpu.memory_bytes)}")
    if memory.on_host:
        lines.append(f"  on the host {size(memory.on_host):>12}  a GPU (offload)")
    return [*lines, _verdict(plan)]


def _verdict(plan: Plan) -> str:
    best = plan.largest_micro_rows
    if plan.fits:
        more = "" if best == plan.micro_rows else f"; batch.micro_rows {best} would fit too"
        return f"  It fits{more}."
    if best is not None:
        return f"  It does NOT fit. --batch.micro_rows {best} does."
    return (
        "  It does NOT fit, not even with one row a micro-batch. Take more GPUs, a higher ZeRO "
        "stage, or offload the optimizer in DeepSpeed's file."
    )


def _cost_lines(plan: Plan) -> list[str]:
    whole = sum(plan.checkpoint.values())
    optimizer, weights = (size(plan.checkpoint[k]) for k in ("optimizer", "model"))
    seconds = plan.days * 86_400 / plan.steps
    return [
        f"a checkpoint  {size(whole)}: {optimizer} of optimizer state, {weights} of "
        f"weights; up to {plan.checkpoints_on_disk} on disk, "
        f"{size(whole * plan.checkpoints_on_disk)}",
        f"traffic       {size(plan.sent_bytes_per_step)} sent by each GPU an update, "
        f"{plan.sent_bytes_per_step / seconds / 1e9:.3g} GB/s at the speed below",
        f"time          {time_in_words(plan.days)}, "
        f"{time_in_words(plan.days * plan.num_gpus, 'GPU-')}, "
        f"{seconds:.3g} s an update at {plan.mfu:.0%} of {plan.gpu.name}'s peak "
        f"({plan.flop_per_step:.3g} FLOP an update, recomputation not counted)",
    ]


def time_in_words(days: float, prefix: str = "") -> str:
    """`days` as 19.8 days, 3.2 hours, 45 minutes or 0.16 seconds."""
    units = (("days", 1.0), ("hours", 24.0), ("minutes", 1440.0), ("seconds", 86_400.0))
    unit, per_day = next((u for u in units if days * u[1] >= 1), units[-1])
    value = days * per_day
    said = f"{value:,.1f}" if value >= 100 else f"{value:.3g}"
    return f"{said} {prefix}{unit}"
