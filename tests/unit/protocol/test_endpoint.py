from __future__ import annotations

import pytest

from protocol.endpoint import check_endpoint, dial_address
from protocol.errors import ValidationError
from tests.support.golden import Case, case_id, cases

ENDPOINTS = [case for case in cases("validation") if case["type"] == "text Endpoint"]


@pytest.mark.parametrize("case", ENDPOINTS, ids=case_id)
def test_an_endpoint_is_judged_and_dialled_as_by_gazette(case: Case) -> None:
    endpoint = bytes.fromhex(case["hex"]).decode()
    if case["ok"]:
        check_endpoint(endpoint)
        assert dial_address(endpoint) == case["dial"]
    else:
        with pytest.raises(ValidationError):
            check_endpoint(endpoint)


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("http://[::1]", "[::1]:80"),
        ("https://[::1]:8443/x", "[::1]:8443"),
        ("HTTPS://host", "host:443"),
        ("unix://host/a%20b", "unix:///a b"),
        ("unix://host", "unix://"),
        ("grpc://host", "host"),
    ],
)
def test_the_default_port_is_that_of_http_or_https(endpoint: str, address: str) -> None:
    assert dial_address(endpoint) == address


def test_an_error_does_not_show_the_password_of_an_endpoint() -> None:
    for endpoint in ("http://me:secret@", "me:secret@host", "http://me:secret@host:port", "http://me:se cret@host"):
        with pytest.raises(ValidationError) as refused:
            check_endpoint(endpoint)
        assert "cret" not in str(refused.value)


def test_a_long_endpoint_is_judged_as_a_short_one() -> None:
    check_endpoint("http://host/" + "x" * 100_000)
    with pytest.raises(ValidationError):
        check_endpoint("http://host/%" + "x" * 100_000)
