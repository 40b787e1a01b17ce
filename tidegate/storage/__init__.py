"""One way to bytes: local disks and object stores. Nothing else in the project opens a stored file.

`uris` turns what people write into a URI with a scheme, `store` is the protocol of a store and what
its items are, `local` a store on a disk of this machine, `objects` one on an object store (on
obstore; `clients` opens them, `fetched` keeps what came from there, `ranged` reads parts of one),
`maps` reads whole immutable files without copying them, `failure` is the one error of all this.
What is created is created once and whole: written aside, synced, then given its name; the one place
where a disk is asked to keep something is `disk`, which tests replace by one that loses power.
Tasks of Spark import this package, so it loads Arrow and obstore only when they are needed. Imports
only errors.
"""

from tidegate.storage.opening import open_store, probe
from tidegate.storage.store import (
    AlreadyThere,
    Item,
    Items,
    NotThere,
    RangedFile,
    StorageError,
    Store,
    Writer,
)
from tidegate.storage.uris import uri

__all__ = [
    "AlreadyThere",
    "Item",
    "Items",
    "NotThere",
    "RangedFile",
    "StorageError",
    "Store",
    "Writer",
    "open_store",
    "probe",
    "uri",
]
