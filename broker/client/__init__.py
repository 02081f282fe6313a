"""A client of the Journal API: bytes over RPC. Imports none of the broker's runtime.

``Client`` in ``client`` is where to begin, for asyncio; ``BlockingClient`` in ``blocking`` is the same for threads.

How an append walks through this package::

    client -> appender -> brokers (-> dispatch -> route_cache) -> a broker
                       <-> retry

``append_service`` puts many small ones together, by way of ``append_queue``. A read goes::

    client -> reader -> retrying_read -> brokers -> a broker
                                      -> fragment_url -> a store

``dispatch`` says whom to ask, ``retry`` whether to ask again, and ``outcome`` what may come of it; they and
``append_request``, ``append_queue``, ``read_message``, ``line_buffer`` and ``listing`` decide and never await. What
becomes of an append that got no answer is the one thing to understand here: read ``appender`` first.
"""
