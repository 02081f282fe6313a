from __future__ import annotations

from dataclasses import fields

import pytest

from protocol.errors import ValidationError
from protocol.fragment_store import FragmentStore, StoreArguments, check_fragment_store
from protocol.url import parse_url
from tests.support.golden import Case, case_id, cases


@pytest.mark.parametrize("case", cases("stores", "url"), ids=case_id)
def test_a_store_url_is_judged_as_gazette_judges_it(case: Case) -> None:
    if not case["ok"]:
        with pytest.raises(ValidationError):
            check_fragment_store(case["url"])
        return
    check_fragment_store(case["url"])
    store = FragmentStore.parse(case["url"])
    assert store.url == case["url"]
    assert (store.scheme, store.host, store.path, store.query) == (
        case["scheme"],
        case["host"],
        case["path"],
        case["query"],
    )


@pytest.mark.parametrize("case", cases("stores", "query"), ids=case_id)
def test_query_arguments_are_judged_when_the_store_is_opened(case: Case) -> None:
    if not case["valid_url"]:
        with pytest.raises(ValidationError):
            check_fragment_store(case["url"])
        return
    store = FragmentStore.parse(case["url"])
    if not case["ok"]:
        with pytest.raises(ValidationError):
            store.arguments()
        return
    given = {field.name.replace("_", ""): getattr(store.arguments(), field.name) for field in fields(StoreArguments)}
    assert {name: value for name, value in given.items() if value} == case["args"]


@pytest.mark.parametrize("case", cases("stores", "rewrite"), ids=case_id)
def test_the_first_occurrence_in_the_content_path_is_rewritten(case: Case) -> None:
    arguments = StoreArguments(find=case["find"], replace=case["replace"])
    assert case["store_prefix"] + arguments.rewrite(case["path"]) == case["object"]


@pytest.mark.parametrize("case", cases("stores", "object"), ids=case_id)
def test_an_object_lies_in_its_bucket_under_the_prefix(case: Case) -> None:
    store = FragmentStore.parse(case["url"])
    assert (store.bucket, store.object_key(case["path"])) == (case["bucket"], case["object"])


@pytest.mark.parametrize("case", cases("stores", "file-signed-url"), ids=case_id)
def test_the_signed_url_of_a_file_is_its_path_without_escapes(case: Case) -> None:
    store = FragmentStore.parse(case["url"])
    assert f"file://{store.object_key(case['path'])}" == case["signed"]
    if case["parses_as_url"]:
        parse_url(case["signed"])
    else:
        with pytest.raises(ValidationError):
            parse_url(case["signed"])


@pytest.mark.parametrize(
    "url",
    [
        "azure-ad:",
        "azure-ad://",
        "azure-ad://t",
        "azure-ad://t/",
        "azure-ad://t/a",
        "azure-ad://t/a/",
        "azure-ad://t/a//",
        "azure-ad://t/%2F/",
        "azure-ad://t/a?/c/",
        "AZURE-AD://t/a",
        "azure-ad:a/c/",
        "azure-ad:/a/c/",
    ],
)
def test_a_url_that_crashes_gazette_brokers_is_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        check_fragment_store(url)


def test_account_and_container_are_found_after_decoding() -> None:
    store = FragmentStore.parse("azure-ad://t/a%2Fc/p/")
    assert (store.host, store.bucket, store.prefix) == ("t", "a/c", "p/")


@pytest.mark.parametrize("name", ["rewriterconfig.profile", "RewriterConfig", "find.x", "storage_class", ".find"])
def test_an_argument_goes_by_its_own_name_only(name: str) -> None:
    with pytest.raises(ValidationError, match="storageclass"):
        FragmentStore.parse(f"s3://b/?{name}=x").arguments()


def test_an_error_shows_nothing_of_the_query() -> None:
    for url in ("ftp://b/?profile=secret", "s3://b?profile=secret", "s3://b/?profil=secret", "s3://b/?a=%secret"):
        with pytest.raises(ValidationError) as refused:
            FragmentStore.parse(url).arguments()
        assert "secret" not in str(refused.value)
