"""Assigns Items to Members through etcd. Knows nothing of journals.

How a cluster is mirrored and moved::

    etcd_client -> keyspace_watch -> keyspace -> state -> solve -> converge -> allocate -> etcd_client

``keyspace``, ``state``, ``solve`` and ``converge`` decide and never await: a mirror of the keys, what follows from
them, where every item should be, and the next safe step towards that. ``keyspace_watch``, ``membership`` and
``allocate`` await and never decide. Values are decoded by whoever owns the key space (``keys.decoder``), so an item may
be a journal, a shard, or one day a bundle of them. Read ``state`` first.
"""
