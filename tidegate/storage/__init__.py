"""Files on local disks and in object stores. Other packages access stored files only through it.

`store` defines the contract (`Store`, `Writer`, `StorageError`) and `open_store`; start reading
there. `local` implements it on a disk of this machine, `objects` on S3, Google Cloud Storage and
Azure (with obstore), with a cache of downloaded objects as local files that can be mapped. `uris`
normalizes locations that users write.

Files are immutable and appear complete: a writer writes a temporary file, syncs it and gives it its
name. `local.Disk` is the only code that changes a disk, so that tests can replace it with one that
loses power. Spark tasks import this package, therefore it loads Arrow and obstore only on first
use. It imports `errors` and nothing else of Tidegate.
"""

from tidegate.storage.store import (
    AlreadyExists,
    NotFound,
    RangedFile,
    StorageError,
    Store,
    StoredFile,
    StoredFiles,
    Writer,
    open_store,
    require_conditional_writes,
)
from tidegate.storage.uris import uri

__all__ = [
    "AlreadyExists",
    "NotFound",
    "RangedFile",
    "StorageError",
    "Store",
    "StoredFile",
    "StoredFiles",
    "Writer",
    "open_store",
    "require_conditional_writes",
    "uri",
]
