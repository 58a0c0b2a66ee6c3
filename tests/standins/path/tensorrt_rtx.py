"""``import tensorrt_rtx`` in a child process that `tests.standins.environment` set up."""

import os

from tests import standins
from tests.standins import cuda

standins.install(os.environ["STANDIN_RELEASE"])
cuda.install()
