"""What the process does once from which child processes of tests are forked: they find it done."""

import gc

from trt_tui import demo
from trt_tui.core.network.network import open_network
from trt_tui.core.source_hash import source_sha256

source_sha256()
open_network(demo.network_path())
gc.collect()
gc.freeze()  # a search for garbage in a forked process would copy every page that this one has
