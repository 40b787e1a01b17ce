"""Every Python that finds this on its path writes to a disk that can lose power."""

import os
from pathlib import Path

from tests.storage.lossy_disk import LossyDisk
from tidegate.storage import local as disk

disk.use(LossyDisk(Path(os.environ["TIDEGATE_JOURNAL"])))
