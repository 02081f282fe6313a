"""FragmentStore: the URL in a JournalSpec that says where fragments are kept.

Two judgements are apart, as they are in Gazette. The URL itself is judged when a spec is applied
(``check_fragment_store``). Its query arguments are judged when the store is opened (``arguments``), so a
spec may hold a store that cannot be opened. No error shows the URL, which may hold secrets.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from protocol.errors import ValidationError
from protocol.memo import remembered
from protocol.url import Url, parse_query, parse_url

_EXAMPLES = {
    "s3": "s3://bucket/prefix/",
    "gs": "gs://bucket/prefix/",
    "azure": "azure://container/prefix/",
    "azure-ad": "azure-ad://tenant/account/container/prefix/",
    "file": "file:///prefix/",
}


@dataclass(frozen=True, slots=True)
class StoreArguments:
    """The query arguments of a store's URL. Those not given are empty: the store's own defaults apply."""

    find: str = ""
    replace: str = ""
    profile: str = ""
    endpoint: str = ""
    """Of another service than AWS, which is then addressed in path style."""
    acl: str = ""
    storage_class: str = ""
    sse: str = ""
    sse_kms_key_id: str = ""
    region: str = ""

    def rewrite(self, path: str) -> str:
        """`path` with the first occurrence of ``find`` replaced."""
        return path.replace(self.find, self.replace, 1) if self.find else path


_REWRITING = {"find": "find", "replace": "replace"}
# Gazette keeps the two in a structure of its own, whose name it accepts before theirs.
_REWRITING_IN_FULL = {f"rewriterconfig.{name}": name for name in _REWRITING}
_S3 = {field.name.replace("_", ""): field.name for field in fields(StoreArguments)}


@dataclass(frozen=True, slots=True)
class FragmentStore:
    """A valid store URL in parts.

    >>> store = FragmentStore.parse("s3://bucket/some/prefix/?find=acme/&replace=v2/")
    >>> store.bucket, store.object_key("acme/orders/")
    ('bucket', 'some/prefix/v2/orders/')
    """

    url: str
    """As in the spec. Fragments name their store by it, so it is compared as a text and never normalised."""
    scheme: str
    host: str
    """Bucket or container; the tenant of azure-ad; empty for files."""
    path: str
    """Percent-decoded; begins and ends with a slash."""
    query: str

    @classmethod
    def parse(cls, url: str) -> FragmentStore:
        return _parsed(url)

    @property
    def bucket(self) -> str:
        """Bucket or container, ``account/container`` of azure-ad, empty for files."""
        return "/".join(self.path.split("/", 3)[1:3]) if self.scheme == "azure-ad" else self.host

    @property
    def prefix(self) -> str:
        """What every object key begins with. Only that of files has the leading slash."""
        match self.scheme:
            case "file":
                return self.path
            case "azure-ad":
                return self.path.split("/", 3)[3]
            case _:
                return self.path[1:]

    def arguments(self) -> StoreArguments:
        """Raises a ``ValidationError`` if there is one that this kind of store does not know."""
        return _arguments(self.url)

    def object_key(self, content_path: str) -> str:
        """Where the store keeps a content path. A prefix to list is rewritten alike."""
        return self.prefix + self.arguments().rewrite(content_path)


def check_fragment_store(url: str) -> None:
    """Raise unless this is the URL of a store, whatever its query."""
    _parsed(url)


@remembered
def _parsed(text: str) -> FragmentStore:
    url = parse_url(text)
    if url.scheme not in _EXAMPLES:
        raise ValidationError(f"expected the URL of a store, such as {' or '.join(_EXAMPLES.values())}")
    if bool(url.host) == (url.scheme == "file"):
        raise _unlike(url, "a URL without a host" if url.host else "a URL with a host")
    if not url.path.endswith("/"):
        raise _unlike(url, "a path that ends in a slash")
    # Gazette brokers crash on an azure-ad URL that lacks the container, so it must never reach etcd.
    if url.scheme == "azure-ad" and "" in url.path.split("/", 3)[1:3]:
        raise _unlike(url, "a storage account and a container")
    return FragmentStore(text, url.scheme, url.host, url.path, url.query)


def _unlike(url: Url, wanted: str) -> ValidationError:
    return ValidationError(f"expected {wanted}, as in {_EXAMPLES[url.scheme]}")


@remembered
def _arguments(text: str) -> StoreArguments:
    store = _parsed(text)
    known = _S3 if store.scheme == "s3" else _REWRITING
    given = {}
    for name, value in parse_query(store.query):
        field = known.get(name.lower()) or _REWRITING_IN_FULL.get(name.lower())
        if field is None:
            raise ValidationError(f"expected only query arguments that {store.scheme} stores know: {', '.join(known)}")
        given[field] = value
    return StoreArguments(**given)
