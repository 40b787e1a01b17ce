"""Going back: the content of an older manifest becomes the newest, in a new generation.

Epoch numbers are never used twice, so that files, tokens and markers of the epochs that are given
up cannot be taken for others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.manifests import Found, Manifests
from tidegate.errors import DataDirectoryError

# Whether sinks of a connector can forget rows that were given to them.
Forgets = Callable[[str], bool]


@dataclass(frozen=True)
class Ahead:
    """A sink that has rows from after a checkpoint and cannot forget them."""

    sink: str
    connector: str
    epoch: int


def sinks_ahead(manifests: Manifests, chosen: Manifest, forgets: Forgets) -> list[Ahead]:
    """The sinks that would get rows again which they have."""
    newest = _or_none(manifests.newest)
    found = []
    for name, sink in (newest.sinks if newest is not None else {}).items():
        if sink.epoch < 0 or forgets(sink.connector):
            continue
        if not chosen.knows(sink.generation, sink.epoch):
            found.append(Ahead(name, sink.connector, sink.epoch))
    return found


def restore(manifests: Manifests, chosen: Manifest, keep: bool) -> Manifest:
    """Begin a new generation with the content of a manifest; returns its first manifest.

    The line of before is ended first by an epoch without news: a process that still believes in it
    finds the next number taken.
    """
    newest = _or_none(manifests.settled)
    if newest is not None:
        manifests.create(replace(newest, epoch=newest.epoch + 1))
    generation, epoch = manifests.top()
    begun = chosen.gone_back(generation + 1, epoch + 1)
    before = max(chosen.kept_before, newest.kept_before if newest is not None else 0)
    begun = replace(begun, kept_before=generation + 1 if keep else before)
    manifests.create(begun)
    return begun


def _or_none(find: Callable[[], Found]) -> Manifest | None:
    """What was found; going back is the way out where nothing can be used."""
    try:
        return find().manifest
    except DataDirectoryError as error:
        if error.code != "TG-605":
            raise
        return None
