"""python -m pretrain VERB, also installed as `palimpsest VERB`; `palimpsest data VERB` is
data_pipeline's.

A user's mistake ends in one line on stderr and exit code 2. What a verb needs is imported when it
is called, so that --help answers at once.
"""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pretrain.environment import refuse_foreign_kernels
from pretrain.recording.run_log import log_to_stderr
from pretrain.settings.mistakes import AgreedError, LostRankError, NotMetError, say, say_alone

if TYPE_CHECKING:
    from pretrain.settings.config import Config


def _train(argv: Sequence[str]) -> None:
    from pretrain.settings.cli import parse_train

    config, start = parse_train(argv)
    log_to_stderr()
    if start.task and _is_finished(config):
        return
    for source in config.data.sources:
        if "://" not in source.shards and not (Path(source.shards) / "manifest.json").is_file():
            field = "data.corpora" if config.data.corpora else "data.shards"
            raise ValueError(
                f"{field}: no prepared shards in {source.shards}. Make them with: "
                "python -m data_pipeline prepare --input TEXT --tokenizer TOKENIZER "
                f"--validation 0.01 --output {source.shards}"
            )
    from pretrain.distributed.stop_signs import EXIT_CODE, NOT_MET_CODE
    from pretrain.training.train import run

    try:
        stopped_by = run(config, start)
    except AgreedError:
        raise
    except LostRankError as error:
        # Each rank by itself: nobody knows which of the others is left to speak for all.
        say_alone(str(error))
        leave_at_once(1)
    except NotMetError as error:
        say_alone(str(error))
        leave_at_once(NOT_MET_CODE)
    except (ValueError, OSError) as error:
        # Met by this rank alone, as damage in the rows that only it reads.
        say_alone(str(error))
        leave_at_once(2)
    leave_at_once(0 if stopped_by is None else EXIT_CODE)


def _is_finished(config: "Config") -> bool:
    """Whether all steps of a sweep's task are done, said once: no mistake, unlike elsewhere, since
    an array is submitted again for the tasks that are not."""
    from pretrain.recording.status import state_of

    folder = Path(config.runs) / config.name
    finished = state_of(folder, steps=config.steps) == "finished"
    if finished and os.environ.get("RANK", "0") == "0":
        logging.getLogger(__name__).info("%s: finished, nothing left to do", folder)
    return finished


def _generate(argv: Sequence[str]) -> None:
    from pretrain.filling.generate import main as generate

    log_to_stderr()
    generate(argv)


def _evaluate(argv: Sequence[str]) -> None:
    from pretrain.evaluate.command import main as evaluate

    log_to_stderr()
    evaluate(argv)


def _latent(argv: Sequence[str]) -> None:
    from pretrain.latent.command import main as latent

    log_to_stderr()
    latent(argv)


def _plan(argv: Sequence[str]) -> None:
    from pretrain.planning.plan import main as plan

    plan(argv)


def _export(argv: Sequence[str]) -> None:
    from pretrain.handing_over.export import main as export

    log_to_stderr()
    export(argv)


def _data(argv: Sequence[str]) -> None:
    from data_pipeline.__main__ import main as data

    sys.exit(data(list(argv)))


def _sweep(argv: Sequence[str]) -> None:
    from pretrain.sweeps.sweep import main as sweep

    log_to_stderr()
    text, code = sweep(argv)
    if text:
        print(text)
    sys.exit(code)


def _compare(argv: Sequence[str]) -> None:
    from pretrain.comparing.compare import main as compare

    print(compare(argv))


def _status(argv: Sequence[str]) -> None:
    from pretrain.recording.status import main as status

    print(status(argv))


def _progress(argv: Sequence[str]) -> None:
    from pretrain.comparing.progress import main as progress

    print(progress(argv))


VERBS: dict[str, tuple[Callable[[Sequence[str]], None], str]] = {
    "train": (_train, "train from a recipe under DeepSpeed"),
    "plan": (_plan, "memory, disk, traffic and days of a run, before it is started"),
    "generate": (_generate, "fill blanks and continue texts with a trained run"),
    "evaluate": (_evaluate, "measure a latent space on held-out text"),
    "latent": (_latent, "texts to latent vectors and back, between texts, on a map"),
    "export": (_export, "write the model of a run as one folder, to be handed over"),
    "sweep": (_sweep, "the tasks of a sweep file: a recipe trained with many settings"),
    "compare": (_compare, "runs side by side: settings that differ, losses, speed, cost, state"),
    "status": (_status, "say what a run is doing and when it will end"),
    "progress": (_progress, "say how far a run has come, to batch scripts"),
    "data": (_data, "prepare, inspect, verify and count shards (python -m data_pipeline)"),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the verb that `argv` (by default the command line) names."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help"):
        print("usage: python -m pretrain VERB ... (VERB --help says more)\n")
        print("\n".join(f"  {name:10} {about}" for name, (_, about) in VERBS.items()))
        sys.exit(0 if args else 2)
    if args[0] not in VERBS:
        _fail(f"there is no verb '{args[0]}'. Verbs are {', '.join(VERBS)}.")
    try:
        refuse_foreign_kernels()
        VERBS[args[0]][0](args[1:])
    except AgreedError as error:
        _fail(str(error), agreed=True)
    except (ValueError, OSError) as error:
        _fail(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


def leave_at_once(code: int) -> NoReturn:
    """End the process without the interpreter's own exit.

    Threads of gloo outlive their process group and abort that exit now and then ("terminate called
    without an active exception", exit code -6), which a launcher would take for a lost run. All
    that a training writes is on the disk by now.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _fail(message: str, *, agreed: bool = False) -> NoReturn:
    say(message, agreed=agreed)
    sys.exit(2)


if __name__ == "__main__":
    main()
