"""The processes that build batches ahead: what they come from, and how they end.

A worker outlives no trainer, and takes no signal that is meant for it.
"""

import multiprocessing
import os
import signal
import threading
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext

TRAINERS_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # they ask it to save and stop


def worker_context(preload: str) -> BaseContext:
    """Workers come from a server that has imported `preload` and nothing else of the trainer.

    A fork of the trainer itself would inherit its threads' locks, CUDA context and connections.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preload])
    # A blocked signal stays blocked through exec and fork, so that server, tracker and workers are
    # safe from their first instruction; those that reach the trainer meanwhile are only late.
    for start in (resource_tracker.ensure_running, forkserver.ensure_running):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, TRAINERS_SIGNALS)
        try:
            start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def start_worker(worker_id: int) -> None:
    """A worker leaves the signals that stop a run to the trainer, and ends with it however it ends.

    Launchers (SLURM, torchrun, deepspeed) and terminals signal all processes of a group at once.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, TRAINERS_SIGNALS)
    for wait in (_end_with_trainer, _end_when_told):
        threading.Thread(target=wait, name=wait.__name__, daemon=True).start()


def _end_with_trainer() -> None:
    # torch's own watch compares parent process numbers; a worker's parent is the fork server, which
    # lives for as long as its workers do.
    trainer = multiprocessing.parent_process()
    assert trainer is not None
    trainer.join()
    os.kill(os.getpid(), signal.SIGKILL)


def _end_when_told() -> None:
    """The trainer itself still ends a worker by SIGTERM, as multiprocessing does at its exit."""
    trainer = multiprocessing.parent_process()
    assert trainer is not None
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != trainer.pid:
        pass
    os.kill(os.getpid(), signal.SIGKILL)
