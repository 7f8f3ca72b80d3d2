"""HTML as nested Python calls: escaped text by default, no template language.

Contract. `tag("td", "a < b", cls="name")` is an element; plain strings among the children are escaped, `Html` is not.
`Budget` keeps a document within a size: a text that no longer fits is replaced by a sentence that says where it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from html import escape

VOID = frozenset({"br", "input", "meta"})
_LONGEST_TEXT = 60_000


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | Html | int | float | None | Iterable["Child"]


def _child(value: Child) -> str:
    if value is None:
        return ""
    if isinstance(value, Html):
        return value
    if isinstance(value, str | int | float):
        return escape(str(value), quote=False)
    return "".join(_child(item) for item in value)


def tag(name: str, *children: Child, cls: str = "", **attributes: str | bool | None) -> Html:
    """One element. `cls` is its class; `data_search` becomes `data-search`; a false attribute is left out."""
    parts = [name]
    if cls:
        parts.append(f'class="{escape(cls)}"')
    for key, value in attributes.items():
        if value is True:
            parts.append(key.replace("_", "-"))
        elif value is not None and value is not False:
            parts.append(f'{key.replace("_", "-")}="{escape(str(value))}"')
    opening = f"<{' '.join(parts)}>"
    return Html(opening if name in VOID else f"{opening}{_child(children)}</{name}>")


def join(children: Iterable[Child]) -> Html:
    """Several children as one."""
    return Html(_child(children))


def fold(summary: Child, *body: Child, cls: str = "", opened: bool = False, id: str | None = None) -> Html:
    """A part that opens when its heading is clicked."""
    return tag("details", tag("summary", summary), *body, cls=cls, open=opened, id=id)


class Budget:
    """How many bytes of code and graphs still fit; the same text twice is shown once."""

    def __init__(self, size: int) -> None:
        self.left = size
        self.seen: dict[str, str] = {}
        self.left_out = 0

    def take(self, text: str, name: str) -> tuple[str, str]:
        """What to show of `text`: the text (perhaps cut) and a note, one of them possibly empty."""
        digest = hashlib.md5(text.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()
        first = self.seen.get(digest)
        if first is not None and len(text) > 200:
            return "", f"The same text as {first}."
        if len(text) > self.left:
            self.left_out += 1
            return "", "Left out to keep this file small; the trace holds it."
        self.seen[digest] = name
        shown = text
        if len(text) > _LONGEST_TEXT:
            shown = text[:_LONGEST_TEXT].rpartition("\n")[0]
        self.left -= int(len(shown) * 1.15)
        return shown, "" if shown is text else f"Cut after {len(shown)} of {len(text)} characters; the trace holds all."
