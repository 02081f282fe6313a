from __future__ import annotations

import pytest

from protocol.errors import ValidationError
from protocol.url import Url, parse_query, parse_url


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", Url()),
        ("*", Url(path="*")),
        ("a/b:c", Url(path="a/b:c")),
        ("//host/p", Url(host="host", path="/p")),
        ("///p", Url(path="///p")),
        ("file:/p", Url("file", path="/p")),
        ("file:p/q", Url("file")),
        ("HTTP://Host/", Url("http", "Host", "/")),
        ("http://h?", Url("http", "h")),
        ("http://h/?a?b", Url("http", "h", "/", "a?b")),
        ("http://h/p?q%zz", Url("http", "h", "/p", "q%zz")),
        ("http://h#%41\n", Url("http", "h")),
        ("http://u%40:p%3A@h:1/", Url("http", "h:1", "/")),
        ("http://a@b@h/", Url("http", "h", "/")),
        ("http://[::1]:80/", Url("http", "[::1]:80", "/")),
        ("http://[fe80::1%25en%200]:80/", Url("http", "[fe80::1%en 0]:80", "/")),
        ("http://[::ffff:10.0.0.1]", Url("http", "[::ffff:10.0.0.1]")),
        ("http://h%C3%A9/%C3%A9%2F", Url("http", "hé", "/é/")),
        ("http://h/%FF", Url("http", "h", "/\udcff")),
        ("http://h%25", Url("http", "h%")),
        ("x+y-z.1://h", Url("x+y-z.1", "h")),
    ],
)
def test_what_go_accepts_is_taken_apart_as_go_does(text: str, parts: Url) -> None:
    assert parse_url(text) == parts


@pytest.mark.parametrize(
    "text",
    [
        ":",
        "://h",
        "1a://h",
        "a b:c",
        "cache_object:foo/bar",
        "http://h/%",
        "http://h/%4",
        "http://h/%zz",
        "http://h#%",
        "http://h/\x00",
        "http://h/\x7f",
        "http://h\n",
        "http://h h/",
        "http://h%41/",
        "http://h%20/",
        "http://h\\",
        "http://h:a/",
        "http://h:-1/",
        "http://h: 1/",
        "http://h:\u0661/",
        "http://u s@h/",
        "http://u%4@h/",
        "http://u[@h/",
        "http://[::1/",
        "http://[::1]x/",
        "http://[::1]:x/",
        "http://a[::1]/",
        "http://a::1%25[x]/",
        "http://[10.0.0.1]/",
        "http://[host]/",
        "http://[]/",
        "http://[::1%25]/",
        "http://[::1%25a%C3%A9]/",
        "http://[::1%en0]/",
    ],
)
def test_what_go_refuses_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        parse_url(text)


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("", ""),
        ("h", ""),
        ("80", ""),
        ("h:80", "80"),
        ("h:x", ""),
        ("h:", ""),
        ("h:80:90", "90"),
        ("[::1]", ""),
        ("[::1]:80", "80"),
    ],
)
def test_the_port_is_what_follows_the_last_colon(host: str, port: str) -> None:
    assert Url(host=host).port == port


def test_a_query_is_a_list_of_decoded_pairs() -> None:
    assert parse_query("a=1&&b&a=2%2B+3&=c&") == [("a", "1"), ("b", ""), ("a", "2+ 3"), ("", "c")]
    assert parse_query("") == []


@pytest.mark.parametrize("query", ["a;b", "a=%", "%zz=a"])
def test_a_query_with_semicolons_or_broken_escapes_is_refused(query: str) -> None:
    with pytest.raises(ValidationError):
        parse_query(query)
