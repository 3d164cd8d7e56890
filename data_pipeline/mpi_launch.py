"""Whether mpirun has started this process as one of several. Nothing of MPI is imported for it.

mpirun -n 8 python -m mpi4py -m data_pipeline prepare ...      8
mpirun -n 8 python -m data_pipeline prepare ...                8
python -m data_pipeline prepare ...                            1
"""

import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from data_pipeline.preparing.missing_slices import Deal
    from data_pipeline.preparing.request import PrepareSettings

_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
_LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK")
_LAST_WORDS_S = 10  # mpirun ends all when one ends: the one that says why comes first


def num_launched() -> int:
    """Processes that the launcher says it has started with this one; 1 where there is none."""
    sizes = [int(os.environ[name]) for name in _SIZES if os.environ.get(name, "").isdigit()]
    return max(sizes, default=1)


def is_rank() -> bool:
    """True where MPI must be asked which of several this process is."""
    return num_launched() > 1 or "mpi4py.run" in sys.modules


def run_on_ranks(
    lead: "Callable[[Deal | None], int]", read: "Callable[[], PrepareSettings]"
) -> int:
    """See preparing/ranks.py. Raises ValueError where MPI is not there, or another than mpirun's;
    one process of each host does, and its end ends the others."""
    try:
        try:
            from data_pipeline.preparing.ranks import run_on_ranks as run
        except (ImportError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"mpirun started {num_launched()} processes, and {sys.executable} cannot use MPI "
                f"({reason}). Install mpi4py and the MPI library whose mpirun this is, or start "
                "prepare without mpirun, with --workers N."
            ) from error
        return run(lead, read, num_launched())
    except ValueError:
        if next((os.environ[n] for n in _LOCAL_RANKS if n in os.environ), "0") != "0":
            time.sleep(_LAST_WORDS_S)
        raise
