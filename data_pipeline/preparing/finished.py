"""A folder that is there already: made by this request, or an error that says what differs."""

from pathlib import Path

from data_pipeline.preparing.request import Request
from data_pipeline.preparing.slices import opened
from data_pipeline.reading.byte_stream import size_and_hash
from data_pipeline.reading.file_kinds import Source
from data_pipeline.reading.saved_dataset import size_and_hash_of_data
from data_pipeline.storage.manifest import Manifest, SourceEntry, read_manifest

# What folders have that are older than an option.
_BEFORE = {"mix": 1, "dedup": "none", "on_error": "stop"}


def finished_manifest(output: Path, request: Request) -> Manifest:
    """The manifest of a finished output that answers the request; else ValueError."""
    manifest = read_manifest(output)
    asked = request.settings.recorded()
    made = _BEFORE | manifest.settings
    changed = [name for name in asked if asked[name] != made.get(name)]
    if request.tokenizer.fingerprint != manifest.tokenizer_fingerprint:
        changed.append("tokenizer")
    if (request.settings.source, request.settings.licence) != (manifest.source, manifest.licence):
        changed.append("source or licence")
    if not changed:
        changed = _changed_files(request.sources, manifest.sources)
    if changed:
        raise ValueError(
            f"--output {output} is finished already, made by another request (changed: "
            f"{', '.join(changed)}). Choose another name, or remove it."
        )
    return manifest


def _changed_files(sources: list[Source], made: tuple[SourceEntry, ...]) -> list[str]:
    if [s.name for s in sources] != [m.path for m in made]:
        return ["the list of input files"]
    changed = []
    for source, entry in zip(sources, made, strict=True):
        if _has_changed(source, entry):
            changed.append(source.name)
    return changed


def _has_changed(source: Source, entry: SourceEntry) -> bool:
    if source.kind == "saved_dataset":
        return size_and_hash_of_data(source.location) != (entry.size_bytes, entry.xxh3)
    if source.open is None or "://" in source.name:  # not fetched only to be compared
        return source.size_bytes != entry.size_bytes
    with opened(source) as raw:
        return size_and_hash(raw)[1] != entry.xxh3
