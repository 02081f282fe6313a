"""CountingS3: an S3 server that tells in which order it was asked, and lets a test hold its answers back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

PATIENCE_S = 20.0
"""For how long an answer is held back at most: who waits for something that does not come is to fail, not to hang."""


class CountingS3:
    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.url = ""
        # Prefixes that were listed, and keys that were read, each when it was asked for.
        self.listed: list[str] = []
        self.opened: list[str] = []
        # Of listings under way at the same time.
        self.listed_at_once = 0
        # Called before a listing is answered, and in the middle of an object.
        self.before_listing: Callable[[str], object] = lambda _: None
        self.within_object: Callable[[str], object] = lambda _: None
        self._lock = threading.Lock()
        self._listing = 0

    def page(self, prefix: str) -> bytes:
        with self._lock:
            self.listed.append(prefix)
            self._listing += 1
            self.listed_at_once = max(self.listed_at_once, self._listing)
        self.before_listing(prefix)
        with self._lock:
            self._listing -= 1
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-16T04:00:00.000Z</LastModified>"
            f"<Size>{len(content)}</Size></Contents>"
            for key, content in sorted(self.objects.items())
            if key.startswith(prefix)
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>".encode()


@contextmanager
def counting_s3(objects: dict[str, bytes]) -> Iterator[CountingS3]:
    """`objects` are by their keys."""
    store = CountingS3(objects)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            _, _, key = unquote(parts.path).lstrip("/").partition("/")
            if not key:
                self._answer(200, store.page(parse_qs(parts.query).get("prefix", [""])[0]))
                return
            content = store.objects[key]
            begin = int(self.headers.get("Range", "bytes=0-")[6:].split("-")[0])
            store.opened.append(key)
            self._head(206 if "Range" in self.headers else 200, len(content) - begin)
            middle = (begin + len(content)) // 2
            self.wfile.write(content[begin:middle])
            self.wfile.flush()
            store.within_object(key)
            self.wfile.write(content[middle:])

        def _answer(self, status: int, body: bytes) -> None:
            self._head(status, len(body))
            self.wfile.write(body)

        def _head(self, status: int, length: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server, pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
            patch.setenv(name, "us-east-1")
        store.url = f"s3://bucket/?endpoint=http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield store
        finally:
            server.shutdown()
            thread.join()
