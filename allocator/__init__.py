"""Assigns Items to Members through etcd. Knows nothing of journals."""
