"""Locks that end with the process that holds them (flock), and disks that have none.

with open(folder / ".lock", "a") as file:
    if not lock(file.fileno(), folder):
        ...                                     # another process has it
"""

import errno
import fcntl
from pathlib import Path

# What Lustre mounted without `flock`, NFS without its lock service, and some FUSE disks answer.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


class NoLocksError(ValueError):
    """The file system of a folder has no locks."""


def lock(file: int, folder: Path, *, is_shared: bool = False) -> bool:
    """Lock an open file; False where another process holds it otherwise.

    Raises NoLocksError, naming `folder` and what to do, where its file system has no locks.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise NoLocksError(
            f"the file system of {folder} has no locks (flock: {error.strerror}). Ask for a mount "
            "that has them (Lustre: -o flock), or name a folder on another disk."
        ) from error
    return True
