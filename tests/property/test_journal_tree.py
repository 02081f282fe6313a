from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol import journal_tree
from protocol.codec import CompressionCodec
from protocol.errors import ValidationError
from protocol.gen import journal_pb2 as pb
from protocol.journal import Flag, FragmentPolicy, JournalSpec, Suspend, SuspendLevel
from protocol.label import LabelSet

Listing = list[tuple[JournalSpec, int]]

# Texts that YAML has another use for, any text at all, and some that are long enough to be folded.
TEXTS = st.one_of(
    st.sampled_from(["", "x", "yes", "12", "0x1F", "~", "2026-01-02", "a: b", "- x", " x ", "'", "<<", "1:30", "x\n"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.text("ab {'\"\n:#", max_size=200),
)
NUMBERS = st.sampled_from([0, 0, 1, 3, 2**31 - 1])
NANOSECONDS = st.sampled_from([0, 0, 1, 10**9, 5 * 60 * 10**9, -(10**9), 2**63 - 1])
# Journals of several top folders have no directory in common but the root, whose name is empty.
NAMES = st.builds(
    lambda top, parts: "/".join([top, *parts]),
    st.sampled_from(["acme", "acme", "null", "zeta"]),
    st.lists(st.sampled_from(["a", "b", "part-1", "é", "yes", "%"]), max_size=4),
)
LABELS = st.lists(st.sampled_from([("aa", "1"), ("aa", "2"), ("bb", ""), ("yes", "no"), ("zz", "12")]), max_size=4)


def specs(texts: st.SearchStrategy[str]) -> st.SearchStrategy[JournalSpec]:
    policies = st.builds(
        FragmentPolicy,
        st.sampled_from([0, 1024, 2**34]),
        st.sampled_from(CompressionCodec),
        st.sampled_from([(), ("s3://a/",), ("s3://a/", "gs://b/")]),
        NANOSECONDS,
        NANOSECONDS,
        NANOSECONDS,
        texts,
    )
    suspends = st.builds(Suspend, st.sampled_from(SuspendLevel), st.sampled_from([0, 7, 2**63 - 1]))
    return st.builds(
        JournalSpec,
        NAMES,
        NUMBERS,
        LABELS.map(lambda pairs: LabelSet.of(*pairs)),
        policies,
        st.sampled_from(Flag),
        NUMBERS,
        st.none() | suspends,
    )


def listings(texts: st.SearchStrategy[str]) -> st.SearchStrategy[Listing]:
    return st.lists(
        st.tuples(specs(texts), st.sampled_from([0, -1, 1, 2**63 - 1])),
        max_size=6,
        unique_by=lambda listed: listed[0].name,
    ).map(lambda listed: sorted(listed, key=lambda pair: pair[0].name))


FEW_TEXTS = st.sampled_from(["", "x"])


@given(listings(TEXTS))
def test_hoisting_and_pushing_down_is_identity(listed: Listing) -> None:
    nodes = journal_tree.decode(journal_tree.hoist(listed))
    if listed:
        journal_tree.check(nodes)
    changes = journal_tree.flatten(nodes).changes
    assert [(JournalSpec.from_proto(change.upsert), change.expect_mod_revision) for change in changes] == listed


@given(listings(FEW_TEXTS))
def test_a_tree_says_nothing_twice(listed: Listing) -> None:
    nodes = journal_tree.decode(journal_tree.hoist(listed))
    for at, node in enumerate(nodes):
        children = [child.spec for child in nodes[1:] if child.parent == at]
        assert len(children) != 1
        for child in children:
            # Whatever is left to a child differs from its parent's.
            assert child.subtract(node.spec) == child
        if len(children) == 2:
            # Whatever both could have shared, they share.
            assert children[0].intersect(children[1]) == JournalSpec(children[0].name)


@given(st.lists(specs(FEW_TEXTS), min_size=1, max_size=4))
def test_the_algebra_of_specs_undoes_itself(several: list[JournalSpec]) -> None:
    shared, *others = several
    for other in others:
        shared = shared.intersect(other)
    for spec in several:
        assert spec.subtract(shared).union(shared) == spec


@given(specs(TEXTS))
def test_specs_survive_the_wire(spec: JournalSpec) -> None:
    message = pb.JournalSpec.FromString(spec.to_proto().SerializeToString())
    assert JournalSpec.from_proto(message) == spec


def refusal(text: str) -> str | None:
    try:
        journal_tree.parse(text)
    except ValidationError as error:
        return str(error)
    return None


@given(st.text("a/:-[]{}&*!|>'\"%@` \n\t#,?<~.0123e\x85\x07\ud800é", max_size=40))
def test_any_text_is_a_tree_or_refused_in_few_words(text: str) -> None:
    for prefix in ("", "name: acme/one\nlabels: ", "children:\n- "):
        refused = refusal(prefix + text)
        assert refused is None or ("line " in refused and len(refused) < 1000)
