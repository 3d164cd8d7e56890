"""locking.py: who has a lock, and a disk that has none."""

import errno
import fcntl
import os
from pathlib import Path
from typing import NoReturn

import pytest

from data_pipeline.preparing.output_folder import OutputFolder
from data_pipeline.storage.locking import NoLocksError, lock


def test_a_lock_is_had_by_one_or_shared_by_many(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with open(path, "w") as one, open(path) as other:
        assert lock(one.fileno(), tmp_path, is_shared=True)
        assert lock(other.fileno(), tmp_path, is_shared=True)
        assert not lock(one.fileno(), tmp_path)
        other.close()
        assert lock(one.fileno(), tmp_path)


@pytest.mark.parametrize("is_shared", [False, True])
def test_prepare_says_what_a_disk_without_locks_means(
    is_shared: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def unlockable(*_: object) -> NoReturn:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unlockable)
    with pytest.raises(NoLocksError, match="No locks available"), open(tmp_path / "x", "w") as file:
        lock(file.fileno(), tmp_path)
    with OutputFolder(tmp_path / "shards", is_shared=is_shared):
        (said,) = caplog.messages
    assert f"the file system of {tmp_path} has no locks" in said and "Lustre: -o flock" in said
    assert "a second process that writes it is not noticed" in said
