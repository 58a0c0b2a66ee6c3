"""The child process that asks TensorRT-RTX what it would make of configs, at low priority.

It opens the network itself, so that neither lowering nor building keeps the process waiting that measures. Of what it
is asked only the newest is of use: a build whose order was replaced or called off ends at its next step.
"""

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection

from trt_tui.backends.registry import get_backend
from trt_tui.backends.tensorrt.listing import Lister
from trt_tui.core.engines.failures import BuildFailed, ParseFailed
from trt_tui.core.engines.listing import read_listing
from trt_tui.core.engines.preview import Preview, Refusal, nearest, preview_of
from trt_tui.core.engines.remarks import remarks
from trt_tui.core.engines.rungs import named_groups, one_line
from trt_tui.core.exporters.onnx import weights_apart
from trt_tui.core.lowering.strong import lower_strong
from trt_tui.core.network.network import Network, open_network
from trt_tui.errors import BackendUnavailableError, CancelledError, TrtTuiError, memory_error, text_of
from trt_tui.jobs.lifeline import tie
from trt_tui.jobs.orders import Order, Subject


class Previewer:
    """Answers orders, one after the other.

    Args:
        opened: A network that is open already.

    Attributes:
        wanted: The number of the order that somebody waits for.
    """

    def __init__(self, opened: tuple[Subject, Network] | None = None) -> None:
        self.wanted = 0
        self._lister: Lister | None = None
        self._opened = opened
        self._libraries: dict[str, TrtTuiError | None] = {}

    def answer(self, order: Order) -> Preview | None:
        """The preview of an order, or why there is none; None if nobody waits for it any more."""
        try:
            lister = self._lister = self._lister or Lister.load()
        except BackendUnavailableError as error:
            return Preview(refused=Refusal(error.title, error.cause, error.next_step, absent=True))
        target = nearest(lister.targets, order.gpu, order.asked)
        known = Preview(lister.release, target, target == order.gpu)
        network: Network | None = None
        try:
            network = self._network(order.subject)
            return self._asked(lister, network, order, known)
        except CancelledError:
            return None
        except MemoryError as error:
            return _refused(known, memory_error(error), network)
        except TrtTuiError as error:
            return _refused(known, error, network)
        except Exception as error:  # a preview that fails disturbs nothing else
            return _refused(known, TrtTuiError(f"unexpected {type(error).__name__}", text_of(error)), network)

    def _network(self, subject: Subject) -> Network:
        if self._opened is None or self._opened[0] != subject:
            self._opened = None
            network = open_network(subject.path, partial(get_backend, operators=subject.ort_ops),
                                   operators=bool(subject.ort_ops), reference=subject.reference)
            self._opened = (subject, network)
        return self._opened[1]

    def _asked(self, lister: Lister, network: Network, order: Order, known: Preview) -> Preview:
        since = time.perf_counter()
        typed = lower_strong(network, order.config, order.ranges)
        model, weights = weights_apart(typed.model)
        if self.wanted != order.number:
            raise CancelledError("stopped")
        unloaded = self._load_plugins(lister, order.subject)
        try:
            text, printed, sums = lister.listing(model, weights, network.path, order.profile, order.config.tf32,
                                                 known.target, lambda: self.wanted == order.number)
        except ParseFailed as error:
            if unloaded is None:
                raise
            raise ParseFailed(unloaded.title, f"{unloaded.cause}; {error.title}", unloaded.next_step,
                              error.node) from None
        preview = preview_of(read_listing(text, network, sums), network, known.release, known.target,
                             time.perf_counter() - since, known.here)
        return replace(preview, remarks=remarks(printed, network))

    def _load_plugins(self, lister: Lister, subject: Subject) -> TrtTuiError | None:
        """Loads the libraries of plugins that this process has not loaded; returns why one does not load. Builders of
        other releases may need it, and the network here none of it."""
        failed: TrtTuiError | None = None
        for path, _ in subject.plugins:
            if path not in self._libraries:
                self._libraries[path] = None
                try:
                    lister.load_plugins([path])
                except TrtTuiError as error:
                    self._libraries[path] = error
            failed = failed or self._libraries[path]
        return failed

    def listen(self, pipe: Connection, arrived: threading.Event, inbox: list[Order]) -> None:
        """Takes in what comes on a pipe until the other end closes it, then ends the process; run by a thread."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                received = pipe.recv()
                if isinstance(received, Order):
                    self.wanted = received.number  # first: an order that is taken up unwanted is called off
                    inbox[:] = [received]
                elif self.wanted == received.number:
                    self.wanted = 0
                arrived.set()
        os._exit(0)


def _refused(known: Preview, error: TrtTuiError, network: Network | None) -> Preview:
    """The preview that says why there is none, at the node that the error names."""
    node = error.node if isinstance(error, ParseFailed) else ""
    if isinstance(error, BuildFailed) and network is not None:
        alone, within = named_groups("\n".join((error.cause, *error.details[-1:])), network)
        node = next((group.name for group in (*alone, *within)), "")
    refusal = Refusal(error.title, one_line(error.cause), error.next_step, node)
    return Preview(known.release, known.target, known.here, refused=refusal)


def main(argv: Sequence[str]) -> None:
    """Entry of the process: file descriptors of the pipe and the lifeline, and how nice it is to be to others."""
    descriptor, lifeline, niceness = (int(text) for text in argv)
    tie(lifeline)
    os.nice(niceness)
    os.set_inheritable(descriptor, False)
    faulthandler.enable(sys.stderr, all_threads=False)
    previewer, arrived = Previewer(), threading.Event()
    inbox: list[Order] = []
    with Connection(descriptor) as pipe, contextlib.suppress(BrokenPipeError):
        threading.Thread(target=previewer.listen, args=(pipe, arrived, inbox), daemon=True).start()
        while True:
            arrived.wait()
            arrived.clear()
            while inbox:
                order = inbox.pop()
                pipe.send((order.number, previewer.answer(order)))


if __name__ == "__main__":
    main(sys.argv[1:])
