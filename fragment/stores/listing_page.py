"""A page of a listing in XML, as S3 and Azure give them.

Read without making a tree of it: its thousands of nodes, alive for a moment only, set off full runs of the garbage
collector. With the models of botocore in memory, each of those held up the whole process for 70 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from xml.parsers import expat

from fragment.stores.blob_store import Batch, ListedObject

Fields = dict[str, str]


class BrokenPageError(OSError):
    """Not a page of a listing, or not all of one."""


def parse_page(body: bytes, root: str, record: str, listed: Callable[[Fields], ListedObject]) -> tuple[Batch, Fields]:
    """The objects of a page, and the texts of the elements beside them.

    `listed` gets the texts of the elements within one `record`, by name. Attributes of an element are there as well, as
    ``name@attribute``.
    """
    page: Batch = []
    beside: Fields = {}
    within: Fields = {}
    fields = beside
    text: list[str] = []

    def start(name: str, attributes: Fields) -> None:
        nonlocal fields
        text.clear()
        if name == record:
            fields = within
        for attribute, value in attributes.items():
            fields[f"{name}@{attribute}"] = value

    def end(name: str) -> None:
        nonlocal fields
        if name == record:
            page.append(listed(within))
            within.clear()
            fields = beside
        else:
            fields[name] = "".join(text)
        text.clear()

    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text.append
    try:
        parser.Parse(body, True)
    except expat.ExpatError as error:
        raise BrokenPageError(f"a page of a listing is not whole: {error}") from error
    if root not in beside:
        # S3 may have said that all is well before it was not.
        raise BrokenPageError("an error came instead of the page of a listing")
    return page, beside
