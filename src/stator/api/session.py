"""What spans compiled functions: starting the observers, counts of entries, resetting, caches to take along.

Contract. `start()` runs once when stator is imported. `reset()` forgets every entry and what was said once.
`save_cache_artifacts` and `load_cache_artifacts` have torch's names; stator's caches are files that other processes of
the user share already, so there is nothing to carry in memory, and saying so is all they do.
"""

from __future__ import annotations

from collections.abc import Iterable

from stator import observe
from stator.observe import logs, metrics
from stator.observe.metrics import Count
from stator.runtime import region


def _hits() -> Iterable[Count]:
    for one in region.all_regions():
        for place in one.places():
            yield metrics.entry_hits(place.name, place.table)


def start() -> None:
    """Follow the environment, and let metrics read hit counts where they are kept."""
    observe.start()
    metrics.provide_counts(_hits)


def reset() -> None:
    """Forget every compiled entry; compiled callables stay usable and compile anew."""
    region.reset()
    logs.forget_said()


def cudagraph_mark_step_begin() -> None:
    """Says that a new iteration begins; nothing on the CPU waits for it."""


def save_cache_artifacts() -> None:
    """None: what stator compiled is on disk already, for every process of this user."""
    return None


def load_cache_artifacts(serialized_artifacts: bytes) -> None:
    """Nothing to load: see `save_cache_artifacts`."""
    return None
