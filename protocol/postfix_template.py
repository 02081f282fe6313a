"""The template of a path postfix: judged as Go judges it, and evaluated as far as paths have use for.

Gazette names the folder of a fragment by a template of Go's text/template. A spec that etcd holds must be valid
here exactly if it is valid there, so ``check_postfix_template`` accepts all that Go accepts. What we evaluate is
a subset, and ``check_within_subset`` is how our own Apply keeps users within it: it refuses a template that is new
to a journal and beyond us. One that a Go broker has put there may stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from protocol.codec import CompressionCodec
from protocol.errors import ValidationError
from protocol.fragment import Fragment
from protocol.journal import Flag, FragmentPolicy, JournalSpec
from protocol.label import LabelSet
from protocol.memo import remembered
from protocol.template.evaluation import Evaluation
from protocol.template.go_format import BeyondSubsetError
from protocol.template.objects import NAMES, ZERO, PersistedRoot, PostfixData, ValidatedRoot
from protocol.template.syntax import parse
from protocol.template.tree import (
    Action,
    Block,
    Chain,
    Field,
    Function,
    Include,
    Jump,
    Node,
    Operand,
    Pipeline,
    Text,
    Tree,
    Unsupported,
    Variable,
)

SUBSET = (
    "a path postfix may use plain text, fields of .Spool and .JournalSpec, .Format and the other parts of a time, "
    ".ValueOf, printf, comparisons, variables, if, with and range"
)

_SAMPLE = PostfixData(
    Fragment("sample/journal", 1024, 4096, bytes(range(20)), CompressionCodec.GZIP, "s3://bucket/", 1_700_000_000),
    1_700_000_000_123_456_789,
    LabelSet.of(("author", "sample")),
    JournalSpec(
        "sample/journal",
        3,
        LabelSet.of(("region", "sample")),
        FragmentPolicy(1 << 20, CompressionCodec.GZIP, ("s3://bucket/",), 3 * 10**11, 0, 36 * 10**11),
        Flag.O_RDWR,
    ),
)

_tree = remembered(parse)


def check_postfix_template(text: str) -> None:
    """Raise unless Go accepts the template in a spec: it parses, and runs on objects that are all zero."""
    try:
        Evaluation(_tree(text), ValidatedRoot(ZERO), tolerant=True).run()
    except BeyondSubsetError:
        # Go goes on from here, and we cannot tell where to. Let it pass: it may be in use.
        return


def check_within_subset(text: str, spec: JournalSpec = _SAMPLE.spec) -> None:
    """Raise unless we can evaluate the template, also where no path of execution leads on a zero object.

    A sample fragment of the journal is rendered as well, because some templates that Go accepts fail with every
    fragment: `.Fragment` is one thing when a spec is validated, and two when a fragment is persisted.
    """
    try:
        tree = _tree(text)
        for operand in _operands(tree.nodes):
            _check_operand(operand)
        Evaluation(tree, ValidatedRoot(ZERO)).run()
        PostfixTemplate(text, tree).render(replace(_SAMPLE, spec=spec))
    except BeyondSubsetError as error:
        raise ValidationError(f"{error.rule}; {SUBSET}") from None


@dataclass(frozen=True, slots=True)
class PostfixTemplate:
    """
    >>> hive = PostfixTemplate.compile('date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}')
    >>> hive.render(ZERO)
    'date=0001-01-01'
    """

    text: str
    tree: Tree

    @classmethod
    def compile(cls, text: str) -> PostfixTemplate:
        """Raises a ``ValidationError`` if Go could not parse it. What is beyond the subset, ``render`` finds."""
        return cls(text, _tree(text))

    def render(self, data: PostfixData) -> str:
        """The postfix, which need not be one that a listing would accept: that is for the caller to judge.

        Raises a ``ValidationError`` where Go's execution fails, and where the template leaves our subset.
        """
        return Evaluation(self.tree, PersistedRoot(data)).run()


def _operands(nodes: tuple[Node, ...]) -> Iterator[Operand]:
    """All operands, also of branches that are not taken."""
    for node in nodes:
        match node:
            case Action(pipeline):
                yield from _within(pipeline)
            case Block():
                yield from _within(node.pipeline)
                yield from _operands(node.body + node.otherwise)
            case Include():
                yield Unsupported("another template")
            case Text() | Jump():
                pass


def _within(operand: Operand) -> Iterator[Operand]:
    yield operand
    match operand:
        case Pipeline(commands):
            for command in commands:
                for inner in command:
                    yield from _within(inner)
        case Chain(of):
            yield from _within(of)
        case _:
            pass


def _check_operand(operand: Operand) -> None:
    match operand:
        case Unsupported(what):
            raise BeyondSubsetError(f"uses {what}")
        case Function("js"):
            raise BeyondSubsetError("calls js")
        case Field() | Variable() | Chain():
            for name in operand.names:
                if name not in NAMES:
                    raise BeyondSubsetError(f"uses .{name[:32]}")
        case _:
            pass
