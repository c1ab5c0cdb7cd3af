"""Interrupts a call at each place where the interpreter could run a signal handler, one after the other."""

import gc
import sys
from collections.abc import Callable
from types import FrameType


def raise_interrupt() -> None:
    raise KeyboardInterrupt


def interrupt_at(number: int, call: Callable[[], object], handler: Callable[[], object] = raise_interrupt) -> bool:
    """Run a signal handler in `call`, at the place of this number. False: it has fewer places.

    The interpreter runs signal handlers when a function begins and when a function of C has returned. (It runs them
    also at the end of a loop's body; that is no other place, because a function of C is called in every loop.)
    """
    left = number

    def on_event(frame: FrameType, event: str, arg: object) -> None:
        nonlocal left
        if event in ("call", "c_return"):
            left -= 1
            if left == -1:
                handler()

    before = sys.getprofile()
    gc.disable()  # an error in a callback of the collector would not reach the call
    sys.setprofile(on_event)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(before)
        gc.enable()
    return left < 0
