"""As much of Go's text/template as path postfixes need, behind ``protocol.postfix_template``.

``lexer`` and ``syntax`` read the whole grammar into a ``tree``, so that what Go refuses is refused here;
``evaluation`` runs it with ``functions`` on the object model of ``objects``, printing by the rules of
``go_format`` and ``go_time``. What Go would evaluate and we do not is a ``BeyondSubsetError``.
"""
