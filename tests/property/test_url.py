from __future__ import annotations

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.endpoint import check_endpoint, dial_address
from protocol.errors import ValidationError
from protocol.fragment_store import FragmentStore
from protocol.url import parse_url

PIECES = st.sampled_from(
    [
        *("http", "s3", "file", "azure-ad", "unix", ":", "://", "/", "//", "?", "#", "@", "&", "=", ";", "+"),
        *("[", "]", "[::1]", ":80", ":x", "a", "host", "é", " ", "..", ".", "\x00", "\x7f", "\n"),
        *("%", "%25", "%2F", "%41", "%C3%A9", "%FF", "%zz"),
    ]
)
URLS = st.lists(PIECES, max_size=10).map("".join) | st.text(max_size=20)


@settings(max_examples=300)
@given(URLS)
def test_the_verdict_on_any_url_is_clean(text: str) -> None:
    with contextlib.suppress(ValidationError):
        assert FragmentStore.parse(text).path.endswith("/")
    with contextlib.suppress(ValidationError):
        FragmentStore.parse(text).object_key("acme/orders/")
    with contextlib.suppress(ValidationError):
        check_endpoint(text)
        assert dial_address(text)


@settings(max_examples=200)
@given(URLS)
def test_a_url_that_parses_has_no_control_characters_and_no_broken_escapes(text: str) -> None:
    try:
        url = parse_url(text)
    except ValidationError:
        return
    before_fragment = text.partition("#")[0]
    assert not any(ord(symbol) < 32 or ord(symbol) == 127 for symbol in before_fragment)
    assert url.scheme == url.scheme.lower()
    assert not url.port or (url.port.isascii() and url.port.isdigit())
    assert " " not in url.host


GOOD_PARTS = st.tuples(
    st.sampled_from(["http", "S3", "x+y"]),
    st.sampled_from(["", "me@", "me:pw%20@", "a@b@"]),
    st.sampled_from(["h", "10.0.0.1", "[::1]", "[fe80::1%25en0]", "h%C3%A9", "é"]),
    st.sampled_from(["", ":", ":0", ":8080"]),
    st.sampled_from(["", "/", "/a%2Fb/", "/é /"]),
    st.sampled_from(["", "?", "?a=%zz", "#x", "?a#%41"]),
)


@given(GOOD_PARTS)
def test_a_url_put_together_from_good_parts_has_them(parts: tuple[str, ...]) -> None:
    scheme, user, host, port, path, tail = parts
    url = parse_url(f"{scheme}://{user}{host}{port}{path}{tail}")
    assert url.scheme == scheme.lower()
    assert url.host.endswith(port)
    assert url.port == port[1:]
    assert url.path == path.replace("%2F", "/")
    assert "@" not in url.host
