"""Documents to shards: `python -m data_pipeline prepare`. The same inputs give the same bytes.

    files -> slices -> parts, by any number of processes -> shards, by one -> manifest, last

What is finished survives a kill: the same request goes on behind it and ends with the same bytes.
"""

import logging
from pathlib import Path

from data_pipeline.preparing.finished import AlreadyPrepared, refuse_finished
from data_pipeline.preparing.merge import merge, merged_bytes
from data_pipeline.preparing.missing_slices import (
    Deal,
    errors_tell_what_is_kept,
    prepare_missing,
)
from data_pipeline.preparing.output_folder import OutputFolder, remove_leftovers
from data_pipeline.preparing.parts import remove_slice
from data_pipeline.preparing.request import PrepareSettings, Request, open_request
from data_pipeline.reading.sources import total_bytes
from data_pipeline.storage.manifest import Manifest
from data_pipeline.watch import Watch, unwatched

__all__ = ["AlreadyPrepared", "PrepareSettings", "prepare"]

_log = logging.getLogger(__name__)


def prepare(
    settings: PrepareSettings, watch: Watch = unwatched, deal: Deal | None = None
) -> Manifest:
    """Write the folder of shards that `settings` asks for and give its manifest.

    watch: opens a progress bar over the bytes of the inputs, then one over those the merge reads.
    deal: who prepares the slices; None: this process and its workers.
    Raises ValueError on anything wrong with the inputs, AlreadyPrepared if there is nothing to do.
    """
    request = open_request(settings)
    output = Path(settings.output)
    try:
        refuse_finished(output, request)
    except AlreadyPrepared:
        remove_leftovers(output)
        raise
    with OutputFolder(output) as work, errors_tell_what_is_kept(request, work):
        _remove_others(request, work.slices)
        with watch(total_bytes(request.sources)) as on_bytes:
            every = range(len(request.slices))
            records = prepare_missing(request, every, work.slices, on_bytes, deal)
        with watch(merged_bytes(request, records)) as on_bytes:
            return merge(request, work, on_bytes)


def _remove_others(request: Request, folder: Path) -> None:
    """Remove finished slices of other requests, or of files that have changed since."""
    wanted = {s.fingerprint for s in request.slices}
    others = {p.stem for p in folder.iterdir()} - wanted
    for fingerprint in others:
        remove_slice(folder, fingerprint)
    if others:
        _log.warning(
            "%d finished slices of another request, or of files that have changed, were removed.",
            len(others),
        )
