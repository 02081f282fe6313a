"""The gRPC shell that brokers and consumers share: it serves methods and knows nothing of what they do.

A service is a list of ``method.RpcMethod``; ``server.RpcServer`` binds them to a port. On its way to a handler each
call passes ``authorization``, and what a handler raises becomes a status in ``failure`` alone. ``tls`` gives both sides
credentials that follow renewed files, ``keepalive`` the options by which a peer that hangs is noticed. ``logs`` and
``redaction`` write log lines without secrets, ``metrics`` counts calls by the names that Gazette uses.

``protocol`` is a core but this package is not: it waits, reads files and keeps clocks. Read ``method`` first.
"""
