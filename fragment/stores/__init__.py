"""Stores: where fragments are kept for good.

``blob_store`` is the port that the rest of the project speaks to, and the errors it may see. ``bucket_store`` does
what all stores have in common (rewriting of paths, deadlines, errors, metrics) over a ``Bucket``, of which there is
one kind per module: ``filesystem``, ``s3``, ``gcs``, ``azure``. ``open_stores`` opens them by URL,
and ``health`` keeps an eye on them.
"""
