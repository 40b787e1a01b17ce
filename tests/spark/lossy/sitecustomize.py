"""Make a Python process with this folder on its path write to a disk that can lose power."""

import os
from pathlib import Path

from tests.support.lossy_disk import LossyDisk
from tidegate.storage import local as disk

disk.use_disk(LossyDisk(Path(os.environ["TIDEGATE_JOURNAL"])))
