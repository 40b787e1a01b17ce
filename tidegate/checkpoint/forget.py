"""What is left of a pipeline when a stream is dropped."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import TYPE_CHECKING

from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.manifests import Manifests

if TYPE_CHECKING:
    from tidegate.storage import Store


def forget_stream(store: Store, stream: str) -> None:
    """Drop what a pipeline that does not run has kept of a stream."""
    manifests = Manifests(store)
    found = manifests.settled().manifest
    if found is not None:
        manifest = without_stream(found, stream.lower())
        if manifest is not found:
            manifests.create(manifest)


def without_stream(manifest: Manifest, stream: str) -> Manifest:
    """The next manifest, which knows nothing of a stream; the same if it did not know it."""
    return without_streams(manifest, {stream})


def without_streams(manifest: Manifest, streams: Set[str]) -> Manifest:
    """The same of several; what was decided for sinks of others stays: it may be uncommitted."""
    if not streams & manifest.streams.keys():
        return manifest
    return replace(
        manifest,
        epoch=manifest.epoch + 1,
        streams={k: s for k, s in manifest.streams.items() if k not in streams},
        operators={k: o for k, o in manifest.operators.items() if o.stream not in streams},
        sinks={k: s for k, s in manifest.sinks.items() if s.stream not in streams},
    )
