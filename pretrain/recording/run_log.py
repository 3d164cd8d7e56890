"""What a run says: to a person's terminal from rank 0, and to a file of its own from every rank."""

import logging
import logging.handlers
import socket
import sys
from pathlib import Path

from pretrain.settings.mistakes import AgreedError, LostRankError
from pretrain.settings.told import ToldFormatter

FILE_BYTES = 20_000_000
FULL_FILES_KEPT = 5


def log_to_stderr() -> None:
    """Log lines on the terminal, with the libraries' chatter left out."""
    to_terminal = logging.StreamHandler(sys.stderr)
    to_terminal.setFormatter(ToldFormatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[to_terminal])
    for noisy in ("DeepSpeed", "torch.distributed", "filelock", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def log_end(error: BaseException) -> None:
    """Write what ends this rank to its own file; the terminal hears it from `__main__`.

    With the traceback, unless the error is one that all ranks agreed on or that another one made.
    """
    expected = isinstance(error, (AgreedError, LostRankError))
    record = logging.getLogger(__name__).makeRecord(
        __name__, logging.ERROR, __file__, 0, "ended by %s: %s", (type(error).__name__, error),
        None if expected else (type(error), error, error.__traceback__),
    )  # fmt: skip
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.handlers.RotatingFileHandler):
            handler.handle(record)


def log_to_file(folder: Path, rank: int) -> logging.Handler:
    """Add a file of this rank, and leave the terminal to rank 0 but for warnings.

    A file of 20 MB becomes rank-N.log.1, that one rank-N.log.2, and so on up to 5. Returns the
    handler, for whoever ends the run to close.
    """
    if rank:
        for handler in logging.getLogger().handlers:
            handler.setLevel(logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    to_file = logging.handlers.RotatingFileHandler(
        folder / f"rank-{rank}.log",
        maxBytes=FILE_BYTES,
        backupCount=FULL_FILES_KEPT,
        encoding="utf-8",
    )
    where = f"{socket.gethostname()} rank {rank}"
    to_file.setFormatter(ToldFormatter(f"%(asctime)s {where} %(levelname)s %(message)s"))
    logging.getLogger().addHandler(to_file)
    return to_file
