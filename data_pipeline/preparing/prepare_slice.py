"""One slice of the input becomes one part: the step of prepare that many processes do at once.

request = open_request(settings)
with OutputFolder(settings.output, is_shared=True) as work:      # one task of a job array
    prepare_slice(request, task_number, work.slices)
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from data_pipeline.preparing.downloads import copy_path
from data_pipeline.preparing.encode import encode_documents
from data_pipeline.preparing.parts import PartWriter, PieceRecord, SliceRecord
from data_pipeline.preparing.request import Request, refuse_changed
from data_pipeline.preparing.slices import read_piece
from data_pipeline.reading.documents import Tally
from data_pipeline.reading.unusable import policy, skipped_by


def prepare_slice(
    request: Request,
    number: int,
    folder: Path,
    on_bytes: Callable[[int], object] = lambda num_bytes: None,
) -> SliceRecord:
    """Read slice `number`, put its part into `folder`, and give its record.

    Raises ValueError on anything wrong with the input; nothing of the slice stays then.
    """
    work, settings = request.slices[number], request.settings
    tally = Tally(refuse=policy(settings.on_error, settings.max_skipped))
    pieces = []
    with PartWriter(folder, work.fingerprint, *request.dtypes) as part:
        for piece in work.pieces:
            before = part.documents
            copy = copy_path(request, number, folder)
            read = read_piece(piece, settings.read, tally, on_bytes, copy)
            encoded = encode_documents(
                read,
                request.tokenizer,
                tally,
                encoder=request.encoder_tokenizer,
                limits=settings.lengths,
            )
            for stored, identity_N2 in encoded:
                part.add(stored, identity_N2)
            refuse_changed(request, piece)
            pieces.append(
                PieceRecord(
                    documents=part.documents - before, size_bytes=tally.size_bytes, xxh3=tally.xxh3
                )
            )
        return part.finish(
            pieces,
            skipped=counted(tally.skipped),
            cleaned=counted(tally.cleaned),
            unusable=counted(skipped_by(tally.refuse)),
        )


def counted(counts: Counter[str]) -> dict[str, int]:
    """Reasons that occurred, by name."""
    return dict(sorted((+counts).items()))
