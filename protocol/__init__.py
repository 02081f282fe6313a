"""Values, statuses, errors and the wire: what every other package speaks. Imports nothing else of ours.

A message enters as bytes, is parsed by the stubs of ``protocol.gen``, judged once by ``validation.validate``,
and from there on is trusted. The nouns that code reasons about are immutable values that go to and from
messages: ``LabelSet`` in ``label``, ``LabelSelector`` in ``selector``, ``JournalSpec`` in ``journal``,
``ShardSpec`` in ``shard``, ``Fragment`` in ``fragment``, ``Route`` and ``Header`` in ``route``. Requests and
responses stay protobuf messages. Specs also enter as YAML, through ``journal_tree`` and ``shard_set``.

Read ``errors`` first (what can go wrong and what to do about it), then ``identifier`` (what names may look
like), then ``label``. A name or a rule that another program sees is fixed by Gazette, not by taste.
"""
