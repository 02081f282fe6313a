"""Recovery logs: the files of a shard's database, recorded into a journal operation by operation.

``operation`` is how one operation is framed, chained to the one before it, and fenced.
"""
