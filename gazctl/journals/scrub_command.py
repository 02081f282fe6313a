"""``gazctl journals scrub``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from broker.client.client import Client
from broker.client.fragment_list import ListedFragment
from broker.client.fragment_url import FragmentUrls
from fragment.cover_set import CoverSet, Gap
from fragment.fragment_reader import read as read_fragment
from fragment.stores.blob_store import BlobNotFoundError
from gazctl.command import Command
from gazctl.connection import broker_options, matched, patience, run, selector_option
from gazctl.output import result
from gazctl.progress import Advance, bar
from gazctl.table import size_text
from protocol.errors import CorruptError, RefusedError, Status, UnavailableError
from protocol.fragment import Fragment
from protocol.selector import LabelSelector

URL_TTL_S = 3600.0
_CONNECT_S, _STALL_S = 10.0, 30.0


@click.command(cls=Command)
@selector_option()
@click.option(
    "--file-root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The brokers' folder for file:/// stores; with `gazctl up` it is DIR/fragments.",
)
@broker_options
def scrub(selector: LabelSelector, file_root: Path | None, **given: Any) -> None:
    """Read all stored fragments of journals, and verify them.

    Each has to have the length and the SHA-1 that its name says; together they have to cover the journal without a gap;
    and where two hold the same bytes, those have to be the same. It exits with 1 if anything is wrong. Fragments that
    are only on brokers' disks yet count for the cover, and are not read.

    \b
      gazctl journals scrub -l name:prefix=my/
      gazctl journals scrub -l name=my/journal --file-root ~/.local/state/pygazette/cluster/fragments
    """
    if not run(given, lambda client: _scrub(client, selector, file_root)):
        raise SystemExit(1)


@dataclass(slots=True)
class _Verdict:
    fragments: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)


async def _scrub(client: Client, selector: LabelSelector, file_root: Path | None) -> bool:
    listed: dict[str, list[ListedFragment]] = {}
    for journal in await matched(client, selector):
        listed[journal.spec.name] = await _fragments(client, journal.spec.name)
    if file_root is None and any(each.signed_url.startswith("file:") for found in listed.values() for each in found):
        raise click.ClickException("fragments are in files: give the brokers' folder for them with --file-root")
    total = sum(each.fragment.content_length for found in listed.values() for each in found if each.fragment.mod_time)
    urls = FragmentUrls(file_root, _CONNECT_S, _STALL_S)
    all_well = True
    try:
        with bar("Scrubbing", total) as advance:
            for name, found in listed.items():
                verdict = await _journal(urls, found, advance)
                all_well &= not verdict.problems
                state = "ok" if not verdict.problems else f"{len(verdict.problems)} problems"
                result(f"{name}: {state} ({verdict.fragments} fragments, {size_text(verdict.bytes)} read)")
                for problem in verdict.problems:
                    result(f"  {problem}")
    finally:
        await urls.close()
    return all_well


async def _fragments(client: Client, name: str) -> list[ListedFragment]:
    try:
        async with patience(f"the fragments of {name}"):
            return [each async for each in client.fragments(name, signature_ttl_s=URL_TTL_S)]
    except RefusedError as error:
        if error.status is Status.SUSPENDED:
            return []
        raise


async def _journal(urls: FragmentUrls, found: Sequence[ListedFragment], advance: Advance) -> _Verdict:
    verdict = _Verdict()
    verdict.problems += gaps([each.fragment for each in found])
    stored = [each for each in found if each.fragment.mod_time]
    shared = overlaps([each.fragment for each in stored])
    # Of each range that two fragments share, what the first of them has there.
    sums: dict[tuple[int, int], tuple[Fragment, bytes]] = {}
    for each in stored:
        ranges = shared.get(each.fragment, [])
        try:
            digests = await _verified(urls, each, ranges, advance)
        except (CorruptError, UnavailableError, BlobNotFoundError) as error:
            verdict.problems.append(str(error))
            continue
        verdict.fragments += 1
        verdict.bytes += each.fragment.content_length
        for span, digest in zip(ranges, digests, strict=True):
            other, expected = sums.setdefault(span, (each.fragment, digest))
            if expected != digest:
                verdict.problems.append(
                    f"{each.fragment.content_name} and {other.content_name} differ in [{span[0]}, {span[1]})"
                )
    return verdict


async def _verified(
    urls: FragmentUrls, listed: ListedFragment, ranges: Sequence[tuple[int, int]], advance: Advance
) -> list[bytes]:
    """Read all of it, which verifies it. The sums of the ranges that others have too."""
    fragment = listed.fragment
    source = urls.source(listed.signed_url, fragment.codec)
    if source is None:
        raise UnavailableError(
            f"{fragment.content_name} cannot be read from here: give the brokers' folder with --file-root"
        )
    digests = [hashlib.sha1(usedforsecurity=False) for _ in ranges]
    at = fragment.begin
    async with aclosing(read_fragment(fragment, source, fragment.begin, fragment.end)) as pieces:
        async for piece in pieces:
            for (begin, end), digest in zip(ranges, digests, strict=True):
                digest.update(piece[max(begin - at, 0) : max(end - at, 0)])
            at += len(piece)
            advance(len(piece))
    return [digest.digest() for digest in digests]


def gaps(fragments: Sequence[Fragment]) -> Iterator[str]:
    """Ranges between the first fragment and the last that none has; and same ranges with different sums.

    What comes before the first was removed by its retention.
    """
    cover = CoverSet(fragments)
    for step in cover.walk(cover.begin, cover.end):
        if isinstance(step, Gap):
            yield f"no fragment has [{step.begin}, {step.end})"
    for divergence in cover.divergences:
        yield f"{divergence.kept.content_name} and {divergence.other.content_name} have one range and different sums"


def overlaps(fragments: Sequence[Fragment]) -> dict[Fragment, list[tuple[int, int]]]:
    """The ranges that each fragment shares with the one that reaches farthest of those that begin before it.

    With that one it shares all that it shares with any other of them, so that if all these ranges agree, all do.
    """
    shared: dict[Fragment, list[tuple[int, int]]] = {}
    farthest: Fragment | None = None
    for each in sorted(fragments, key=lambda each: (each.begin, each.end)):
        if farthest is not None and each.begin < farthest.end:
            span = each.begin, min(each.end, farthest.end)
            shared.setdefault(farthest, []).append(span)
            shared.setdefault(each, []).append(span)
        if farthest is None or each.end > farthest.end:
            farthest = each
    return shared
