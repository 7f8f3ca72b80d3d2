"""Observers that cannot break what they observe.

Contract. `guarded(receiver, what)` is `receiver` for the event bus: an exception in it is logged once, as a warning
that names the observer, and the program goes on. With `config.strict` it is raised, so tests see it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from stator import config
from stator.events import Event


def guarded(receiver: Callable[[Event], None], what: str) -> Callable[[Event], None]:
    """`receiver`, with its exceptions kept away from the program."""
    failed = False

    def receive(event: Event) -> None:
        nonlocal failed
        try:
            receiver(event)
        except Exception:
            if config.strict:
                raise
            if not failed:
                failed = True
                logger = logging.getLogger("stator")
                logger.warning("%s failed on an event of kind %r; the program goes on", what, event.kind, exc_info=True)

    return receive
