"""A folder that is there already: made by this request, or an error that says what differs."""

from dataclasses import asdict
from pathlib import Path

from data_pipeline.preparing.length_limits import LengthLimits
from data_pipeline.preparing.request import Request
from data_pipeline.preparing.slices import opened
from data_pipeline.reading.byte_stream import size_and_hash
from data_pipeline.reading.file_kinds import Source
from data_pipeline.reading.saved_dataset import size_and_hash_of_data
from data_pipeline.storage.manifest import MANIFEST_FILE, Manifest, SourceEntry, read_manifest

# What folders have that are older than an option, or in which it is not set.
_BEFORE = {"mix": 1, "dedup": "none", "on_error": "stop"} | asdict(LengthLimits())


class AlreadyPrepared(Exception):
    """The output is finished and was made by the same request from the same files."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__()
        self.manifest = manifest


def refuse_finished(output: Path, request: Request, *, reads_files: bool = True) -> None:
    """Raise AlreadyPrepared where the output is finished, ValueError where another request made it.

    reads_files: compare the content of local files too, not only names, sizes and settings.
    """
    if not (output / MANIFEST_FILE).exists():
        return
    manifest = read_manifest(output)
    asked = _BEFORE | request.settings.recorded()
    made = _BEFORE | manifest.settings
    changed = [name for name in asked if asked[name] != made.get(name)]
    if request.tokenizer.fingerprint != manifest.tokenizer_fingerprint:
        changed.append("tokenizer")
    encoder, made_with = request.encoder_tokenizer, manifest.encoder
    fingerprints = (
        encoder and encoder.fingerprint,
        made_with and made_with.tokenizer_fingerprint,
    )
    if fingerprints[0] != fingerprints[1]:
        changed.append("encoder tokenizer")
    if (request.settings.source, request.settings.licence) != (manifest.source, manifest.licence):
        changed.append("source or licence")
    if not changed:
        changed = _changed_files(request.sources, manifest.sources, reads_files)
    if changed:
        raise ValueError(
            f"--output {output} is finished already, made by another request (changed: "
            f"{', '.join(changed)}). Choose another name, or remove it."
        )
    raise AlreadyPrepared(manifest)


def _changed_files(
    sources: list[Source], made: tuple[SourceEntry, ...], reads_files: bool
) -> list[str]:
    if [s.name for s in sources] != [m.path for m in made]:
        return ["the list of input files"]
    changed = []
    for source, entry in zip(sources, made, strict=True):
        if _has_changed(source, entry, reads_files):
            changed.append(source.name)
    return changed


def _has_changed(source: Source, entry: SourceEntry, reads_files: bool) -> bool:
    if source.kind == "saved_dataset":
        now = size_and_hash_of_data(source.location) if reads_files else None
        return now is not None and now != (entry.size_bytes, entry.xxh3)
    # A URL is not fetched only to be compared.
    if source.open is None or "://" in source.name or not reads_files:
        return source.size_bytes != entry.size_bytes
    with opened(source) as raw:
        return size_and_hash(raw)[1] != entry.xxh3
